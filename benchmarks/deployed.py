"""Is what `deploy/` holds the model that was measured? For each network: answers of deploy/ in a process without
taglio, and its speed beside `result.session()`, over fresh openings of both.

Uses the workspaces that told.py made.

python benchmarks/deployed.py [--cases digits,magika] [--openings 8] [--json]
"""

import argparse
import random
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import taglio
from cases import CACHE, markdown, show
from taglio.confirm.speedup import Speedup, log_ratio, speedup
from taglio.deploy import verify
from taglio.deploy.prove import verified
from taglio.deploy.write import SAMPLES_FOLDER, read_samples
from told import NETWORKS

_UNCOUNTED = 3
_OPENING_S, _FEWEST, _MOST = 1.0, 3, 60


@dataclass(frozen=True, slots=True)
class Row:
    """The largest distance of an answer of deploy/ from the recorded one, and how many times as fast as
    `result.session()` deploy/ is."""

    network: str
    runtime: str
    distance: float
    speed: Speedup

    @property
    def holds(self) -> bool:
        """Whether answers are the same within rounding, and the speed within 3 %."""
        return self.distance <= verify.TOLERANCE and abs(self.speed.ratio - 1.0) <= 0.03


def compare(out: Path, openings: int) -> Row:
    """Answers and speed of the deploy/ of a workspace."""
    deploy, result = out / "deploy", taglio.load(out)
    report = verified(deploy, deploy / SAMPLES_FOLDER)
    if report.problems:
        raise RuntimeError(f"{deploy}: {report.problems[0]}")
    feed = read_samples(deploy)[0]
    logs: list[float] = []
    medians: list[list[float]] = []
    for number in range(openings):
        order = ["session", "deploy"] if number % 2 else ["deploy", "session"]
        runs = {name: verify.DeployedModel(deploy).run if name == "deploy" else result.session().run for name in order}
        seconds = timed(runs, feed, number)
        logs.append(log_ratio(seconds["session"], seconds["deploy"]))
        medians.append([sorted(seconds[name])[len(seconds[name]) // 2] for name in ("session", "deploy")])
    session_s, deploy_s = (sorted(values)[openings // 2] for values in zip(*medians, strict=True))
    return Row(out.name, result.plan.runtime, report.distance, speedup(logs, session_s, deploy_s))


def timed(runs: dict[str, Any], feed: Any, seed: int) -> dict[str, list[float]]:
    """Seconds of single runs, in turn, in an order that is drawn anew."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    draw, end = random.Random(seed), time.perf_counter() + _OPENING_S
    for call in runs.values():
        call(feed)
    while len(seconds["deploy"]) < _FEWEST or (time.perf_counter() < end and len(seconds["deploy"]) < _MOST):
        for name in draw.sample(list(runs), 2):
            for _ in range(_UNCOUNTED):
                runs[name](feed)
            start = time.perf_counter()
            runs[name](feed)
            seconds[name].append(time.perf_counter() - start)
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(NETWORKS))
    parser.add_argument("--openings", type=int, default=8)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options = parser.parse_args()
    rows = []
    for name in options.cases.split(","):
        out = CACHE / "told" / f"{name}-0"
        if not (out / "deploy" / verify.MANIFEST).exists():
            print(f"skipped: {out} is missing: run benchmarks/told.py --cases {name}", file=sys.stderr)
            continue
        rows.append(compare(out, options.openings))
    table = [
        [row.network, row.runtime, f"{row.distance:.1e}", str(row.speed), "yes" if row.holds else "NO"] for row in rows
    ]
    text = markdown(["network", "runtime", "answers differ by", "speed of deploy/ ÷ session", "holds"], table)
    text += f"\n\n{sum(row.holds for row in rows)} of {len(rows)} hold: the same answers, speed within 3 %."
    show("deployed", {"rows": [asdict(row) for row in rows]}, text, as_json=options.json)
    return 0 if rows else 1


if __name__ == "__main__":
    sys.exit(main())
