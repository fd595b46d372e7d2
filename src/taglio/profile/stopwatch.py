"""Time several models side by side. Does not attribute: it gives wall seconds and seconds per kernel.

Rounds are interleaved, each running every model once in a fresh order, so that a machine that changes speed
changes it for all; medians are kept, and the spread beside them.
"""

import json
import random
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import onnx

from taglio.errors import MeasurementFailed
from taglio.runtimes.onnxruntime import Optimization, SessionOptions, open_session

Progress = Callable[[str, int, int], None]
_KERNEL_SUFFIX = "_kernel_time"


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure. Each model runs `warmup` + between `minimum` and `maximum` rounds, within `budget_s`
    in all where that leaves the minimum."""

    warmup: int = 2
    minimum: int = 5
    maximum: int = 30
    budget_s: float = 20.0


@dataclass(frozen=True, slots=True)
class WallTime:
    """Seconds of one inference: median, median absolute deviation, 95th percentile, mean, and the count."""

    median_s: float
    deviation_s: float
    p95_s: float
    mean_s: float
    runs: int


@dataclass(frozen=True, slots=True, eq=False)
class Timed:
    """One model as it ran: the graph that ONNX Runtime executed, wall time, and median seconds per kernel by node
    name, measured in a session of its own because profiling slows the run."""

    optimized: onnx.ModelProto
    wall: WallTime
    kernels: dict[str, float]


def summarize(samples: Sequence[float]) -> WallTime:
    """Median, deviation, p95 and mean of wall seconds."""
    middle = median(samples)
    return WallTime(
        middle,
        median(abs(sample - middle) for sample in samples),
        float(np.percentile(samples, 95)),
        float(np.mean(samples)),
        len(samples),
    )


def time_models(
    models: Mapping[str, onnx.ModelProto],
    feed: Mapping[str, np.ndarray],
    options: SessionOptions,
    effort: Effort,
    *,
    kernels: bool,
    progress: Progress | None = None,
) -> dict[str, Timed]:
    """Time every model, interleaved; with `kernels` also each kernel.

    Each model is optimised once, offline, at `options.optimization`; that saved graph is what runs and what the
    kernel names refer to. Raises MeasurementFailed when a model fails while running.
    """
    with tempfile.TemporaryDirectory() as folder:
        ready = SessionOptions(options.threads, Optimization.NONE, options.spinning)
        sessions, profiled, graphs = {}, {}, {}
        for index, (name, proto) in enumerate(models.items()):
            path = Path(folder) / f"{index}.onnx"
            open_session(proto, options, save_optimized=path, label=name)
            graphs[name] = onnx.load(path)
            sessions[name] = open_session(path, ready, label=name)
            if kernels:
                prefix = Path(folder) / f"profile-{index}"
                profiled[name] = open_session(path, ready, profile_prefix=prefix, label=name)
            if progress:
                progress("loading", index + 1, len(models))
        rounds = _rounds(sessions, feed, effort, 2 if kernels else 1)
        samples: dict[str, list[float]] = {name: [] for name in models}
        order = list(models)
        shuffle = random.Random(0)
        for index in range(rounds):
            shuffle.shuffle(order)
            for name in order:
                samples[name].append(_run(name, sessions[name], feed))
                if kernels:
                    _run(name, profiled[name], feed)
            if progress:
                progress("timing", index + 1, rounds)
        events = {name: _kernel_seconds(Path(session.end_profiling())) for name, session in profiled.items()}
    return {name: Timed(graphs[name], summarize(samples[name]), events.get(name, {})) for name in models}


def _rounds(sessions: Mapping[str, object], feed: Mapping[str, np.ndarray], effort: Effort, factor: int) -> int:
    total = 0.0
    for _ in range(effort.warmup):
        total = sum(_run(name, session, feed) for name, session in sessions.items())
    affordable = int(effort.budget_s / max(total * factor, 1e-9))
    return max(effort.minimum, min(effort.maximum, affordable))


def _run(name: str, session: object, feed: Mapping[str, np.ndarray]) -> float:
    start = time.perf_counter()
    try:
        session.run(None, feed)  # type: ignore[attr-defined]
    except Exception as error:
        raise MeasurementFailed(f"{name}: failed while it was timed: {' '.join(str(error).split())[:200]}") from None
    return time.perf_counter() - start


def _kernel_seconds(path: Path) -> dict[str, float]:
    durations: dict[str, list[float]] = {}
    for event in json.loads(path.read_text()):
        if event.get("cat") == "Node" and event["name"].endswith(_KERNEL_SUFFIX):
            durations.setdefault(event["name"][: -len(_KERNEL_SUFFIX)], []).append(event["dur"] * 1e-6)
    # The first run allocates; it is not what a served model pays.
    return {name: median(values[1:] or values) for name, values in durations.items()}
