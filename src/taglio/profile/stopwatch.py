"""Time several models side by side: wall seconds, and seconds per kernel. Does not attribute kernels.

Rounds are interleaved: each runs every model in a new order, so that changes of the machine's speed affect all alike.
A model that is deployed finds the processor's caches as its last run left them; here another model ran before. So a
fast model first runs a few times without being timed: for MiniLM in bfloat16 the first run takes 1.7 ms, the fourth and
all later ones 1.0. If single runs scatter, a round runs every model for a stretch and keeps the mean (wall_time.py says
why).
"""

import random
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle
from math import inf
from pathlib import Path

import numpy as np
import onnx

from taglio.cores import quota
from taglio.errors import MeasurementFailed, TaglioError
from taglio.memory import EVENTS, groups_within, make_room, trim
from taglio.profile import openvino_clock
from taglio.profile.busy import PATIENCE, Watch, enough, kept, others_in
from taglio.profile.kernels import has_bodies, kernel_seconds, without_recording
from taglio.profile.refills import refills
from taglio.profile.sessions import Models
from taglio.profile.wall_time import STRETCH_S, WallTime, scatter, summarize
from taglio.progress import Progress
from taglio.runtimes import cuda
from taglio.runtimes.onnxruntime import NAME, Optimization, SessionOptions, open_session
from taglio.runtimes.session import Session, why_failed
from taglio.scratch import scratch

Feed = Mapping[str, np.ndarray]
# A process is paused if it works for less than this share of the time, or uses more than this share of its quota. Then
# this many runs show a kernel without a pause, unless it is longer than the quota, which the scheduler's tick may
# exceed by this factor.
_STARVED, _USED_UP, _UNPAUSED, _OVERRUN = 0.8, 0.9, 30, 1.2
# Factor on the budget that the minimum of rounds may take.
_PATIENCE = 6.0
# Runs per round of models that are run often.
_OFTEN = 3
# After so long without work a GPU is slow at first (an H100: 15 % in the first run, and up to three times in the first
# ten after models that kept all processors busy): a model then runs for this long before it is timed.
_ASLEEP_S, _AWAKE_S = 0.05, 0.3
# ONNX Runtime's profiler holds an event of about this size for every kernel that ran, until the session ends. Where
# those of all models would exceed _EVENTS_BYTES there are fewer rounds, but at least _SHOWN, and then fewer models at
# once.
_EVENT_BYTES, _EVENTS_BYTES, _SHOWN = 2500, 500_000_000, 12
# A served model gets a new input each time, which no cache holds: with a single input, times were 5 % too short.
FEEDS = 4


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure. Wall times take `minimum` to `maximum` rounds after `warmup` runs, within `budget_s` for all
    models if the minimum fits in it; kernel times take half as many rounds, but no fewer than the minimum.

    The first run allocates memory, and in ONNX Runtime the second, too, which plans its memory by the first: for
    yolo11s-seg each takes two to five times as long as later runs.
    """

    warmup: int = 2
    minimum: int = 3
    maximum: int = 120
    budget_s: float = 20.0

    @property
    def patience_s(self) -> float:
        """Seconds that the minimum of rounds may take; more than the budget, for models that run for seconds."""
        return _PATIENCE * self.budget_s

    def affordable(self, round_s: float) -> "Effort":
        """The effort if a round of all models takes `round_s`: reduced to one warm-up and one round if the minimum
        would exceed the patience. For a model that runs for seconds, allocation and scatter matter little."""
        if (self.warmup + 1 + 2 * self.minimum) * round_s <= self.patience_s:
            return self
        return replace(self, warmup=min(1, self.warmup), minimum=1)


@dataclass(frozen=True, slots=True, eq=False)
class Timed:
    """One timed model: the graph that ran, its wall time, and median seconds per kernel by node name.

    Kernels are measured in a separate session because profiling slows the run. `others` is the share of the processors
    that other programs used meanwhile (busy.py).
    """

    optimized: onnx.ModelProto
    wall: WallTime
    kernels: dict[str, float]
    others: float = 0.0

    def times(self, factor: float) -> "Timed":
        """The same with all times multiplied by `factor`."""
        kernels = {name: seconds * factor for name, seconds in self.kernels.items()}
        return replace(self, wall=self.wall.times(factor), kernels=kernels)


def time_models(
    models: Mapping[str, Callable[[], onnx.ModelProto]],
    feeds: Sequence[Feed],
    options: SessionOptions,
    effort: Effort,
    *,
    kernels: bool,
    often: Collection[str] = (),
    between: Callable[[], object] | None = None,
    progress: Progress | None = None,
    limit_bytes: int | None = None,
    places: Mapping[str, SessionOptions] | None = None,
    refused: dict[str, str] | None = None,
    once_s: float = 0.0,
    opened: Callable[[str, Session], object] | None = None,
) -> dict[str, Timed]:
    """Time every model on `feeds` in turn, interleaved; with `kernels` also each kernel.

    If feeds differ in shape, a run is one of each, and its time is their mean. Models in `often` run several times per
    round. `between` is called after each round of wall times.

    Each model is built when needed and optimised once, offline, at `options.optimization`; the saved graph is what runs
    and what kernel names refer to. All models are loaded at once, as interleaving requires, or as many as keep this
    process under `limit_bytes`: then the first is timed in every group, and the drift that it shows is removed from the
    others. Kernels are timed after wall times: in ONNX Runtime in separate sessions, because profiling slows the run;
    in OpenVINO, whose counters hardly do, in the same ones, because they take long to open. Raises MeasurementFailed if
    a model fails while running. In runtimes other than ONNX Runtime their own compiled graphs are timed, and
    `Timed.optimized` is the graph that was compiled.

    With `places`, model name -> options, each model is opened from its file as it is deployed, and no kernels are
    timed. With `refused`, a model that does not load or run is left out, and the reason is stored there.

    If a run is known to take `once_s`, and the effort's patience is too short for the minimum of rounds, models are
    timed once each, one after another, with the kernels of the same run unless there are loops.

    `opened` is called with each model's name and session before it is timed, for what else its answers tell: sessions
    take long to open. A TaglioError from it is one of the model. It is not called for models in ONNX Runtime that are
    timed once with their kernels.
    """
    as_it_is = options.runtime != NAME or places is not None
    ready = options if as_it_is else SessionOptions(options.threads, Optimization.NONE, options.spinning)
    with scratch() as folder:
        settings = dict.fromkeys(models, ready) | dict(places or {})
        given = None if as_it_is else options
        stored = Models.write(models, folder, settings, given, limit_bytes, refused, progress, must_fit=not kernels)
        timing = _Timing(
            models=stored,
            run=Run.of(feeds),
            ready=ready,
            effort=effort,
            kernels=kernels,
            often=often,
            between=between,
            progress=progress,
            opened=opened,
        )
        if effort.affordable(len(models) * once_s) is not effort:
            return timing.once_each(len(models) * once_s)
        first, found, out = next(iter(models)), dict[str, Timed](), refused if refused is not None else {}
        while waiting := [name for name in models if name not in found and name not in out]:
            sessions = timing.open([first, *waiting] if found else waiting)
            if found and [*sessions] == [first]:  # no memory for another beside it
                sessions.clear()
                sessions = timing.open([name for name in waiting if name not in out])
            if not sessions:
                continue
            if not found:
                first = next(iter(sessions))
            group = timing.time(sessions)
            if not found:
                reference = group[first]
            beside = group.get(first, reference)
            drift = reference.wall.median_s / beside.wall.median_s
            for name in (name for name in waiting if name in group):
                found[name] = group[name].times(drift)
    return {name: found[name] for name in models if name in found}


@dataclass(frozen=True, slots=True)
class Run:
    """The feeds of a timed run: one of `feeds`, a different one each time, or all of them (`at_once`) if shapes
    differ."""

    feeds: Sequence[Feed]
    at_once: int

    @classmethod
    def of(cls, feeds: Sequence[Feed]) -> "Run":
        """All feeds at once if their shapes differ."""
        several = len({tuple((name, np.shape(value)) for name, value in feed.items()) for feed in feeds}) > 1
        return cls(feeds, len(feeds) if several else 1)

    def turns(self) -> Sequence[Feed]:
        """The feeds for sessions from `open`, in turn."""
        return self.feeds if self.at_once == 1 else self.feeds[:1]

    def open(self, session: Session) -> Session:
        """`session`, or a wrapper whose run is a run on every feed."""
        return session if self.at_once == 1 else _AtOnce(session, self.feeds)


@dataclass(frozen=True, slots=True)
class _AtOnce:
    session: Session
    feeds: Sequence[Feed]

    def run(self, output_names: Sequence[str] | None, input_feed: Feed) -> list[np.ndarray]:
        del input_feed
        for feed in self.feeds:
            self.session.run(output_names, feed)
        return []


# From the graph that ran, the number of warm-up runs, the longest time without a pause (None: no quota pauses it), the
# runs that count, and the number of runs before each of them: the seconds of each kernel.
_Read = Callable[[onnx.ModelProto, int, float | None, Sequence[int], int], dict[str, float]]


@dataclass(frozen=True, slots=True, eq=False)
class _Timing:
    """The models and the arguments of `time_models`. Kernels are timed with `ready` options."""

    models: Models
    run: Run
    ready: SessionOptions
    effort: Effort
    kernels: bool
    often: Collection[str]
    between: Callable[[], object] | None
    progress: Progress | None
    opened: Callable[[str, Session], object] | None
    # Open sessions in OpenVINO that can count their kernels.
    clocks: dict[str, openvino_clock.Counting] = field(default_factory=dict)

    def open(self, names: Sequence[str]) -> dict[str, Session]:
        """Sessions of as many of these models as fit, warmed up where that shows what they need or that they fail."""
        models = self.models
        warmup = self.effort.warmup if models.limit_bytes is not None else models.refused is not None

        def start(name: str, created: Session) -> Session:
            self._tell(name, created)
            session = self.run.open(created)
            for _ in range(warmup):
                run_once(name, session, self.run.feeds[0])
            return session

        return models.open(names, self._created, start)

    def _created(self, name: str) -> Session:
        if self.kernels and self.ready.runtime != NAME:
            counting = self.clocks[name] = openvino_clock.Counting(self.models.paths[name], self.ready)
            return counting
        return self.models.session(name)

    def _tell(self, name: str, session: Session) -> None:
        if self.opened is not None:
            self.opened(name, session)

    def _session(self, name: str) -> Session:
        session = self._created(name)
        self._tell(name, session)
        return session

    def once_each(self, round_s: float) -> dict[str, Timed]:
        """Time every model by one run, after a warm-up if two rounds of `round_s` are within the patience."""
        warmup = int(2.0 * round_s <= self.effort.patience_s)
        found: dict[str, Timed] = {}
        for done, name in enumerate(self.models.paths):
            make_room(self.models.limit_bytes)
            try:
                self.models.require_room(name)
                found[name] = self._once(name, warmup)
            except TaglioError as error:
                self.models.refuse(name, error)
            self._after_round("timing", len(self.models.paths))(done + 1)
        return found

    def _once(self, name: str, warmup: int) -> Timed:
        graph, read, kernels = self.models.graph(name), None, dict[str, float]()
        # Recorded kernels slow a loop down, so that the run must be timed without them.
        apart = self.kernels and self.ready.runtime == NAME and has_bodies(graph)
        if self.kernels and not apart:
            session, read = self._counting(name)
        else:
            session = self._session(name)
        wall_s, watch = self._one_run(name, session, warmup)
        del session
        if apart:
            make_room(self.models.limit_bytes)
            session, read = self._counting(name)
            self._one_run(name, session, warmup)
        if read is not None:
            kernels = read(graph, warmup, None, [warmup], 0)
        self.clocks.clear()
        return _timed(graph, [wall_s], kernels, watch, self.effort)

    def _one_run(self, name: str, session: Session, warmup: int) -> tuple[float, Watch]:
        """Wall seconds of a run after `warmup` others, and what other programs did meanwhile."""
        feed, opened = self.run.feeds[0], self.run.open(session)
        for _ in range(warmup):
            run_once(name, opened, feed)
        watch = Watch()
        wall_s = run_once(name, opened, feed) / self.run.at_once
        watch.look(1, last=True)
        return wall_s, watch

    def time(self, sessions: dict[str, Session]) -> dict[str, Timed]:
        """Time the models in `sessions`, within their share of the budget, and close these."""
        names, feeds = [*sessions], self.run.turns()
        effort = replace(self.effort, budget_s=self.effort.budget_s * len(names) / len(self.models.paths))
        if effort.warmup:  # a first run shows how long runs take
            effort = effort.affordable(len(names) * run_once(names[0], sessions[names[0]], feeds[0]))
        least_s = stretch_s(sessions, feeds, effort)
        often = [name for name in self.often if name in sessions and effort.minimum > 1]
        plan = _rounds(sessions, feeds, effort, least_s, often)
        rounds, again = plan.walls, plan.kernels
        begun, before = time.perf_counter(), time.process_time()
        watch = Watch()
        after_round = self._after_round("timing", rounds)
        idle = [name for name in names if self.models.options[name].runtime in cuda.PLACES]
        samples = _interleave(
            sessions, feeds, rounds, after_round, least_s, often, idle, watch=watch, refills=plan.refills
        )
        busy = (time.process_time() - before) / (time.perf_counter() - begun)
        sessions.clear()
        if not self.clocks:
            trim()  # sessions that count kernels need other blocks of memory
            make_room(self.models.limit_bytes)  # of a large model, one session fits at a time
        graphs = {name: self.models.graph(name) for name in names}
        seconds: dict[str, dict[str, float]] = {}
        if self.kernels:
            allowed, threads = quota(), self.ready.threads
            pauses = busy < _STARVED or (threads > allowed.share and busy > _USED_UP * allowed.share)
            limit = _OVERRUN * allowed.used_s / threads if pauses else None
            warm = replace(effort, warmup=0) if self.clocks else effort
            seconds = self._kernels(graphs, warm, plan.paused if pauses else again, limit, plan.refills)
            self.clocks.clear()
        inferences = {name: [each / self.run.at_once for each in samples[name]] for name in names}
        return {name: _timed(graphs[name], inferences[name], seconds.get(name, {}), watch, effort) for name in names}

    def _kernels(
        self,
        graphs: Mapping[str, onnx.ModelProto],
        effort: Effort,
        rounds: int,
        longest_s: float | None,
        refills: Mapping[str, int],
    ) -> dict[str, dict[str, float]]:
        """Seconds of each kernel in `rounds` after warm-up, by model; models in groups whose events fit into their
        share of the memory limit."""
        found: dict[str, dict[str, float]] = {}
        # Of one round, which may be repeated if other programs disturb it.
        round_bytes = {
            name: PATIENCE * len(graph.graph.node) * (1 + refills[name]) * self.run.at_once * _EVENT_BYTES
            for name, graph in graphs.items()
        }
        affordable = int(_EVENTS_BYTES / max(1, sum(round_bytes.values())))
        rounds = effort.warmup + min(rounds, max(_SHOWN, affordable))
        room = min(_EVENTS_BYTES, EVENTS * (self.models.limit_bytes or inf))
        for group in groups_within(graphs, lambda name: rounds * round_bytes[name], room):
            counting = {name: self._counting(name) for name in group}
            seen = Watch()
            opened = {name: self.run.open(session) for name, (session, _) in counting.items()}
            after_round = self._after_round("timing kernels", rounds)
            _interleave(opened, self.run.turns(), rounds, after_round, watch=seen, refills=refills)
            counted = kept(seen.windows, effort.warmup + effort.minimum)
            found |= {
                name: read(graphs[name], effort.warmup, longest_s, counted, refills[name])
                for name, (_, read) in counting.items()
            }
            del counting, opened
            trim()
            make_room(self.models.limit_bytes)
        return found

    def _counting(self, name: str) -> tuple[Session, _Read]:
        """A session that counts the seconds of its kernels, and what reads them when it has run."""
        path, at_once = self.models.paths[name], self.run.at_once
        if self.ready.runtime != NAME:
            if name not in self.clocks:
                self._session(name)
            clock = self.clocks[name]
            clock.start()

            def parts(graph: onnx.ModelProto, warmup: int, _: object, __: object, refills: int) -> dict[str, float]:
                return openvino_clock.join(graph, clock.parts, clock.seconds(warmup, at_once, refills))

            return clock, parts
        session = open_session(path, self.ready, profile_prefix=path.with_suffix(""), label=name)

        def read(
            _: onnx.ModelProto, warmup: int, longest_s: float | None, counted: Sequence[int], refills: int
        ) -> dict[str, float]:
            return kernel_seconds(Path(session.end_profiling()), warmup, longest_s, counted, at_once, refills)

        return session, read

    def _after_round(self, stage: str, rounds: int) -> Callable[[int], None]:
        """What happens after each round."""

        def after_round(done: int) -> None:
            if self.between and stage == "timing":
                self.between()
            if self.progress:
                self.progress(stage, done, rounds)

        return after_round


def _timed(
    graph: onnx.ModelProto, samples: Sequence[float], kernels: dict[str, float], watch: Watch, effort: Effort
) -> Timed:
    """The result of one model, from the rounds that count."""
    rounds = kept(watch.windows, effort.minimum)
    each = len(samples) // watch.windows[-1].end  # more than one if the model ran often
    counted = [samples[index] for index in range(len(samples)) if index // each in set(rounds)]
    wall = summarize(counted)
    kernels = without_recording(graph, kernels, wall.median_s)
    return Timed(graph, wall, kernels, others_in(watch.windows, set(rounds)))


def _interleave(
    sessions: Mapping[str, Session],
    feeds: Sequence[Feed],
    rounds: int,
    tell: Callable[[int], object],
    least_s: float = 0.0,
    often: Collection[str] = (),
    idle: Collection[str] = (),
    *,
    watch: Watch | None = None,
    refills: Mapping[str, int] | None = None,
) -> dict[str, list[float]]:
    """Wall seconds by session of `rounds` rounds, each running every session in a new order (those in `often` several
    times). A sample is one run after `refills` that do not count, or the mean of runs for `least_s` seconds. Those that
    leave a device `idle` in the turns of others first run until it is awake. With a `watch`, rounds are added if other
    programs disturbed some."""
    samples: dict[str, list[float]] = {name: [] for name in sessions}
    order, given = [*sessions, *(_OFTEN - 1) * [*often]], cycle(feeds)
    shuffle = random.Random(0)
    done, awake_s = 0, 0.0
    while done < rounds or (watch is not None and not enough(watch.windows, rounds)):
        shuffle.shuffle(order)
        for name in order:
            if name in idle and time.perf_counter() - awake_s > _ASLEEP_S:
                run_for(_AWAKE_S, name, sessions[name], given)
            for _ in range(refills[name] if refills else 0):
                run_once(name, sessions[name], next(given))
            samples[name].append(float(np.mean(run_for(least_s, name, sessions[name], given))))
            awake_s = time.perf_counter() if name in idle else awake_s
        done += 1
        if watch is not None:
            watch.look(done, last=done >= rounds)
        tell(min(done, rounds))
    return samples


def run_for(least_s: float, name: str, session: Session, feeds: Iterator[Feed]) -> list[float]:
    """Wall seconds of consecutive inferences, at least one, until `least_s` seconds have passed."""
    found = [run_once(name, session, next(feeds))]
    total = found[0]
    while total < least_s:
        found.append(run_once(name, session, next(feeds)))
        total += found[-1]
    return found


def stretch_s(sessions: Mapping[str, Session], feeds: Sequence[Feed], effort: Effort) -> float:
    """Seconds that each model runs for one sample: 0 if runs do not scatter, else `STRETCH_S` or what the budget
    allows."""
    name, session = next(iter(sessions.items()))
    for _ in range(effort.warmup):
        run_once(name, session, feeds[0])
    found = run_for(min(STRETCH_S, effort.budget_s), name, session, cycle(feeds))
    return min(STRETCH_S, effort.budget_s / (effort.minimum * len(sessions))) if scatter(found) else 0.0


def run_once(name: str, session: Session, feed: Feed) -> float:
    """Wall seconds of one inference. Raises MeasurementFailed, naming `name`, if it fails."""
    start = time.perf_counter()
    try:
        session.run(None, feed)
    except Exception as error:
        raise MeasurementFailed(f"{name}: failed while being timed: {why_failed(error)}") from None
    return time.perf_counter() - start


@dataclass(frozen=True, slots=True)
class _Rounds:
    """Numbers of rounds: of wall times; of kernel times; and of kernel times if the process is paused by a quota,
    within twice the budget. And how often each model runs before it is timed."""

    walls: int
    kernels: int
    paused: int
    refills: Mapping[str, int]


def _rounds(
    sessions: Mapping[str, Session], feeds: Sequence[Feed], effort: Effort, least_s: float, often: Collection[str]
) -> _Rounds:
    """What the budget allows if a model runs for at least `least_s` to be timed once."""
    once = dict.fromkeys(sessions, 0.0)
    for _ in range(effort.warmup + 1):  # the last one counts
        once = {name: run_once(name, session, feeds[0]) for name, session in sessions.items()}
    alone = len(sessions) == 1 or least_s > 0.0
    fills = {name: 0 if alone else refills(each) for name, each in once.items()}
    visits_s = {name: (1 + fills[name]) * each for name, each in once.items()}

    def within_budget(round_s: float) -> int:
        return max(effort.minimum, min(effort.maximum, int(effort.budget_s / max(round_s, 1e-9))))

    walls = within_budget(sum(max(each, least_s) * (_OFTEN if name in often else 1) for name, each in visits_s.items()))
    round_s = sum(visits_s.values())
    again = max(effort.minimum, within_budget(round_s) // 2)
    paused = max(again, min(_UNPAUSED, int(2.0 * effort.budget_s / max(round_s, 1e-9))))
    return _Rounds(walls, again, paused, fills)
