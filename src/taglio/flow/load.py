"""Put the delivered model under load on this machine, in its way: its capacity, then requests that come at random.
Chooses no way and judges no promise."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from taglio.confirm.bench import Bench
from taglio.data.dataset import Sample
from taglio.deploy.folder import read
from taglio.deploy.write import read_samples
from taglio.errors import BadOption, plural
from taglio.flow import workspace
from taglio.flow.confirm import raced_inputs
from taglio.flow.outcome import Outcome
from taglio.progress import Progress
from taglio.runtimes.way import Way
from taglio.transaction import held
from taglio.ways.demand import Demand
from taglio.ways.loaded import P95_REQUESTS, P99_REQUESTS, loaded
from taglio.ways.result import Load, Rate

# The longest time of the whole measurement, and of the capacity in it, which is the median of so many bursts.
_SECONDS, _CAPACITY_S = 60.0, 15.0
_BURSTS, _BURST_S = 5, 0.5
# Fewer requests have no median worth the name.
_FEWEST = 5


@dataclass(frozen=True, slots=True)
class LoadReport:
    """A delivered model under load, in its `way` and the package `runtime`.

    `capacity_per_s` is the median of `bursts_per_s`: items per second while as many callers as run at once ask again as
    soon as they are answered. `promised` is what optimize reported of the rate; None if it optimised for latency.
    `notes` say what the figures leave out.
    """

    runtime: str
    way: Way
    capacity_per_s: float
    bursts_per_s: tuple[float, ...]
    load: Load
    promised: Rate | None
    notes: tuple[str, ...]


def load(folder: Path, demand: Demand, progress: Progress | None = None) -> LoadReport:
    """The capacity of the model in the workspace `folder` as it was delivered, and its latency under `demand`, within a
    minute.

    Raises BadArtifact if nothing was delivered or a file has changed, BadOption for a model for several devices or for
    too few requests a second, and MeasurementFailed if the model cannot be run.
    """
    with held(folder):
        delivered = read(folder / workspace.DEPLOY)
        if len(delivered.devices) > 1:
            count = plural(len(delivered.devices), "device")
            raise BadOption(f"`load` is for one machine, but {delivered.folder} is for {count}: leave it out")
        with Bench(_inputs(folder)) as bench:
            bench.open([delivered.folder])
            end_s = time.perf_counter() + _SECONDS
            bursts = _bursts(bench, delivered.folder, progress)
            capacity_per_s = median(bursts)
            share, per_s = demand.at(capacity_per_s)
            left_s = end_s - time.perf_counter()
            _refuse_few(per_s, share, left_s)
            result = loaded(bench, delivered.folder, per_s, share, left_s)
        if progress is not None:
            progress("load", _BURSTS + 1, _BURSTS + 1)
        runtime = delivered.components[0].runtime
        way = delivered.way
        outcome = workspace.load_if_present(folder, workspace.OUTCOME, Outcome)
        promised = None if outcome is None else outcome.rate
        return LoadReport(runtime, way, capacity_per_s, bursts, result, promised, _notes(result, left_s))


def _inputs(folder: Path) -> Sequence[Sample]:
    """The inputs delivered, else held-out ones of the workspace."""
    return read_samples(folder / workspace.DEPLOY) or raced_inputs(workspace.reopen(folder))


def _bursts(bench: Bench, folder: Path, progress: Progress | None) -> tuple[float, ...]:
    """Items per second of up to _BURSTS bursts: of a slow model, of as many as begin within _CAPACITY_S."""
    end_s, bursts = time.perf_counter() + _CAPACITY_S, list[float]()
    while len(bursts) < _BURSTS and (not bursts or time.perf_counter() < end_s):
        if progress is not None:
            progress("load", len(bursts), _BURSTS + 1)
        ((burst,),) = bench.closed_loop([folder], _BURST_S, 1)
        bursts.append(burst.per_s)
    return tuple(bursts)


def _refuse_few(per_s: float, share: float, seconds: float) -> None:
    count = int(per_s * seconds / max(1.0, share))
    if count < _FEWEST:
        fix = f"give {2 * _FEWEST / seconds:.2g}/s or more" if share < 1.0 else "the model is too slow here"
        raise BadOption(f"`load`: {per_s:.3g} requests/s are {count} in {seconds:.0f} s (at least {_FEWEST}): {fix}")


def _notes(result: Load, seconds: float) -> tuple[str, ...]:
    notes = []
    if result.share >= 1.0:
        notes.append(
            f"{result.per_s:.4g} requests/s are {result.share:.3g} times the capacity: the queue grows as long as they "
            f"come, so the latencies are those of the first {result.requests:,} requests only"
        )
    needs = {"p95": (result.p95_s, P95_REQUESTS), "p99": (result.p99_s, P99_REQUESTS)}
    absent = [f"{name} (needs {count:,} requests)" for name, (value, count) in needs.items() if value is None]
    if absent:
        notes.append(f"left out: {', '.join(absent)}: {result.requests:,} fit into the remaining {seconds:.0f} s")
    return tuple(notes)
