"""Do the reported speed-ups hold? Each network is optimised several times; then its deploy/ and the source model are
raced over many more openings, in the same hour, and that long race is held against each reported interval.

With --itself, copies of the source model are raced as `optimize` races a plan: how often does the interval hold 1, and
how often would the copy replace float?

Rows are kept in out/benchmarks/told.jsonl: an interrupted run goes on, and --again starts anew.

python benchmarks/told.py [--cases digits,magika] [--runs 3] [--openings 60] [--effort 0.05] [--threads 1] [--json]
python benchmarks/told.py --itself 20 [--cases digits]
"""

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from cases import CACHE, CASES, Kept, markdown, optimized, paths, show
from taglio.artifact import load
from taglio.confirm.bench import Bench
from taglio.confirm.race import Patience, confirm
from taglio.confirm.speedup import Speedup
from taglio.deploy import verify
from taglio.deploy.write import read_samples, write_source
from taglio.flow.confirm import raced_inputs
from taglio.flow.opening import open_work
from taglio.lab.setup import Setup
from taglio.model.load import load as load_network
from taglio.scratch import scratch

# The larger networks of yolo take a second a run with one thread.
NETWORKS = tuple(name for name in CASES if name not in ("yolo11s-seg", "yolo11x-seg"))


@dataclass(frozen=True, slots=True)
class Row:
    """One run of optimize: what it reported (None: float stays), and the long race of the same files."""

    network: str
    run: int
    limit: float
    seconds: float
    reported: Speedup | None
    raced: Speedup | None

    @property
    def holds(self) -> bool | None:
        """Whether the reported interval holds the long race's ratio; None where float stays."""
        if self.reported is None or self.raced is None:
            return None
        return self.reported.low <= self.raced.ratio <= self.reported.high


def run(name: str, number: int, asked: argparse.Namespace) -> Row:
    """One optimize in a process of its own, and the long race of what it delivered."""
    out = CACHE / "told" / f"{name}-{number}"
    given = "--max-error", asked.max_error, "--effort", asked.effort, "--threads", asked.threads
    seconds, _ = optimized(name, out, *given)
    outcome = json.loads((out / "outcome.json").read_text())["body"]
    reported = msgspec.convert(outcome["speedup"], Speedup | None)
    raced = None if reported is None else long_race(out, asked.openings)
    return Row(name, number, asked.max_error, seconds, reported, raced)


def long_race(out: Path, openings: int) -> Speedup:
    """The deploy/ of a workspace beside the source model, on the inputs of its own race, over so many openings of both:
    the time of a run depends on its input."""
    setup = load(out / "setup.json", "setup", Setup)
    manifest = json.loads((out / "deploy" / verify.MANIFEST).read_text())
    patience = Patience(openings=openings, fewest=openings, half_width=1e9, seconds=60.0, slow_seconds=240.0)
    with scratch() as base:
        write_source(base, Path(setup.model), manifest["inputs"], manifest["outputs"], setup.threads)
        with Bench(raced_inputs(open_work(setup))) as race:
            return confirm(race, base, out / "deploy", setup.run_s, patience)


def itself(name: str, races: int, threads: int) -> list[Speedup]:
    """Races of a file against a copy of itself."""
    loaded = load_network(paths(CASES[name])[0])
    ports = [spec.name for spec in loaded.inputs], list(loaded.outputs)
    delivered = next(iter((CACHE / "told").glob(f"{name}-*/deploy")), None)
    if delivered is None:
        raise RuntimeError(f"{name}: optimise it first: its delivered samples are raced")
    results = []
    with scratch() as one, scratch() as other:
        for folder in (one, other):
            write_source(folder, loaded.proto, *ports, threads)
        for _ in range(races):
            with Bench(read_samples(delivered)) as race:
                results.append(confirm(race, one, other, 0.005))
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(NETWORKS))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--openings", type=int, default=60)
    parser.add_argument("--max-error", type=float, default=0.01)
    parser.add_argument("--effort", type=float, default=0.05)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--itself", type=int, default=0, metavar="RACES")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    asked = parser.parse_args()
    if asked.itself:
        return against_itself(asked)
    kept = Kept(CACHE / "told.jsonl", Row, again=asked.again)
    rows = kept.rows
    done = {(row.network, row.limit, row.run) for row in rows}
    for number in range(asked.runs):
        for name in asked.cases.split(","):
            if (name, asked.max_error, number) in done:
                continue
            try:
                kept.add(run(name, number, asked))
            except (FileNotFoundError, RuntimeError) as error:
                print(f"skipped: {error}", file=sys.stderr)
                continue
            print(" | ".join(cells(rows[-1])), file=sys.stderr, flush=True)
    judged = [row.holds for row in rows if row.holds is not None]
    head = ["network", "limit", "run", "reported", "long race", "holds", "optimize"]
    text = markdown(head, [cells(row) for row in rows])
    text += f"\n\n{sum(judged)} of {len(judged)} reported intervals hold the long race's ratio; "
    text += f"{len(rows) - len(judged)} runs kept float."
    show("told", {"rows": [asdict(row) for row in rows]}, text, as_json=asked.json)
    return 0


def against_itself(asked: argparse.Namespace) -> int:
    table, figures = [], {}
    for name in asked.cases.split(","):
        races = itself(name, asked.itself, asked.threads)
        held = sum(race.low <= 1.0 <= race.high for race in races)
        replaced = sum(race.replaces_float for race in races)
        width = sum(race.half_width for race in races) / len(races)
        figures[name] = [asdict(race) for race in races]
        table.append([name, str(len(races)), str(held), str(replaced), f"{width:.1%}"])
    head = ["network", "races", "intervals that hold 1", "would replace float", "mean half-width"]
    show("told_itself", figures, markdown(head, table), as_json=asked.json)
    return 0


def cells(row: Row) -> list[str]:
    holds = {None: "float stays", True: "yes", False: "NO"}[row.holds]
    raced = "" if row.raced is None else f"{row.raced} over {row.raced.openings}"
    run = [row.network, f"{row.limit:.0%}", str(row.run)]
    return [*run, str(row.reported or ""), raced, holds, f"{row.seconds:.0f} s"]


if __name__ == "__main__":
    sys.exit(main())
