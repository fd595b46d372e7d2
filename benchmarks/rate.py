"""Does `taglio optimize --objective rate` choose the fastest way? Each network stays float. A grid of ways in both
runtimes is measured side by side; then its best three, the way that was chosen, and ONNX Runtime with default options
are raced over fresh openings, and that race counts.

Rows are kept in out/benchmarks/rate.jsonl: an interrupted run goes on, and --again starts anew.

python benchmarks/rate.py [--cases digits,magika] [--openings 8] [--effort 1] [--memory-limit 4GB] [--json]
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from math import exp, log
from pathlib import Path
from statistics import median

from cases import CACHE, CASES, Kept, markdown, optimized, show
from taglio.artifact import load
from taglio.cli.options import memory_size
from taglio.confirm.bench import Bench
from taglio.cores import available_cores
from taglio.deploy.write import write_in_way, write_opened, write_source
from taglio.errors import MeasurementFailed, plural
from taglio.flow import workspace
from taglio.flow.confirm import raced_inputs
from taglio.flow.outcome import Outcome
from taglio.lab.work import Work
from taglio.memory import free_bytes
from taglio.runtimes import onnxruntime, openvino
from taglio.runtimes.onnxruntime import SessionOptions
from taglio.runtimes.way import Way
from taglio.scratch import scratch
from taglio.ways.choose import burst_of
from taglio.ways.confirm import Sized, figure, opening
from taglio.ways.result import Figure, Rate

# The larger networks of yolo take a second a run with one thread.
NETWORKS = tuple(name for name in CASES if name not in ("yolo11s-seg", "yolo11x-seg"))
AT_ONCE, JOINED = (1, 2, 3, 4), (1, 2, 4, 8)
BEST, ROUNDS = 3, 5
# Models that are open at once, besides what memory allows: each has threads of its own.
MOST_OPEN = 16


@dataclass(frozen=True, slots=True)
class Row:
    """The way that was chosen for a network, and its capacity as a multiple of others': that of the best of `ways` in
    the grid, and that of ONNX Runtime with default options and one or two callers."""

    network: str
    seconds: float
    ways: int
    best: str
    chosen: str
    to_best: Figure
    to_one: Figure
    to_two: Figure


@dataclass(frozen=True, slots=True)
class Entry:
    """A model in a way, in deploy/'s format in `folder`."""

    runtime: str
    way: Way
    folder: Path

    def __str__(self) -> str:
        return f"{self.runtime}, {self.way}"

    @property
    def sized(self) -> Sized:
        """As openings take it."""
        return Sized(self.way, {self.way.joined: self.folder})


def run(name: str, asked: argparse.Namespace) -> Row:
    """One optimize in a process of its own, the grid, and the race."""
    out = CACHE / "rate" / name
    # --portable excludes bfloat16, which float blocks may otherwise compute in.
    given = "--objective", "rate", "--max-error", "1%", "--keep-float", "*", "--portable", "--effort", asked.effort
    seconds, _ = optimized(name, out, *given)
    return compared(name, out, seconds, asked)


def compared(name: str, out: Path, seconds: float, asked: argparse.Namespace) -> Row:
    """The way of a finished workspace beside the grid; optimize took so many `seconds`."""
    rate = load(out / f"{workspace.OUTCOME}.json", workspace.OUTCOME, Outcome).rate
    if rate is None:
        raise RuntimeError(f"{name}: optimize chose no way for a rate")
    work = workspace.reopen(out)
    burst_s = burst_of(work.setup.run_s)
    with scratch() as root:
        entries = [*grid(root, out / workspace.FLOAT_MODEL, work, rate)]
        with Bench(raced_inputs(work)) as bench:
            values = measured(bench, entries, burst_s, asked.memory_limit or free_bytes() // 2)
            best = sorted(values, key=lambda entry: -values[entry])[:BEST]
            chosen = Entry(rate.runtime, rate.way, out / workspace.DEPLOY)
            sources = [source(root, work, callers) for callers in (1, 2)]
            to_best, to_one, to_two = raced(bench, chosen, [best, *([entry] for entry in sources)], burst_s, asked)
    fastest, ratio = to_best
    return Row(name, seconds, len(values), str(fastest), str(chosen), ratio, to_one[1], to_two[1])


def grid(root: Path, model: Path, work: Work, rate: Rate) -> Iterator[Entry]:
    """The float model in every way of the grid; requests are joined where the chosen way might have joined them."""
    cores, joined = available_cores(), (1,) if rate.alone else JOINED
    inputs = [spec.name for spec in work.inputs]
    for runtime in (onnxruntime.NAME, openvino.NAME):
        opened = root / runtime
        write_opened(opened, model, inputs, work.outputs, SessionOptions(cores, runtime=runtime))
        for threads, at_once, items, spins in product(dict.fromkeys((1, cores)), AT_ONCE, joined, (False, True)):
            if spins and (threads == 1 or runtime != onnxruntime.NAME):
                continue
            way = Way(threads, at_once, items, spins)
            folder = root / f"{runtime}-{threads}-{at_once}-{items}-{spins}"
            write_in_way(folder, opened, way)
            yield Entry(runtime, way, folder)


def source(root: Path, work: Work, callers: int) -> Entry:
    """The source model as users of ONNX Runtime run it."""
    folder, cores = root / f"source-{callers}", available_cores()
    folder.mkdir()
    write_source(folder, work.source, [spec.name for spec in work.inputs], work.outputs, cores, callers)
    return Entry(onnxruntime.NAME, Way(cores, callers, spinning=True, shared=True), folder)


def measured(bench: Bench, entries: Sequence[Entry], burst_s: float, limit_bytes: int) -> Mapping[Entry, float]:
    """The capacity of each entry that runs, as a multiple of the first's, which takes part in every group of entries
    that are open at once."""
    first, *waiting = entries
    values = {first: 1.0}
    while waiting:
        bench.close()
        (used,) = bench.open([first.folder])
        group = [first]
        while waiting and used < limit_bytes and len(group) < MOST_OPEN:
            entry = waiting.pop(0)
            try:
                (memory,) = bench.open([entry.folder])
            except MeasurementFailed as error:
                print(f"left out: {entry}: {error}", file=sys.stderr)
                continue
            used += memory
            group.append(entry)
        # A request for each round: all in one could exceed the time after which a silent process counts as hanging.
        rounds = [bench.closed_loop([entry.folder for entry in group], burst_s, 1) for _ in range(ROUNDS)]
        for index, entry in enumerate(group[1:], 1):
            logs = [log(bursts[index][0].per_s / bursts[0][0].per_s) for bursts in rounds]
            values[entry] = exp(median(logs))
        print(f"measured {len(values)} of {plural(len(entries), 'way')}", file=sys.stderr, flush=True)
    return values


def raced(
    bench: Bench, chosen: Entry, rivals: Sequence[Sequence[Entry]], burst_s: float, asked: argparse.Namespace
) -> list[tuple[Entry, Figure]]:
    """For each group of rivals the fastest one, and the capacity of the chosen way as a multiple of its. All are opened
    afresh, again and again."""
    entries = [chosen, *(entry for group in rivals for entry in group)]
    openings = [opening(bench, [entry.sized for entry in entries], burst_s, ROUNDS) for _ in range(asked.openings)]

    def ratio(entry: Entry) -> Figure:
        other = entries.index(entry, 1)
        return figure([there.ratio(0, other) for there in openings])

    ratios = [[(entry, ratio(entry)) for entry in group] for group in rivals]
    return [min(group, key=lambda pair: pair[1].value) for group in ratios]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(NETWORKS))
    parser.add_argument("--openings", type=int, default=8)
    parser.add_argument("--effort", type=float, default=1.0)
    parser.add_argument("--memory-limit", type=memory_size, help="of all models that are open at once")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    asked = parser.parse_args()
    kept = Kept(CACHE / "rate.jsonl", Row, again=asked.again)
    done = {row.network for row in kept.rows}
    for name in asked.cases.split(","):
        if name in done:
            continue
        try:
            kept.add(run(name, asked))
        except (FileNotFoundError, MeasurementFailed, RuntimeError) as error:
            print(f"skipped: {error}", file=sys.stderr)
            continue
        print(" | ".join(cells(kept.rows[-1])), file=sys.stderr, flush=True)
    head = ["network", "grid's best", "chosen", "chosen ÷ best", "÷ default, one caller", "÷ default, two callers"]
    text = markdown([*head, "optimize"], [cells(row) for row in kept.rows])
    show("rate", {"rows": [asdict(row) for row in kept.rows]}, text, as_json=asked.json)
    return 0


def cells(row: Row) -> list[str]:
    best = f"{row.best} (of {row.ways})"
    return [
        row.network,
        best,
        row.chosen,
        *map(ratio_text, (row.to_best, row.to_one, row.to_two)),
        f"{row.seconds:.0f} s",
    ]


def ratio_text(ratio: Figure) -> str:
    return f"{ratio.value:.2f} × ({ratio.low:.2f} to {ratio.high:.2f})"


if __name__ == "__main__":
    sys.exit(main())
