"""Run the steps of one session in this process, beside the float model; each step passes its states to the next. Plans
and cuts nothing."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from taglio.errors import BadData, MeasurementFailed, one_line
from taglio.profile.wall_time import WallTime, summarize
from taglio.progress import Progress, reported
from taglio.run.in_process import Executor
from taglio.runtimes.onnxruntime import SessionOptions
from taglio.runtimes.session import opener


@dataclass(frozen=True, slots=True)
class StepsReport:
    """Times and errors of `steps` steps of a session, and of the float model with its own states, one after the other.
    `error` is the largest relative L2 of an output that is not a state, over all steps; `late_error` the same over the
    last tenth of the steps, because states accumulate what int8 changes. `predicted_s` is for the shapes of the
    profile; states may grow."""

    steps: int
    plan: WallTime
    float32: WallTime
    predicted_s: float
    error: float
    late_error: float
    state_bytes: int
    runtime: str

    @property
    def rate_per_s(self) -> float:
        """Steps per second."""
        return 1.0 / self.plan.mean_s


def time_steps(
    executor: Executor,
    float_model: Path,
    feeds: Sequence[Mapping[str, np.ndarray]],
    options: SessionOptions,
    steps: int,
    *,
    predicted_s: float,
    progress: Progress | None = None,
) -> StepsReport:
    """Run `steps` steps over `feeds`, starting over if there are fewer feeds."""
    manifest = executor.manifest
    bfloat16 = executor.pieces()[0].bfloat16
    reference = opener(executor.runtime)(float_model, replace(options, bfloat16=bfloat16))
    names = manifest.without_states()[1]
    ours: dict[str, np.ndarray] | None = None
    theirs = {each.past: each.first() for each in manifest.states}
    plan_s: list[float] = []
    float_s: list[float] = []
    off, whole = np.zeros((steps, len(names))), np.zeros((steps, len(names)))
    for index in reported(range(steps), "stepping", progress):
        feed = feeds[index % len(feeds)]
        try:
            begun = time.perf_counter()
            found, ours = executor.step(feed, ours)
            between = time.perf_counter()
            wanted = dict(zip(manifest.outputs, reference.run(manifest.outputs, {**feed, **theirs}), strict=True))
            ended = time.perf_counter()
        except BadData:
            raise
        except Exception as error:
            raise MeasurementFailed(f"step {index + 1} failed: {one_line(error, 200)}") from None
        plan_s.append(between - begun)
        float_s.append(ended - between)
        theirs = {each.past: wanted[each.present] for each in manifest.states}
        for column, (name, value) in enumerate(zip(names, found, strict=True)):
            exact = np.asarray(wanted[name], np.float64)
            off[index, column] = ((np.asarray(value, np.float64) - exact) ** 2).sum()
            whole[index, column] = (exact**2).sum()
    both = [sum(each) for each in zip(plan_s, float_s, strict=True)]
    late = slice(-max(1, steps // 10), None)
    return StepsReport(
        steps,
        summarize(plan_s, both),
        summarize(float_s, both),
        predicted_s,
        _relative(off, whole),
        _relative(off[late], whole[late]),
        sum(value.nbytes for value in (ours or {}).values()),
        executor.runtime,
    )


def _relative(off: np.ndarray, whole: np.ndarray) -> float:
    """The largest relative L2 among the outputs."""
    return float(np.sqrt(off.sum(axis=0) / np.maximum(whole.sum(axis=0), 1e-30)).max())
