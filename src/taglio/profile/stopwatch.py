"""Time several models side by side: wall seconds, and seconds per kernel. Does not attribute kernels.

1. Models are opened together, as many as fit in memory. Each runs a few times, which shows how long a run takes, and
   from that and the budget follows the schedule (effort.py).
2. Wall seconds are taken in interleaved rounds (rounds.py), so that changes of the machine's speed affect all alike. A
   model that is deployed finds the processor's caches as its last run left them; here another model ran before. So a
   fast model first runs without being timed: for MiniLM in bfloat16 the first run takes 1.7 ms, the fourth and all
   later ones 1.0. A sample is the median of its next runs, since a single one is often disturbed. If runs scatter under
   a quota, it is the mean of a stretch of runs (wall_time.py says why). The speed of a round is then removed from its
   samples: what counts is how models compare.
3. Kernels are recorded afterwards, because that slows a run, one model after another: what counts is the share of each
   kernel in its own model's run (fit.py).

Models that are too slow for a few rounds are opened, timed in one run, and closed, one after another. Their kernels are
recorded in the same run.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from math import inf

import onnx

from taglio.cores import quota
from taglio.errors import MeasurementFailed
from taglio.memory import EVENTS, make_room, trim
from taglio.model.inputs import Feed
from taglio.profile.busy import BusyWatch, kept, others_in
from taglio.profile.effort import Effort, Schedule
from taglio.profile.kernels import KernelRecorder, OnnxRuntimeRecorder, has_bodies, without_recording
from taglio.profile.openvino_clock import OpenVinoRecorder
from taglio.profile.rounds import interleave, run_for, run_once, turns
from taglio.profile.sessions import FittingSessions, ModelFile
from taglio.profile.wall_time import STRETCH_S, WallTime, scatter, summarize, without_drift
from taglio.progress import Progress, reported
from taglio.runtimes.onnxruntime import NAME, Optimization, SessionOptions
from taglio.runtimes.session import Session
from taglio.scratch import scratch

# ONNX Runtime's profiler holds an event of about this size for every kernel that ran, until the session ends: a network
# of 4 MB took 2.7 GB. If they would exceed 500 MB, kernels are recorded in fewer runs, but at least in twelve.
_EVENT_BYTES = 2500
# A served model gets a new input each time, which no cache holds: with a single input, times were 5 % too short.
FEEDS = 4

Build = Callable[[], onnx.ModelProto]
# The error of an open model. Raises BadData for inputs that it cannot run.
Loss = Callable[[Session], float]


@dataclass(frozen=True, slots=True, eq=False)
class Timed:
    """One timed model: the graph that ran, its wall time, and median seconds per kernel by node name.

    `others` is the share of the processors that other programs used meanwhile (busy.py). `loss` was measured in the
    same session.
    """

    optimized: onnx.ModelProto
    wall: WallTime
    kernels: dict[str, float]
    others: float = 0.0
    loss: float | None = None

    def times(self, factor: float) -> "Timed":
        """The same with all times multiplied by `factor`."""
        kernels = {name: seconds * factor for name, seconds in self.kernels.items()}
        return replace(self, wall=self.wall.times(factor), kernels=kernels)


@dataclass(frozen=True, slots=True, eq=False)
class Timings:
    """The models that were `timed`, and why others were `refused`, by name."""

    timed: dict[str, Timed]
    refused: dict[str, str]

    def all(self) -> dict[str, Timed]:
        """The times of all models. Raises MeasurementFailed if one was refused."""
        for name, reason in self.refused.items():
            raise MeasurementFailed(f"{name}: {reason}")
        return self.timed


@dataclass(frozen=True, slots=True, eq=False)
class Stopwatch:
    """Times models on `feeds`, in sessions with `options`, of which as many are open at once as keep this process under
    `limit_bytes` (None: no limit). If feeds differ in shape, times are the mean over all of them."""

    feeds: Sequence[Feed]
    options: SessionOptions
    limit_bytes: int | None = None
    progress: Progress | None = None

    def time(
        self,
        models: Mapping[str, Build],
        effort: Effort,
        *,
        kernels: bool = False,
        places: Mapping[str, SessionOptions] | None = None,
        loss: Loss | None = None,
    ) -> Timings:
        """Time every model, each of which is built when it is needed.

        Models are opened from their files as they are deployed, with the options of `places`, if given. With `kernels`
        each kernel is timed too. ONNX Runtime then optimises every model once, offline, and the saved graph is what
        runs and what kernel names refer to. Other runtimes time their own compiled graphs, and `Timed.optimized` is the
        graph that was compiled.

        `loss` is measured in every session before its model is timed: sessions take long to open. A model that does not
        load or run, or of which `loss` raises a TaglioError, is refused. Raises BadModel if one cannot be optimised,
        and MeasurementFailed if one fails that has run before.
        """
        optimize, options = None, self.options
        if kernels and options.runtime == NAME:
            optimize, options = options, SessionOptions(options.threads, Optimization.NONE, options.spinning)
        options_of = dict.fromkeys(models, options) | dict(places or {})
        files = dict[str, ModelFile]()
        with scratch() as folder:
            for name, build in reported([*models.items()], "loading", self.progress):
                make_room(self.limit_bytes)
                path = folder / f"{len(files)}.onnx"
                files[name] = ModelFile.write(path, name, build(), options_of[name], optimize)
            sessions = FittingSessions(files, self.limit_bytes)
            timed = _Timing(self, effort, files, sessions, kernels, loss).timed()
        refused = {name: reason for name, reason in sessions.refused.items() if name not in timed}
        return Timings({name: timed[name] for name in models if name in timed}, refused)


@dataclass(frozen=True, slots=True, eq=False)
class _Timing:
    """One call of `Stopwatch.time`, with its models in files."""

    watch: Stopwatch
    effort: Effort
    files: Mapping[str, ModelFile]
    sessions: FittingSessions
    kernels: bool
    loss: Loss | None
    losses: dict[str, float] = field(default_factory=dict)
    # Open sessions that can record their kernels.
    recorders: dict[str, KernelRecorder] = field(default_factory=dict)

    @property
    def is_slow(self) -> bool:
        """Whether models are timed once, one after another."""
        return self.effort.is_slow(len(self.files))

    @property
    def turns(self) -> Sequence[Sequence[Feed]]:
        """The feeds of successive runs."""
        return turns(self.watch.feeds)

    @property
    def progress(self) -> Progress | None:
        """Where the rounds of a group are reported. For slow models only finished groups are reported, by `timed`."""
        return None if self.is_slow else self.watch.progress

    def timed(self) -> dict[str, Timed]:
        """The times of all models, in groups that fit in memory. The first model is timed in every group, and the drift
        that it shows is removed from the others; slow models are timed one at a time."""
        timed, first = dict[str, Timed](), ""
        while waiting := self._waiting(timed):
            names = [first, *waiting] if first else waiting
            sessions = self._open(names[:1] if self.is_slow else names)
            if first and [*sessions] == [first]:  # no memory for another beside it
                sessions.clear()
                sessions = self._open(self._waiting(timed))
            if not sessions:
                continue
            group = self._time(sessions)
            drift = timed[first].wall.median_s / group[first].wall.median_s if first in group else 1.0
            timed |= {name: group[name].times(drift) for name in waiting if name in group}
            if not self.is_slow:
                first = first or next(iter(group))
            elif self.watch.progress:
                self.watch.progress("timing", len(timed), len(self.files))
        return timed

    def _waiting(self, timed: Mapping[str, Timed]) -> list[str]:
        return [name for name in self.files if name not in timed and name not in self.sessions.refused]

    def _open(self, names: Sequence[str]) -> dict[str, Session]:
        return self.sessions.open(names, self._created, self._start)

    def _created(self, name: str) -> Session:
        """A session, one that can record its kernels if that does not slow the runs that are timed."""
        file = self.files[name]
        if self.kernels and file.options.runtime != NAME:
            self.recorders[name] = OpenVinoRecorder(file.path, file.options)
        elif self.kernels and self.is_slow and not has_bodies(file.graph()):  # recording slows a loop down
            self.recorders[name] = OnnxRuntimeRecorder(file.path, file.options, name)
        return self.recorders[name] if name in self.recorders else file.session(name)

    def _start(self, name: str, session: Session) -> None:
        """Measure the loss, and warm up, which shows what memory a session needs, or that it fails."""
        if self.loss is not None and name not in self.losses:
            self.losses[name] = self.loss(session)
        self._warm_up(name, session)

    def _warm_up(self, name: str, session: Session) -> None:
        for _ in range(self.effort.warmup(len(self.files))):
            run_once(name, session, self.turns[0])

    def _time(self, sessions: dict[str, Session]) -> dict[str, Timed]:
        """Time the models in `sessions`, within their share of the budget, and close these."""
        names, feeds, progress = [*sessions], self.turns, self.progress
        schedule = self._schedule(sessions)

        def after_round(done: int) -> None:
            if progress:
                progress("timing", done, schedule.rounds)

        began_s, worked_s, watch = time.perf_counter(), time.process_time(), BusyWatch()
        samples = interleave(sessions, feeds, schedule, watch, after_round)
        longest_s = _longest_s((time.process_time() - worked_s) / (time.perf_counter() - began_s), self.watch.options)
        sessions.clear()
        counted = kept(watch.windows, schedule.rounds if self.is_slow else self.effort.minimum)
        steady = without_drift({name: [samples[name][index] for index in counted] for name in names})
        others, timed = others_in(watch.windows, set(counted)), dict[str, Timed]()
        for name in reported(names, "timing kernels", progress if self.kernels else None):
            graph, wall = self.files[name].graph(), summarize(steady[name])
            runs = schedule.kernel_runs if longest_s is None else schedule.paused_runs
            seconds_of = self._kernels(name, graph, runs, longest_s) if self.kernels else {}
            kernels = without_recording(graph, seconds_of, wall.median_s)
            timed[name] = Timed(graph, wall, kernels, others, self.losses.get(name))
        self.recorders.clear()
        return timed

    def _schedule(self, sessions: Mapping[str, Session]) -> Schedule:
        """The schedule of the models in `sessions`, which run to show how long they take."""
        names, feeds = [*sessions], self.turns
        effort = replace(self.effort, budget_s=self.effort.budget_s * len(names) / len(self.files))
        if self.is_slow:
            for recorder in self.recorders.values():
                recorder.start()
            return effort.schedule(dict.fromkeys(names, effort.run_s), scatters=False)
        # A single run may be disturbed, and there would be too few rounds.
        runs_s = {name: min(run_once(name, session, feeds[0]) for _ in range(3)) for name, session in sessions.items()}
        turn_s = {name: len(feeds[0]) * seconds for name, seconds in runs_s.items()}
        if quota().share == inf:  # nothing pauses the process regularly: medians of many short runs are best
            return effort.schedule(turn_s, scatters=False)
        stretch = run_for(min(STRETCH_S, effort.budget_s), names[0], sessions[names[0]], cycle(feeds))
        return effort.schedule(turn_s, scatters=scatter(stretch))

    def _kernels(self, name: str, graph: onnx.ModelProto, runs: int, longest_s: float | None) -> dict[str, float]:
        """Seconds of each kernel: in the run that was timed, if it was recorded, or else in so many other `runs`."""
        recorder, feeds = self.recorders.pop(name, None), self.turns
        if recorder is None:
            trim()
            make_room(self.watch.limit_bytes)  # of a large model, one session fits at a time
            recorder = OnnxRuntimeRecorder(self.files[name].path, self.files[name].options, name)
            self._warm_up(name, recorder)
        if not recorder.is_started:
            recorder.start()
            room_bytes = min(500_000_000, EVENTS * (self.watch.limit_bytes or inf))
            most = int(room_bytes / max(1, _EVENT_BYTES * len(graph.graph.node) * len(feeds[0])))
            for turn in islice(cycle(feeds), min(runs, max(12, most))):
                run_once(name, recorder, turn)
        return recorder.kernels(graph, len(feeds[0]), longest_s)


def _longest_s(busy: float, options: SessionOptions) -> float | None:
    """The longest that a kernel runs between the pauses of a quota; None if none pauses this process, which was `busy`
    for that share of the time."""
    allowed, threads = quota(), options.threads
    is_paused = busy < 0.8 or (threads > allowed.share and busy > 0.9 * allowed.share)
    # The scheduler's tick lets a process exceed its quota.
    return 1.2 * allowed.used_s / threads if is_paused else None
