"""What does each mechanism of the search earn? Networks are optimised with one mechanism switched off at a time.

The column of seconds is that of the search, without the race that confirms its result; the speed-up is the confirmed
one. A mechanism stays if its absence costs milliseconds of the final model or seconds of the search. Each row is a
process of its own. Rows are kept in out/benchmarks/ablate.jsonl: an interrupted run goes on, and --again starts anew.

python benchmarks/ablate.py [--cases digits,ultraface-rfb-320] [--without rules,bounds] [--effort 1] [--threads 1]
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import taglio
from cases import CACHE, CASES, Kept, markdown, paths, write
from taglio.flow import explore as explore_module
from taglio.flow import optimize as optimize_module
from taglio.flow import screen as screen_module
from taglio.flow import search as search_module
from taglio.flow.rules import by_rules

NETWORKS = ("digits", "ultraface-rfb-320", "magika", "paraphrase-MiniLM-L3-v2-6000", "ch_PP-OCRv4_rec_infer")
LIMIT = 0.01


def _plain_rules(*given: Any) -> dict[str, Any]:
    """Float and all int8, without the plans that rules make."""
    return {name: forms for name, forms in by_rules(*given).items() if name in ("float32", "int8")}


# What replaces which name of which module, by mechanism.
MECHANISMS: Mapping[str, Sequence[tuple[Any, str, Any]]] = {
    "": [],
    "bfloat16": [(screen_module, "bfloat16_refusal", lambda: "switched off")],
    "corrections": [(search_module, "corrected", lambda error, *_: error)],
    "bounds": [
        (screen_module, "least_share", lambda *_: 0.0),
        (optimize_module, "_no_gain", lambda *_: ""),
        (explore_module.Explored, "may_gain", property(lambda _: True)),
    ],
    "rules": [(explore_module, "by_rules", _plain_rules)],
    "refinement": [(explore_module, "refine", lambda _model, _graph, profile, *_, **__: profile)],
}


@dataclass(frozen=True, slots=True)
class Row:
    """One network without one mechanism ("": with all)."""

    network: str
    without: str
    effort: float
    search_s: float
    speedup: float
    low: float
    high: float
    error: float
    int8_blocks: int
    runtime: str


def measure(network: str, without: str, effort: float, threads: int) -> Row:
    """Optimise one network in this process."""
    for module, name, replacement in MECHANISMS[without]:
        setattr(module, name, replacement)
    (model, data), preprocess = paths(CASES[network]), CASES[network].preprocess
    result = taglio.optimize(model, data, max_error=LIMIT, effort=effort, threads=threads, preprocess=preprocess)
    table = result.table
    assert table is not None, "optimize always sets it"
    race = table.speedup
    ratios = (1.0, 1.0, 1.0) if race is None else (race.ratio, race.low, race.high)
    search_s = sum(seconds for stage, seconds in table.stage_seconds.items() if stage not in ("confirm", "build"))
    return Row(
        network, without, effort, search_s, *ratios, table.plan.error, table.plan.int8_blocks, table.plan.runtime
    )


def main() -> None:
    """Measure what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default=",".join(NETWORKS))
    parser.add_argument("--without", default=",".join(MECHANISMS))
    parser.add_argument("--effort", type=float, default=1.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--one", nargs=2, metavar=("NETWORK", "WITHOUT"), help="measure one row and print it as JSON")
    options = parser.parse_args()
    if options.one:
        network, without = options.one
        print(json.dumps(asdict(measure(network, without, options.effort, options.threads))))
        return
    kept = Kept(CACHE / "ablate.jsonl", Row, again=options.again)
    rows = kept.rows
    networks, mechanisms = options.cases.split(","), ["", *filter(None, options.without.split(","))]
    for network in networks:
        for without in mechanisms:
            if any((row.network, row.without, row.effort) == (network, without, options.effort) for row in rows):
                continue
            start = time.perf_counter()
            command = [sys.executable, __file__, "--one", network, without, "--effort", str(options.effort)]
            command += ["--threads", str(options.threads)]
            ran = subprocess.run(command, check=True, capture_output=True, text=True)
            kept.add(Row(**json.loads(ran.stdout.splitlines()[-1])))
            print(f"{network} without {without or 'nothing'}: {time.perf_counter() - start:.0f} s", file=sys.stderr)
    cells = [
        [
            row.network,
            row.without or "(all there)",
            f"{row.search_s:.1f} s",
            f"{row.speedup:.2f} × ({row.low:.2f} to {row.high:.2f})",
            f"{row.error:.2%}",
            f"{row.int8_blocks} in {row.runtime}",
        ]
        for row in rows
        if row.network in networks and row.without in mechanisms and row.effort == options.effort
    ]
    table = markdown(["network", "without", "search", "confirmed speed-up", "error", "int8 blocks"], cells)
    print(table)
    print(write("ablate", {"rows": [asdict(row) for row in rows]}, table))


if __name__ == "__main__":
    main()
