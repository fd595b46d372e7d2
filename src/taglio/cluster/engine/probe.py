"""Measure links with real tensors over the data path of requests. Plans nothing.

A tensor goes to another device and a few bytes come back, timed by the sender's clock, so that no clocks are compared:
only the way there depends on the size, and both latencies are assumed equal. Latency includes the engine's own time per
hop, and a minimal component at its end: a device that gets a message runs a component next, and on a device that was
idle even the smallest takes a while.

Several small tensors sent at once show how much later each arrives than the one before.
"""

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import median
from typing import Any

import numpy as np
from onnx.parser import parse_model

from taglio.cluster.devices import Cluster, Link
from taglio.cluster.engine.connect import Connection, on, refusal
from taglio.cluster.engine.library import ray
from taglio.cluster.engine.parcel import Parcel
from taglio.cluster.engine.resident import Resident
from taglio.progress import Progress, reported
from taglio.runtimes.onnxruntime import SessionOptions, open_session

SIZES = (1_000, 10_000, 100_000, 400_000, 1_600_000, 4_000_000)
_RUNS, _FEWEST, _WARMUP, _FEWEST_SIZES = 15, 4, 3, 3
_BUDGET_S = 4.0
_PATIENCE_S = 60.0
_RESAMPLES = 200
# Small tensors that are sent at once.
_TOGETHER = 5
# Bandwidth above this is indistinguishable from a copy within a process.
_FASTEST_BYTES_PER_S = 1.25e11
_FEW = 8
_SMALLEST = f"""<ir_version: 8, opset_import: ["" : 13]>
    smallest (uint8[{_FEW}] x) => (float[{_FEW}] y) <float scale = {{1.0}}> {{ y = DequantizeLinear (x, scale) }}"""


@dataclass(frozen=True, slots=True)
class Spread:
    """A fitted value with the 5th and 95th percentile of fits to resampled measurements."""

    low: float
    value: float
    high: float


@dataclass(frozen=True, slots=True)
class LinkProbe:
    """One direction. `planned` is the cluster file's link (None: it has none); `seconds` are median round-trip times by
    size in bytes. Messages arrive at least `gap_s` apart."""

    source: str
    target: str
    latency_s: Spread
    bandwidth_bytes_per_s: Spread
    gap_s: float
    seconds: Mapping[int, float]
    planned: Link | None

    def link(self) -> Link:
        """The link as measured, with its energy from the file."""
        joules = self.planned.joules_per_byte if self.planned is not None else 0.0
        latency_s, speed = self.latency_s.value, self.bandwidth_bytes_per_s.value
        return Link(self.source, self.target, speed, latency_s, joules, min(self.gap_s, latency_s))


class Echo(Resident):
    """One end of a link being measured. Made an actor by `probe`."""

    def __init__(self) -> None:
        super().__init__()
        self._session = open_session(parse_model(_SMALLEST), SessionOptions(1))

    def there(self, parcel: Parcel) -> int:
        """Receive a tensor; returns its bytes."""
        tensor = parcel.tensors["tensor"]
        self._run(tensor)
        return int(tensor.nbytes)

    def seconds(self, other: Any, size: int, runs: int, together: int = 1) -> list[float]:
        """Seconds until the actor `other` (None: this process) has replied to a tensor of `size` bytes, or to
        `together` tensors sent back to back; `runs` measurements."""
        tensor = np.zeros(size, np.uint8)
        times_s = []
        for index in range(runs):
            start = time.monotonic()
            parcels = [Parcel(index, number, self.device, {"tensor": tensor}) for number in range(together)]
            if other is None:
                for parcel in parcels:
                    self.there(parcel)
            else:
                ray().get([other.there.remote(parcel) for parcel in parcels])
                self._run(tensor)
            times_s.append(time.monotonic() - start)
        return times_s

    def _run(self, tensor: np.ndarray) -> None:
        self._session.run(None, {"x": tensor[:_FEW]})


def probe(connection: Connection, cluster: Cluster, progress: Progress | None = None) -> list[LinkProbe]:
    """Probes of every link of `cluster` and of each device's loopback; not of devices that are declared to be like
    another. Raises BadDevice for a missing device."""
    library = ray()
    names = [device.name for device in cluster.devices if not device.like]
    connection.need(names)
    pairs = [(a, b) for a, b in itertools.product(names, names) if a == b or cluster.link(a, b) is not None]
    actor = library.remote(num_cpus=0, max_restarts=0)(Echo)
    probes = []
    for a, b in reported(pairs, "probing", progress):
        ends = {name: actor.options(**on(name)).remote() for name in dict.fromkeys((a, b))}
        try:
            samples = _measure(ends[a], ends[b] if a != b else None)
            gap_s = _gap_s(ends[a], ends[b]) if a != b else 0.0
        except Exception as error:
            raise refusal(b, error) from None
        given = next((link for link in cluster.links if (link.source, link.target) == (a, b)), None)
        probes.append(fitted(a, b, samples, given, gap_s))
    return probes


def _measure(source: Any, target: Any) -> dict[int, list[float]]:
    """Seconds by size, for as many sizes and runs as the budget allows. All sizes share it: otherwise small ones would
    use it up on a slow link and tell nothing about its bandwidth."""
    samples: dict[int, list[float]] = {}
    run_s = min(_got(source.seconds.remote(target, SIZES[0], _WARMUP)))
    left_s = _BUDGET_S
    for index, size in enumerate(SIZES):
        run_s = _guess(samples, size) if samples else run_s
        if len(samples) >= _FEWEST_SIZES and _FEWEST * run_s > left_s:
            break
        share_s = left_s / (len(SIZES) - index)
        runs = max(_FEWEST, min(_RUNS, int(share_s / max(run_s, 1e-9))))
        samples[size] = _got(source.seconds.remote(target, size, runs))
        left_s -= sum(samples[size])
    return samples


def _gap_s(source: Any, target: Any) -> float:
    """Seconds between the arrivals of small tensors that are sent at once."""
    alone, several = (_got(source.seconds.remote(target, SIZES[0], _RUNS, together)) for together in (1, _TOGETHER))
    return float(max(median(several) - median(alone), 0.0) / (_TOGETHER - 1))


def _got(answer: Any) -> Any:
    return ray().get(answer, timeout=_PATIENCE_S)


def _guess(samples: Mapping[int, Sequence[float]], size: int) -> float:
    """Estimated seconds for a larger tensor."""
    if len(samples) < 2:
        return median(samples[max(samples)])
    latency_s, byte_s = _line({size_bytes: median(times_s) for size_bytes, times_s in samples.items()})
    return latency_s + size * byte_s


def fitted(
    source: str, target: str, samples: Mapping[int, Sequence[float]], planned: Link | None, gap_s: float = 0.0
) -> LinkProbe:
    """Latency and bandwidth from seconds by size: a line fitted to the medians."""
    medians = {size: median(times_s) for size, times_s in samples.items()}
    draw = np.random.default_rng(0)
    again = [
        {size: float(np.median(draw.choice(times_s, len(times_s)))) for size, times_s in samples.items()}
        for _ in range(_RESAMPLES)
    ]
    lines = [_line(medians_s) for medians_s in (medians, *again)]
    back = 1.0 if source == target else 0.5  # within one process there is no way back over a wire
    latencies = [back * line[0] for line in lines]
    speeds = [_speed(line[1]) for line in lines]
    return LinkProbe(source, target, _spread(latencies), _spread(speeds), gap_s, medians, planned)


def _line(seconds: Mapping[int, float]) -> tuple[float, float]:
    """Seconds at 0 bytes, and seconds per byte, neither negative: the line of least absolute relative errors, which a
    single delayed size does not move. Such a line goes through two of the points, or through one along an axis."""
    points = sorted(seconds.items())
    lines = [(time_s, 0.0) for _, time_s in points] + [(0.0, time_s / size) for size, time_s in points]
    for (size, time_s), (larger, longer_s) in itertools.combinations(points, 2):
        slope = (longer_s - time_s) / (larger - size)
        lines.append((time_s - slope * size, slope))
    able = [line for line in lines if min(line) >= 0.0]
    return min(able, key=lambda line: sum(abs((line[0] + line[1] * size) / time_s - 1.0) for size, time_s in points))


def _speed(byte_s: float) -> float:
    return min(1.0 / byte_s if byte_s > 0.0 else inf, _FASTEST_BYTES_PER_S)


def _spread(values: Sequence[float]) -> Spread:
    low, high = np.quantile(values[1:], (0.05, 0.95))
    return Spread(float(low), values[0], float(high))


def measured(cluster: Cluster, probes: Sequence[LinkProbe]) -> Cluster:
    """The cluster with the links as measured."""
    for probe in probes:
        cluster = cluster.with_link(probe.link())
    return cluster
