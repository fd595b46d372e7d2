"""Does the rate that `taglio optimize --objective rate --max-latency` reports hold, and what do forms add to ways?

The limit on latency is five times that of a run in ONNX Runtime with default options. Of each network the reported rate
is compared with that of ONNX Runtime, and the capacity with that of float's best way, over fresh openings. Then
requests arrive at random, at 0.95 of the reported rate, ten times over. A load is repeated if the capacity measured
right before or after it is more than a tenth below the reported one.

Rows are kept in out/benchmarks/rate_limit.jsonl: an interrupted run goes on, and --again starts anew.

python benchmarks/rate_limit.py [--cases digits,magika] [--max-error 0.01] [--effort 1] [--json]
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np

from cases import CACHE, Kept, markdown, open_case, optimized, show
from rate import ROUNDS, source
from taglio.artifact import load
from taglio.confirm.bench import Bench
from taglio.deploy.write import write_in_way, write_opened
from taglio.errors import MeasurementFailed
from taglio.flow import workspace
from taglio.flow.confirm import raced_inputs
from taglio.flow.outcome import Outcome
from taglio.lab.work import Work
from taglio.profile.measure import FLOAT_RUN
from taglio.runtimes.onnxruntime import SessionOptions
from taglio.scratch import scratch
from taglio.ways.choose import burst_of
from taglio.ways.confirm import Sized, figure, opening
from taglio.ways.result import Figure, Rate

NETWORKS = "digits,magika,ultraface-rfb-320,yunet-n-640,paraphrase-MiniLM-L3-v2-6000,ch_PP-OCRv4_rec_infer"
LATENCIES, SHARE, LOADS, MOST_LOADS, DRIFT = 5.0, 0.95, 10, 30, 0.9
OPENINGS = 6


@dataclass(frozen=True, slots=True)
class Row:
    """One network: the limit, the reported rate and that of ONNX Runtime, the capacity ÷ that of float's best way, and
    the latencies of 19 of 20 requests under loads of 0.95 of the rate, in seconds. `repeated` loads did not count."""

    network: str
    seconds: float
    limit_s: float
    chosen: str
    rate: Figure
    base_rate_per_s: float | None
    to_float: Figure
    p95_s: tuple[float, ...]
    repeated: int

    @property
    def kept(self) -> int:
        """Loads within the limit."""
        return sum(p95_s <= self.limit_s for p95_s in self.p95_s)


def run(name: str, asked: argparse.Namespace) -> Row:
    """One optimize in a process of its own, the race beside float, and the loads."""
    out, work = CACHE / "rate-limit" / name, open_case(name)
    burst_s = burst_of(work.setup.run_s)
    with scratch() as root, Bench(raced_inputs(work)) as bench:
        limit_s = LATENCIES * _latency_s(bench, source(root, work, 1).folder, burst_s)
        bench.close()
        given = "--objective", "rate", "--max-latency", f"{limit_s * 1e3:.4g}ms", "--max-error", asked.max_error
        seconds, _ = optimized(name, out, *given, "--effort", asked.effort)
        rate = load(out / f"{workspace.OUTCOME}.json", workspace.OUTCOME, Outcome).rate
        if rate is None or rate.rate_per_s is None:
            raise RuntimeError(f"{name}: optimize found no rate within the limit")
        deployed = out / workspace.DEPLOY
        to_float = _to_float(bench, root, out, work, rate, burst_s)
        bench.close()
        bench.open([deployed])
        p95_s, repeated = list[float](), -LOADS
        for counts, latency_s in _loads(bench, deployed, rate, burst_s):
            repeated += 1
            p95_s += [latency_s] if counts else []
            if len(p95_s) == LOADS:
                break
    chosen = f"{rate.model} in {rate.runtime}, {rate.way}"
    return Row(
        name, seconds, limit_s, chosen, rate.rate_per_s, rate.base_rate_per_s, to_float, tuple(p95_s), max(0, repeated)
    )


def _latency_s(bench: Bench, folder: Path, burst_s: float) -> float:
    bench.open([folder])
    bursts = bench.closed_loop([folder], burst_s, ROUNDS)[0]
    return median(run_s for burst in bursts for run_s in burst.runs)


def _to_float(bench: Bench, root: Path, out: Path, work: Work, rate: Rate, burst_s: float) -> Figure:
    """The capacity of what is delivered ÷ that of float32 in its best way of the search, without joining more."""
    floats = [tried for tried in rate.tried if tried.model.startswith(FLOAT_RUN) and tried.capacity_per_s > 0.0]
    best = max(floats, key=lambda tried: (tried.rate_per_s or 0.0, tried.capacity_per_s))
    opened, folder = root / "float", root / "float-in-way"
    inputs = [spec.name for spec in work.inputs]
    options = SessionOptions(work.setup.threads, runtime=best.runtime)
    write_opened(opened, out / workspace.FLOAT_MODEL, inputs, work.outputs, options)
    write_in_way(folder, opened, best.way)
    models = [Sized(rate.way, {rate.way.joined: out / workspace.DEPLOY}), Sized(best.way, {best.way.joined: folder})]
    return figure([opening(bench, models, burst_s, ROUNDS).ratio(0, 1) for _ in range(OPENINGS)])


def _loads(bench: Bench, folder: Path, rate: Rate, burst_s: float) -> Iterator[tuple[bool, float]]:
    """Loads, each with whether it counts and the latency of 19 of 20 requests."""
    assert rate.rate_per_s is not None
    per_s, fewest = SHARE * rate.rate_per_s.value, DRIFT * rate.capacity_per_s.value

    def is_as_fast() -> bool:
        return median(burst.per_s for burst in bench.closed_loop([folder], burst_s, 3)[0]) >= fewest

    for _ in range(MOST_LOADS):
        before = is_as_fast()
        latency_s = float(np.percentile(bench.open_loop(folder, per_s, max(1000, int(3.0 * per_s))), 95.0))
        yield before and is_as_fast(), latency_s


def main() -> int:
    """Measure what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=NETWORKS)
    parser.add_argument("--max-error", default="1%")
    parser.add_argument("--effort", type=float, default=1.0)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    asked = parser.parse_args()
    kept = Kept(CACHE / "rate_limit.jsonl", Row, again=asked.again)
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
    head = ["network", "limit", "chosen", "requests/s", "÷ ONNX Runtime's", "capacity ÷ float's best way"]
    text = markdown([*head, "loads within the limit", "optimize"], [cells(row) for row in kept.rows])
    show("rate_limit", {"rows": [asdict(row) for row in kept.rows]}, text, as_json=asked.json)
    return 0


def cells(row: Row) -> list[str]:
    """A line of the table."""
    over = f"{row.rate.value / row.base_rate_per_s:.2f}" if row.base_rate_per_s else "no rate keeps it"
    loads = f"{row.kept} of {len(row.p95_s)}" + (f" ({row.repeated} repeated)" if row.repeated else "")
    return [
        row.network, f"{row.limit_s * 1e3:.3g} ms", row.chosen, f"{row.rate.value:.4g}", over, str(row.to_float), loads,
        f"{row.seconds:.0f} s",
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
