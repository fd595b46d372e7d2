"""What does each mechanism of the search earn? Searches run with one mechanism switched off at a time.

By default on simulated machines (tests/support/simulated.py), of which half have tables that are off by a fifth: how
far the delivered plan is from the fastest, how often its true error breaks the limit by more than a tenth, and the
simulated seconds. They price proposers and budgets, not what makes tables true: that takes --real networks.

A mechanism stays if its absence costs milliseconds of the final model or seconds of the search. With --real, the
column of seconds is that of the search, without the race that confirms its result; the speed-up is the confirmed one.
Each row is a process of its own, kept in out/benchmarks/ablate.jsonl: an interrupted run goes on, --again starts anew.

python benchmarks/ablate.py [--machines 40] [--without rules,refinement]
python benchmarks/ablate.py --real [--cases digits,ultraface-rfb-320] [--without rules,bounds] [--effort 1]
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from math import exp, log
from statistics import fmean
from typing import Any

import taglio
from cases import CACHE, CASES, ROOT, Kept, markdown, paths, write
from taglio.lab import work as work_module
from taglio.lab.budget import Budget
from taglio.search import explore as explore_module
from taglio.search import finalists as finalists_module
from taglio.search import form_race
from taglio.search import search as search_module
from taglio.search.rules import by_rules

NETWORKS = ("digits", "ultraface-rfb-320", "magika", "paraphrase-MiniLM-L3-v2-6000", "ch_PP-OCRv4_rec_infer")
LIMIT = 0.01


def _plain_rules(*given: Any) -> dict[str, Any]:
    """Float and all int8, without the plans that rules make."""
    return {name: forms for name, forms in by_rules(*given).items() if name in ("float32", "int8")}


BUDGET = tuple(each.name for each in fields(Budget))


def _halved(*names: str) -> list[tuple[Any, str, Any]]:
    """What replaces the budget by one with half of these numbers."""
    usual = Budget()
    halves = {name: type(getattr(usual, name))(getattr(usual, name) / 2) for name in names}
    return [(work_module, "Budget", lambda: replace(usual, **halves))]


# What replaces which name of which module, by mechanism.
MECHANISMS: Mapping[str, Sequence[tuple[Any, str, Any]]] = {
    "": [],
    "bfloat16": [(form_race, "bfloat16_refusal", lambda: "switched off")],
    "corrections": [(module, "corrected", lambda error, *_: error) for module in (search_module, explore_module)],
    "bounds": [
        (form_race, "least_share", lambda *_: 0.0),
        (explore_module.PlaceSearch, "_may_gain", lambda _: True),
    ],
    "rules": [(explore_module, "by_rules", _plain_rules)],
    "refinement": [(explore_module, "refine", lambda _model, _graph, profile, *_, **__: profile)],
    "another search": [(explore_module.PlaceSearch, "search_again", lambda *_: False)],
    "several finalists": [(finalists_module, "FINALISTS", 1)],
    # Numbers of the budget, each by itself and then all.
    **{f"half of {name}": _halved(name) for name in BUDGET},
    "half of the budget": _halved(*BUDGET),
}
# Those that the simulated machines have no part in.
REAL = ("bfloat16", "bounds")


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


@contextmanager
def switched_off(mechanism: str) -> Iterator[None]:
    """Run without one mechanism ("": with all)."""
    kept = [(module, name, getattr(module, name)) for module, name, _ in MECHANISMS[mechanism]]
    for module, name, replacement in MECHANISMS[mechanism]:
        setattr(module, name, replacement)
    try:
        yield
    finally:
        for module, name, original in kept:
            setattr(module, name, original)


def measure(network: str, without: str, effort: float, threads: int) -> Row:
    """Optimise one network in this process."""
    with switched_off(without):
        return _optimized(network, without, effort, threads)


def _optimized(network: str, without: str, effort: float, threads: int) -> Row:
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


def simulated(machines: int, mechanisms: Sequence[str]) -> tuple[list[list[str]], dict[str, Any]]:
    """The cells and the figures of searches on simulated machines without each mechanism."""
    sys.path.insert(0, str(ROOT))
    from tests.search.test_simulated import LIMIT as LIMIT_THERE
    from tests.search.test_simulated import delivered
    from tests.support.networks import network
    from tests.support.simulated import Machine, Noise

    noises = {"close": Noise(), "off by a fifth": Noise(tables_s=0.2, tables_error=0.6)}
    cells, figures = [], {}
    for without in mechanisms:
        for tables, noise in noises.items():
            with switched_off(without):
                ends = [delivered(Machine(network(seed), seed, noise)) for seed in range(machines)]
            behind = [end.behind for end in ends]
            beyond = sum(end.error > 1.1 * LIMIT_THERE for end in ends)
            seconds = fmean(end.machine.now_s for end in ends)
            mean = exp(fmean(map(log, behind)))
            cells.append(
                [without or "(all there)", tables, f"{mean:.3f}", f"{max(behind):.2f}", str(beyond), f"{seconds:.1f} s"]
            )
            figures[f"{without}, {tables}"] = {"behind": behind, "beyond": beyond, "seconds": seconds}
            print(" | ".join(cells[-1]), file=sys.stderr, flush=True)
    return cells, figures


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--real", action="store_true", help="on networks, not on simulated machines")
    parser.add_argument("--machines", type=int, default=40)
    parser.add_argument("--cases", default=",".join(NETWORKS))
    parser.add_argument("--without", default="")
    parser.add_argument("--effort", type=float, default=1.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--one", nargs=2, metavar=("NETWORK", "WITHOUT"), help="measure one row and print it as JSON")
    options = parser.parse_args()
    if options.one:
        network, without = options.one
        print(json.dumps(asdict(measure(network, without, options.effort, options.threads))))
        return
    mechanisms = (
        ["", *filter(None, options.without.split(","))]
        if options.without
        else [*MECHANISMS]
        if options.real
        else [name for name in MECHANISMS if name not in REAL]
    )
    if options.real:
        table, figures = real(options, mechanisms)
    else:
        cells, figures = simulated(options.machines, mechanisms)
        head = ["without", "tables", "time ÷ the fastest", "at most", "errors above 1.1 × the limit", "search"]
        table = markdown(head, cells)
    print(table)
    print(write("ablate", figures, table))


def real(options: argparse.Namespace, mechanisms: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """The table and the figures of networks without each mechanism; what is missing is measured."""
    kept = Kept(CACHE / "ablate.jsonl", Row, again=options.again)
    rows, networks = kept.rows, options.cases.split(",")
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
    return table, {"rows": [asdict(row) for row in rows]}


if __name__ == "__main__":
    main()
