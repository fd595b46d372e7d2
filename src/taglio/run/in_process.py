"""Run components one after another in this process and time them, or the steps of a session, beside the float model.
Plans and cuts nothing."""

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from taglio.components.build import Manifest
from taglio.deploy.verify import Compute, taking_turns
from taglio.errors import BadData, MeasurementFailed
from taglio.profile.rounds import turns
from taglio.profile.wall_time import WallTime, summarize
from taglio.progress import Progress, reported
from taglio.runtimes.onnxruntime import NAME, SessionOptions
from taglio.runtimes.places import require_here
from taglio.runtimes.session import Session, opener, why_failed

WARMUP = 3


@dataclass(frozen=True, slots=True)
class PieceTime:
    """Seconds of one component."""

    component: str
    device: str
    wall: WallTime


@dataclass(frozen=True, slots=True)
class RunReport:
    """Times of `runs` inferences of the plan, interleaved with the float model on the same inputs.

    `predicted_s` is the plan's prediction; for a cluster plan run in one process (`here`) it is predicted for this
    machine, without links. `drift` is the float model's time now over its time in the profile, to separate a change of
    the machine's speed from a wrong prediction: `ratio` = predicted / measured, `steady_ratio` the same corrected for
    drift. The prediction is for the runtime of the profile (`profiled_in`): if `runtime` is another, the ratios compare
    the two runtimes. `note` says why answers here may differ from those on the processor of the profile.
    """

    plan: WallTime
    float32: WallTime
    components: tuple[PieceTime, ...]
    predicted_s: float
    drift: float
    ratio: float
    steady_ratio: float
    plan_sha256: str = ""
    runtime: str = NAME
    here: bool = False
    profiled_in: str = NAME
    note: str = ""


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


class Executor:
    """Open sessions for the components of a manifest."""

    def __init__(self, folder: Path, manifest: Manifest, options: SessionOptions, runtime: str | None = None) -> None:
        """Open each component in the runtime named by the manifest, or all in `runtime`, for `options.at_once` runs at
        once. Raises BadOption if this machine does not have the runtime."""
        self.manifest, self._options = manifest, options
        self._names = frozenset(manifest.inputs)
        self._without_states = manifest.without_states()[1]
        self._pieces: list[_OpenPiece] = []
        for piece in manifest.pieces:
            place = runtime or piece.runtime
            require_here(place, f"{folder / piece.file}")
            inputs, outputs = ([port.name for port in ports] for ports in (piece.inputs, piece.outputs))
            compute = _opened(folder / piece.file, place, options, outputs)
            self._pieces.append(_OpenPiece(piece.name, compute, inputs, outputs))
        first = self._pieces[0]
        self._whole = first if (first.inputs, first.outputs) == ([*manifest.inputs], [*manifest.outputs]) else None
        self.runtime = runtime or manifest.pieces[0].runtime

    def beside(self, float_model: Path) -> Session:
        """The float model, opened as the first component is."""
        return opener(self.runtime)(float_model, self._options)

    def step(
        self, feed: Mapping[str, np.ndarray], states: Mapping[str, np.ndarray] | None
    ) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
        """The outputs that are not states, and the new states by input name; `states` are those of the previous step
        (None: this is the first)."""
        before = {state.past: state.first() for state in self.manifest.states} if states is None else states
        outputs = dict(zip(self.manifest.outputs, self.run({**feed, **before}), strict=True))
        after = {state.past: outputs[state.present] for state in self.manifest.states}
        return [outputs[name] for name in self._without_states], after

    def run(self, feed: Mapping[str, np.ndarray], seconds: dict[str, float] | None = None) -> list[np.ndarray]:
        """The model's outputs for one feed; if `seconds` is given, each component's time is added to it. May be called
        from several threads at once."""
        if self._whole is not None and seconds is None and feed.keys() == self._names:
            return self._whole.compute(feed)
        tensors = self.tensors(feed, seconds)
        return [tensors[name] for name in self.manifest.outputs]

    def tensors(self, feed: Mapping[str, np.ndarray], seconds: dict[str, float] | None = None) -> dict[str, np.ndarray]:
        """The inputs, outputs and tensors between components for one feed, by name; `seconds` as for `run`."""
        for name in self.manifest.inputs:
            if name not in feed:
                raise BadData(f"input {name} is missing: the model reads {', '.join(self.manifest.inputs)}")
        tensors = dict(feed)
        for piece in self._pieces:
            start = time.perf_counter()
            values = piece.compute({name: tensors[name] for name in piece.inputs})
            if seconds is not None:
                seconds[piece.name] = seconds.get(piece.name, 0.0) + time.perf_counter() - start
            tensors.update(zip(piece.outputs, values, strict=True))
        return tensors


def _opened(path: Path, place: str, options: SessionOptions, outputs: list[str]) -> Compute:
    """What computes the `outputs` of the model at `path`, for as many runs at once as `options` say. In ONNX Runtime, a
    run of one thread computes in its caller's, so one session serves all callers and holds the weights once; runs of
    several threads have a session with a pool of threads each."""
    sessions = options.at_once if place == NAME and options.threads > 1 else 1
    computes = [partial(opener(place)(path, options).run, outputs) for _ in range(sessions)]
    return computes[0] if sessions == 1 else taking_turns(computes)


@dataclass(frozen=True, slots=True)
class _OpenPiece:
    """A component's name, what computes it, and the tensors that it reads and writes."""

    name: str
    compute: Compute
    inputs: list[str]
    outputs: list[str]


@contextmanager
def _failures_named(what: str) -> Iterator[None]:
    """Turn a runtime's failure into a MeasurementFailed of one line, which begins with `what`."""
    try:
        yield
    except BadData:
        raise
    except Exception as error:
        raise MeasurementFailed(f"{what}: {why_failed(error)}") from None


def time_plan(
    executor: Executor,
    float_model: Path,
    feeds: Sequence[Mapping[str, np.ndarray]],
    runs: int,
    *,
    predicted_s: float,
    profiled_s: float | None = None,
    progress: Progress | None = None,
) -> RunReport:
    """Time about `runs` inferences of the plan and of the float model alternately over `feeds`. If the feeds differ in
    shape, one of each is timed together, and the time of an inference is their mean. `predicted_s` is the plan's
    prediction, and `profiled_s` the float model's time in the profile, if it was profiled in the plan's runtime."""
    reference = executor.beside(float_model)
    plan_s: list[float] = []
    float_s: list[float] = []
    parts: dict[str, list[float]] = {}
    order = random.Random(0)
    feeds_of_runs = turns(feeds)
    at_once = len(feeds_of_runs[0])
    rounds = -(-runs // at_once)
    for index in reported(range(rounds + WARMUP), "running", progress):
        round_feeds = feeds_of_runs[index % len(feeds_of_runs)]
        for which in order.sample(("plan", "float"), 2):
            seconds: dict[str, float] = {}
            start = time.perf_counter()
            with _failures_named(f"the {which} failed in run {index + 1}"):
                for feed in round_feeds:
                    if which == "plan":
                        executor.run(feed, seconds)
                    else:
                        reference.run(None, dict(feed))
            took = (time.perf_counter() - start) / at_once
            if index >= WARMUP:
                (plan_s if which == "plan" else float_s).append(took)
                for name, value in seconds.items():
                    parts.setdefault(name, []).append(value / at_once)

    def wall(samples: Sequence[float], apart: Sequence[float] | None = None) -> WallTime:
        return replace(summarize(samples, apart), runs=len(samples) * at_once)

    pair_s = [sum(pair) for pair in zip(plan_s, float_s, strict=True)]
    plan, reference_time = wall(plan_s, pair_s), wall(float_s, pair_s)
    drift = reference_time.steady_s / profiled_s if profiled_s else 1.0
    times = tuple(PieceTime(piece.name, piece.device, wall(parts[piece.name])) for piece in executor.manifest.pieces)
    ratio, made_from = predicted_s / plan.steady_s, executor.manifest.plan_sha256
    return RunReport(
        plan, reference_time, times, predicted_s, drift, ratio, ratio * drift, made_from, runtime=executor.runtime
    )


def time_steps(
    executor: Executor,
    float_model: Path,
    feeds: Sequence[Mapping[str, np.ndarray]],
    steps: int,
    *,
    predicted_s: float,
    progress: Progress | None = None,
) -> StepsReport:
    """Run `steps` steps over `feeds`, starting over if there are fewer feeds."""
    manifest, reference = executor.manifest, executor.beside(float_model)
    names = manifest.without_states()[1]
    ours: dict[str, np.ndarray] | None = None
    theirs = {state.past: state.first() for state in manifest.states}
    plan_s: list[float] = []
    float_s: list[float] = []
    error_squares, exact_squares = np.zeros((steps, len(names))), np.zeros((steps, len(names)))
    for index in reported(range(steps), "stepping", progress):
        feed = feeds[index % len(feeds)]
        with _failures_named(f"step {index + 1} failed"):
            begun = time.perf_counter()
            outputs, ours = executor.step(feed, ours)
            between = time.perf_counter()
            float_values = reference.run(manifest.outputs, {**feed, **theirs})
            float_outputs = dict(zip(manifest.outputs, float_values, strict=True))
            ended = time.perf_counter()
        plan_s.append(between - begun)
        float_s.append(ended - between)
        theirs = {state.past: float_outputs[state.present] for state in manifest.states}
        for column, (name, value) in enumerate(zip(names, outputs, strict=True)):
            exact = np.asarray(float_outputs[name], np.float64)
            error_squares[index, column] = ((np.asarray(value, np.float64) - exact) ** 2).sum()
            exact_squares[index, column] = (exact**2).sum()
    pair_s = [sum(pair) for pair in zip(plan_s, float_s, strict=True)]
    late = slice(-max(1, steps // 10), None)
    return StepsReport(
        steps,
        summarize(plan_s, pair_s),
        summarize(float_s, pair_s),
        predicted_s,
        _relative(error_squares, exact_squares),
        _relative(error_squares[late], exact_squares[late]),
        sum(value.nbytes for value in (ours or {}).values()),
        executor.runtime,
    )


def _relative(off: np.ndarray, whole: np.ndarray) -> float:
    """The largest relative L2 among the outputs."""
    return float(np.sqrt(off.sum(axis=0) / np.maximum(whole.sum(axis=0), 1e-30)).max())
