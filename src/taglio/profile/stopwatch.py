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
from taglio.profile import openvino_clock
from taglio.runtimes import openvino
from taglio.runtimes.onnxruntime import Optimization, SessionOptions, open_session
from taglio.runtimes.session import Session

Progress = Callable[[str, int, int], None]
_KERNEL_SUFFIX = "_kernel_time"


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure. Each model's wall time is taken in `minimum` to `maximum` rounds after `warmup`, within
    `budget_s` for all models where that leaves the minimum; its kernels' in half as many, no fewer than the minimum.
    """

    warmup: int = 1
    minimum: int = 3
    maximum: int = 120
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
    models: Mapping[str, Callable[[], onnx.ModelProto]],
    feed: Mapping[str, np.ndarray],
    options: SessionOptions,
    effort: Effort,
    *,
    kernels: bool,
    progress: Progress | None = None,
) -> dict[str, Timed]:
    """Time every model, interleaved; with `kernels` also each kernel.

    Each model is built when it is needed and optimised once, offline, at `options.optimization`; that saved graph is
    what runs and what the kernel names refer to. All models are live at once, since interleaving needs that; kernels
    are timed after the walls, in sessions of their own, because profiling slows the run. Raises MeasurementFailed when
    a model fails while running. Under another runtime than ONNX Runtime its own compiled graphs are timed, and
    `Timed.optimized` is the graph that was compiled.
    """
    if options.runtime == openvino.NAME:
        return _in_openvino(models, feed, options, effort, kernels=kernels, progress=progress)
    with tempfile.TemporaryDirectory() as folder:
        ready = SessionOptions(options.threads, Optimization.NONE, options.spinning)
        paths = {name: Path(folder) / f"{index}.onnx" for index, name in enumerate(models)}
        sessions = {}
        for index, (name, build) in enumerate(models.items()):
            open_session(build(), options, save_optimized=paths[name], label=name)
            sessions[name] = open_session(paths[name], ready, label=name)
            if progress:
                progress("loading", index + 1, len(models))
        rounds = _rounds(sessions, feed, effort)
        samples = _interleave(sessions, feed, rounds, lambda done: progress and progress("timing", done, rounds))
        sessions.clear()
        events: dict[str, dict[str, float]] = {}
        if kernels:
            for index, name in enumerate(models):
                prefix = Path(folder) / f"profile-{index}"
                sessions[name] = open_session(paths[name], ready, profile_prefix=prefix, label=name)
            again = effort.warmup + max(effort.minimum, rounds // 2)
            _interleave(sessions, feed, again, lambda done: progress and progress("timing kernels", done, again))
            for name, session in sessions.items():
                events[name] = _kernel_seconds(Path(session.end_profiling()), effort.warmup)
            sessions.clear()
        return {name: Timed(_skeleton(paths[name]), summarize(samples[name]), events.get(name, {})) for name in models}


def _in_openvino(
    models: Mapping[str, Callable[[], onnx.ModelProto]],
    feed: Mapping[str, np.ndarray],
    options: SessionOptions,
    effort: Effort,
    *,
    kernels: bool,
    progress: Progress | None,
) -> dict[str, Timed]:
    with tempfile.TemporaryDirectory() as folder:
        loading = lambda done: progress and progress("loading", done, len(models))  # noqa: E731
        graphs, sessions, paths = openvino_clock.compile_models(models, Path(folder), options, loading)
        rounds = _rounds(sessions, feed, effort)
        samples = _interleave(sessions, feed, rounds, lambda done: progress and progress("timing", done, rounds))
        sessions.clear()
        seconds: dict[str, dict[str, float]] = {}
        if kernels:
            counting = {name: openvino_clock.Counting(path, options) for name, path in paths.items()}
            again = effort.warmup + max(effort.minimum, rounds // 2)
            _interleave(counting, feed, again, lambda done: progress and progress("timing kernels", done, again))
            for name, each in counting.items():
                seconds[name] = openvino_clock.join(graphs[name], each.parts, each.seconds(effort.warmup))
        return {name: Timed(graphs[name], summarize(samples[name]), seconds.get(name, {})) for name in models}


def _interleave(
    sessions: Mapping[str, Session],
    feed: Mapping[str, np.ndarray],
    rounds: int,
    tell: Callable[[int], object],
) -> dict[str, list[float]]:
    """Wall seconds of `rounds` rounds, each running every session once in a fresh order."""
    samples: dict[str, list[float]] = {name: [] for name in sessions}
    order = list(sessions)
    shuffle = random.Random(0)
    for index in range(rounds):
        shuffle.shuffle(order)
        for name in order:
            samples[name].append(run_once(name, sessions[name], feed))
        tell(index + 1)
    return samples


def run_once(name: str, session: Session, feed: Mapping[str, np.ndarray]) -> float:
    """Wall seconds of one inference. Raises MeasurementFailed, naming `name`."""
    start = time.perf_counter()
    try:
        session.run(None, feed)
    except Exception as error:
        raise MeasurementFailed(f"{name}: failed while it was timed: {' '.join(str(error).split())[:200]}") from None
    return time.perf_counter() - start


def _skeleton(path: Path) -> onnx.ModelProto:
    """The graph without its weights, which nobody reads again and which are most of its size."""
    proto = onnx.load(path)
    del proto.graph.initializer[:]
    return proto


def _rounds(sessions: Mapping[str, Session], feed: Mapping[str, np.ndarray], effort: Effort) -> int:
    total = 0.0
    for _ in range(effort.warmup):
        total = sum(run_once(name, session, feed) for name, session in sessions.items())
    affordable = int(effort.budget_s / max(total, 1e-9))
    return max(effort.minimum, min(effort.maximum, affordable))


def _kernel_seconds(path: Path, warmup: int) -> dict[str, float]:
    durations: dict[str, list[float]] = {}
    for event in json.loads(path.read_text()):
        if event.get("cat") == "Node" and event["name"].endswith(_KERNEL_SUFFIX):
            durations.setdefault(event["name"][: -len(_KERNEL_SUFFIX)], []).append(event["dur"] * 1e-6)
    # The first runs allocate; it is not what a served model pays.
    return {name: median(values[warmup:] or values) for name, values in durations.items()}
