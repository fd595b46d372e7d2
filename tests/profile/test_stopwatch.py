"""What is timed on a machine that lets short runs through and then stops them is what the machine sustains."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taglio.model.inputs import Feed
from taglio.profile import rounds, waking
from taglio.profile.busy import BusyWatch
from taglio.profile.effort import Effort, Schedule
from taglio.profile.kernels import unpaused
from taglio.profile.rounds import interleave, run_for, turns
from taglio.profile.stopwatch import Stopwatch
from taglio.profile.waking import waking_seconds
from taglio.profile.wall_time import STRETCH_S, scatter, stretches, summarize, without_drift
from taglio.runtimes.onnxruntime import SessionOptions
from taglio.runtimes.session import Session
from tests.models import conv_relu_chain, parsed

SECONDS = st.lists(st.floats(1e-4, 1.0), min_size=1, max_size=200)


class Quota:
    """A session, and the clock beside it, that may compute `share` of each 10 ms and then stands still until they end;
    what it has rested of them is not lost."""

    PERIOD_NS = 10_000_000

    def __init__(self, compute_s: float, share: float) -> None:
        self.compute_ns, self.allowed_ns = round(compute_s * 1e9), round(share * self.PERIOD_NS)
        self.now_ns = self.period = self.used_ns = 0

    def perf_counter(self) -> float:
        return self.now_ns * 1e-9

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        del output_names, input_feed
        left = self.compute_ns
        while left > 0:
            period, within = divmod(self.now_ns, self.PERIOD_NS)
            if period > self.period:
                self.period, self.used_ns = period, 0
            spent = min(left, self.allowed_ns - self.used_ns, self.PERIOD_NS - within)
            left -= spent
            self.used_ns += spent
            self.now_ns += spent or self.PERIOD_NS - within
        return []


@pytest.fixture
def forever() -> Iterator[Sequence[Feed]]:
    return repeat([{}])


def on(machine: Quota, monkeypatch: pytest.MonkeyPatch) -> Quota:
    monkeypatch.setattr(rounds, "time", SimpleNamespace(perf_counter=machine.perf_counter))
    return machine


def in_turn(
    sessions: Mapping[str, Session], schedule: Schedule, feeds: Sequence[Feed] = ({},)
) -> dict[str, list[float]]:
    """The samples of a schedule on a quiet machine."""
    watch = BusyWatch(lambda: (0.0, 0.0, 0.0))
    return interleave(sessions, turns(feeds), schedule, watch, lambda _: None)


@pytest.mark.parametrize("compute_s", [0.0002, 0.0013, 0.0083])
def test_a_device_with_half_a_processor_takes_twice_as_long_in_the_long_run(
    monkeypatch: pytest.MonkeyPatch, forever: Iterator[Sequence[Feed]], compute_s: float
) -> None:
    machine = on(Quota(compute_s, 0.5), monkeypatch)
    assert scatter(run_for(STRETCH_S, "model", machine, forever))
    assert Effort().schedule({"model": compute_s}, scatters=True).sample_s == STRETCH_S
    means_s = [float(np.mean(run_for(STRETCH_S, "model", machine, forever))) for _ in range(5)]
    assert np.median(means_s) == pytest.approx(2.0 * compute_s, rel=0.05)
    alone = run_for(4.0, "model", machine, forever)
    assert summarize(alone).steady_s == pytest.approx(2.0 * compute_s, rel=0.05)


def test_a_slow_model_is_timed_in_one_run_with_its_kernels() -> None:
    good, bad = conv_relu_chain(), onnx.ModelProto()
    watch = Stopwatch([{"x": np.ones((1, 3, 8, 8), np.float32)}], SessionOptions(1))
    models = {"first": lambda: good, "bad": lambda: bad, "second": lambda: good}
    timings = watch.time(models, Effort(1.0, 4.0))
    assert [*timings.timed] == ["first", "second"] and [*timings.refused] == ["bad"]
    timed = watch.time({"first": models["first"]}, Effort(1.0, 4.0), kernels=True, loss=lambda *_: 0.25).all()["first"]
    assert timed.wall.runs <= 2 and timed.loss == 0.25  # a second one on a busy machine
    assert 0.0 < sum(timed.kernels.values()) < timed.wall.median_s


@pytest.mark.parametrize("share", [0.3, 0.5, 0.7])
def test_kernels_under_a_quota_share_a_run_by_what_they_compute(share: float) -> None:
    """The median of a few runs is off by more than a half for some."""
    compute_ms = [0.2, 0.5, 1.0, 2.0, 6.0, 0.3, 9.0, 1.5]
    compute_s = {f"kernel{index}": milliseconds * 1e-3 for index, milliseconds in enumerate(compute_ms)}
    machine, rng = Quota(0.0, share), np.random.default_rng(0)
    walls: dict[str, list[float]] = {name: [] for name in compute_s}

    def work(seconds: float) -> float:
        machine.compute_ns, start = round(seconds * 1e9), machine.perf_counter()
        machine.run(None, {})
        return machine.perf_counter() - start

    for _ in range(30):
        work(rng.uniform(0.0, 10e-3))  # another model
        for name, seconds in compute_s.items():
            walls[name].append(work(seconds))
    seconds_of = unpaused(walls, share * 10e-3)
    for name, seconds in compute_s.items():
        assert seconds_of[name] == pytest.approx(seconds / share, rel=0.2)
    assert max(abs(np.median(walls[name][:4]) * share / kernel_s - 1.0) for name, kernel_s in compute_s.items()) > 0.5


class Cached(Quota):
    """A model that takes longer while the caches hold another's weights."""

    filled_by: "Cached | None" = None

    def __init__(self, compute_s: float, clock: Quota) -> None:
        super().__init__(compute_s, 1.0)
        self.clock = clock

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        self.clock.compute_ns = self.compute_ns * (1 if Cached.filled_by is self else 2)
        Cached.filled_by = self
        return self.clock.run(output_names, input_feed)


@pytest.mark.parametrize(
    ("compute_s", "uncounted", "counted", "run_s"),
    [(1e-3, 1, 3, 1e-3), (8e-3, 1, 2, 8e-3), (15e-3, 1, 1, 15e-3), (30e-3, 0, 1, 60e-3)],
)
def test_fast_models_find_the_caches_as_they_left_them(
    monkeypatch: pytest.MonkeyPatch, compute_s: float, uncounted: int, counted: int, run_s: float
) -> None:
    clock = on(Quota(0.0, 1.0), monkeypatch)
    sessions = {name: Cached(compute_s, clock) for name in "ab"}
    schedule = Effort().schedule(dict.fromkeys("ab", 2 * compute_s), scatters=False)
    assert schedule.uncounted == dict.fromkeys("ab", uncounted)
    assert schedule.counted == dict.fromkeys("ab", counted)
    samples = in_turn(sessions, replace(schedule, rounds=4))
    assert all(max(samples_s) == pytest.approx(run_s, rel=0.01) for samples_s in samples.values())
    alone = Effort().schedule({"a": compute_s}, scatters=False).uncounted
    assert alone == {"a": 0}  # nothing else empties them


def test_a_device_that_nobody_stops_is_timed_run_by_run(
    monkeypatch: pytest.MonkeyPatch, forever: Iterator[Sequence[Feed]]
) -> None:
    machine = on(Quota(0.0013, 1.0), monkeypatch)
    assert not scatter(run_for(STRETCH_S, "model", machine, forever))
    schedule = Effort(2.0).schedule({"model": 0.04}, scatters=False)
    assert (schedule.sample_s, schedule.rounds) == (0.0, 50)


def test_a_round_that_others_slow_down_does_not_decide() -> None:
    """Two copies of a model and one of half its time, on a machine whose speed drifts by two and which pauses for some
    single runs."""
    rng = np.random.default_rng(0)
    speed = np.exp(rng.uniform(-0.7, 0.7, 9))
    disturbed = 1.0 + 2.0 * (rng.random((3, 9)) < 0.2)
    samples = dict(zip(("a", "b", "half"), np.outer((1.0, 1.0, 0.5), speed) * disturbed, strict=True))
    steady = {name: np.median(values) for name, values in without_drift(samples).items()}
    assert steady["a"] == pytest.approx(steady["b"], rel=0.01)
    assert steady["half"] == pytest.approx(0.5 * steady["a"], rel=0.01)
    assert abs(np.median(samples["half"]) / np.median(samples["a"]) / 0.5 - 1.0) > 0.1
    alone = [1.0, 3.0, 2.0]
    assert without_drift({"a": alone})["a"] == pytest.approx(alone)


@given(SECONDS, st.floats(1e-3, 0.5))
def test_stretches_hold_every_sample_once_and_are_long_enough(seconds: list[float], least_s: float) -> None:
    slices = stretches(seconds, least_s)
    assert [index for stretch in slices for index in range(stretch.start, stretch.stop)] == list(range(len(seconds)))
    if sum(seconds) > least_s * 1.001:
        assert all(sum(seconds[stretch]) >= least_s for stretch in slices)


def test_what_waiting_costs_is_told_apart_from_first_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run takes 1 ms after another, 3 ms after a wait, and the first one, which allocates, 50 ms."""
    now_s, next_s = 0.0, 0.05

    def run(*_: object) -> None:
        nonlocal now_s, next_s
        now_s, next_s = now_s + next_s, 0.001

    def sleep(seconds: float) -> None:
        nonlocal now_s, next_s
        now_s, next_s = now_s + seconds, 0.003

    monkeypatch.setattr(waking, "open_session", lambda *_: SimpleNamespace(run=run))
    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(time, "perf_counter", lambda: now_s)
    assert waking_seconds(1) == pytest.approx(0.002)


def lengths(*sizes: int) -> list[Feed]:
    return [{"x": np.ones((1, size), np.float32)} for size in sizes]


class Longer(Quota):
    """A session whose time grows with its input."""

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        self.compute_ns = 1_000_000 * input_feed["x"].size
        return super().run(output_names, input_feed)


def test_a_run_over_several_shapes_is_one_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = on(Longer(0.0, 1.0), monkeypatch)
    schedule = Schedule(3, 0.0, {"a": 0}, {"a": 1}, 3, 3)
    samples = in_turn({"a": machine}, schedule, lengths(1, 1, 1, 5))
    assert samples["a"] == pytest.approx([2e-3] * 3)  # seconds of an inference
    assert [len(turn) for turn in turns(lengths(2, 2))] == [1, 1]


@pytest.mark.alone
def test_an_inference_takes_the_mean_over_the_shapes_that_occur() -> None:
    """Wall and kernels: three small inputs and a large one take a quarter of the large one's time and more."""
    text = "(float[rows, 256] x) => (float[rows, 256] y) { [product] y = MatMul (x, w) }"
    model = parsed(text, {"w": np.ones((256, 256))})
    effort = Effort(0.5, minimum=9, maximum=9)
    feeds = [[{"x": np.ones((rows, 256), np.float32)} for rows in sizes] for sizes in ([1], [4000], [1, 1, 1, 4000])]
    times = [
        Stopwatch(feeds_of, SessionOptions(1)).time({"model": lambda: model}, effort, kernels=True).all()["model"]
        for feeds_of in feeds
    ]
    for small, large, mixed in (
        [timing.wall.median_s for timing in times],
        [sum(timing.kernels.values()) for timing in times],
    ):
        # 1, 90 and 300 where nothing runs beside. The median would be `small`, the sum above `large`.
        assert 10.0 * small < mixed < large


@pytest.mark.parametrize("run_s", [0.0, 1e3])
def test_a_loop_takes_no_longer_by_its_kernels_than_its_run(run_s: float) -> None:
    """Recording the kernels of a thousand steps takes longer than the steps."""
    loop = parsed("""(float[4] x) => (float[4] y) <int64 steps = {1000}, bool on = {1}> {
        [before] a = Relu (x)
        [repeats] b = Loop <body = step (int64 i, bool c, float[4] carried) => (bool same, float[4] more) {
            same = Identity (c)
            twice = Add (carried, carried)
            half = Sub (twice, carried)
            more = Relu (half)
        }> (steps, on, a)
        [after] y = Sigmoid (b)
    }""")
    watch = Stopwatch([{"x": np.ones(4, np.float32)}], SessionOptions(threads=1))
    timing = watch.time({"m": lambda: loop}, Effort(0.1, run_s), kernels=True).all()["m"]
    assert 0.5 * timing.wall.median_s < timing.kernels["repeats"] <= timing.wall.median_s
