"""What is timed on a machine that lets short runs through and then stops them is what the machine sustains."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taglio import cores
from taglio.profile import speed, stopwatch
from taglio.profile.kernels import kernel_seconds, unpaused
from taglio.profile.measure import MIXES, mixes_within
from taglio.profile.sessions import sessions_within
from taglio.profile.speed import Speeds, reference_seconds, waking_seconds
from taglio.profile.stopwatch import Effort, Feed, Run, run_for, stretch_s, time_models
from taglio.profile.wall_time import STRETCH_S, stretches, summarize
from taglio.runtimes import openvino
from taglio.runtimes.onnxruntime import SessionOptions
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
def forever() -> Iterator[Feed]:
    return repeat({})


def on(machine: Quota, monkeypatch: pytest.MonkeyPatch) -> Quota:
    monkeypatch.setattr(stopwatch, "time", SimpleNamespace(perf_counter=machine.perf_counter))
    return machine


@pytest.mark.parametrize("compute_s", [0.0002, 0.0013, 0.0083])
def test_a_device_with_half_a_processor_takes_twice_as_long_in_the_long_run(
    monkeypatch: pytest.MonkeyPatch, forever: Iterator[Feed], compute_s: float
) -> None:
    machine = on(Quota(compute_s, 0.5), monkeypatch)
    assert stretch_s({"model": machine}, [{}], Effort()) == STRETCH_S
    means_s = [float(np.mean(run_for(STRETCH_S, "model", machine, forever))) for _ in range(5)]
    assert np.median(means_s) == pytest.approx(2.0 * compute_s, rel=0.05)
    alone = run_for(4.0, "model", machine, forever)
    assert summarize(alone).steady_s == pytest.approx(2.0 * compute_s, rel=0.05)


@pytest.mark.parametrize("once_s", [2e-5, 0.01, 0.3, 1.0, 4.0, 20.0])
def test_a_model_of_seconds_is_measured_less_and_others_as_ever(once_s: float) -> None:
    effort, pure_runs = Effort(budget_s=16.0), 3
    mixes = mixes_within(effort, once_s, pure_runs, 100)
    models = mixes + pure_runs
    chosen = effort.affordable(models * once_s)
    if once_s < 1.0:
        assert (mixes, chosen) == (MIXES, effort)
    if chosen is effort:  # warm-ups, one more that shows the time, the rounds; kernels have rounds of their own
        assert models * once_s * (chosen.warmup + 1 + 2 * chosen.minimum) <= effort.patience_s
    else:  # one run each
        assert mixes >= 3 and models * once_s <= max(effort.patience_s, (3 + pure_runs) * once_s)


def test_a_model_that_takes_long_to_open_is_opened_less() -> None:
    effort = Effort(budget_s=1.0)
    large, small = onnx.ModelProto(), onnx.ModelProto()
    large.graph.node.extend([onnx.NodeProto()] * 5000)
    assert mixes_within(effort, 1e-3, 2, sessions_within(effort.patience_s, small)) == MIXES
    assert mixes_within(effort, 1e-3, 2, sessions_within(effort.patience_s, large)) == 3
    assert mixes_within(effort, 1e-3, 2, sessions_within(100.0, large)) == 8


def test_a_slow_model_is_timed_in_one_run_with_its_kernels() -> None:
    good, bad = conv_relu_chain(), onnx.ModelProto()
    feeds = [{"x": np.ones((1, 3, 8, 8), np.float32)}]
    models = {"first": lambda: good, "bad": lambda: bad, "second": lambda: good}
    refused: dict[str, str] = {}
    options, effort = SessionOptions(1), Effort(budget_s=1.0)
    settings = {"places": dict.fromkeys(models, options), "refused": refused, "once_s": 4.0}
    timed = time_models(models, feeds, options, effort, kernels=False, **settings)  # type: ignore[arg-type]
    assert [*timed] == ["first", "second"] and "bad" in refused
    timed = time_models({"first": models["first"]}, feeds, options, effort, kernels=True, once_s=4.0)
    assert timed["first"].wall.runs == 1
    assert 0.0 < sum(timed["first"].kernels.values()) < timed["first"].wall.median_s


@pytest.mark.parametrize("once_s", [0.0, 4.0])
def test_openvino_compiles_a_model_once_for_its_wall_time_and_kernels(
    monkeypatch: pytest.MonkeyPatch, once_s: float
) -> None:
    compiled: list[bool] = []
    real: Callable[..., openvino.OpenVinoSession] = openvino._compiled

    def counting(*arguments: Any, counters: bool = False) -> openvino.OpenVinoSession:
        compiled.append(counters)
        return real(*arguments, counters=counters)

    monkeypatch.setattr(openvino, "_compiled", counting)
    models, feeds = dict.fromkeys("ab", conv_relu_chain), [{"x": np.ones((1, 3, 8, 8), np.float32)}]
    options, effort = SessionOptions(1, runtime=openvino.NAME), Effort(maximum=4, budget_s=0.1)
    timed = time_models(models, feeds, options, effort, kernels=True, once_s=once_s)
    assert compiled == [True, True]
    for timing in timed.values():
        assert 0.0 < sum(timing.kernels.values()) < 5.0 * timing.wall.median_s


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


def test_models_that_much_rests_on_are_run_three_times_a_round_in_the_same_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = on(Quota(0.001, 1.0), monkeypatch)
    sessions = dict.fromkeys("abcd", machine)
    effort = Effort(warmup=1, minimum=3, maximum=1000, budget_s=0.6)
    rounds, once = (stopwatch._rounds(sessions, [{}], effort, 0.0, often) for often in (("a",), ()))
    assert rounds.walls == 25  # of six models, each of which runs four times
    assert (rounds.kernels, rounds.paused) == (once.kernels, once.paused)
    samples = stopwatch._interleave(sessions, [{}], 5, lambda _: None, 0.0, ("a",))
    assert {name: len(samples_s) for name, samples_s in samples.items()} == {"a": 15, "b": 5, "c": 5, "d": 5}


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


@pytest.mark.parametrize(("compute_s", "refills", "found_s"), [(1e-3, 3, 1e-3), (15e-3, 1, 15e-3), (30e-3, 0, 60e-3)])
def test_fast_models_find_the_caches_as_they_left_them(
    monkeypatch: pytest.MonkeyPatch, compute_s: float, refills: int, found_s: float
) -> None:
    clock = on(Quota(0.0, 1.0), monkeypatch)
    sessions = {name: Cached(compute_s, clock) for name in "ab"}
    planned = stopwatch._rounds(sessions, [{}], Effort(), 0.0, ()).refills
    assert planned == dict.fromkeys("ab", refills)
    samples = stopwatch._interleave(sessions, [{}], 4, lambda _: None, refills=planned)
    assert all(max(samples_s) == pytest.approx(found_s, rel=0.01) for samples_s in samples.values())
    alone = stopwatch._rounds({"a": sessions["a"]}, [{}], Effort(), 0.0, ()).refills
    assert alone == {"a": 0}  # nothing else empties them


def test_a_device_that_nobody_stops_is_timed_run_by_run(monkeypatch: pytest.MonkeyPatch) -> None:
    assert stretch_s({"model": on(Quota(0.0013, 1.0), monkeypatch)}, [{}], Effort()) == 0.0


class Fresh(Quota):
    """One whose first two runs take five times as long, as those of a session that allocates do."""

    runs = 0

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        for _ in range(5 if self.runs < 2 else 1):
            super().run(output_names, input_feed)
        self.runs += 1
        return []


def test_what_a_new_session_takes_at_first_is_no_scatter_and_leaves_no_fewer_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert stretch_s({"model": on(Fresh(0.04, 1.0), monkeypatch)}, [{}], Effort()) == 0.0
    machine = on(Fresh(0.04, 1.0), monkeypatch)
    walls = stopwatch._rounds({"model": machine}, [{}], Effort(budget_s=2.0), 0.0, ()).walls
    assert walls == 50
    samples = stopwatch._interleave({"model": machine}, [{}], walls, lambda _: None)
    assert set(np.round(samples["model"], 6)) == {0.04}


@given(SECONDS, st.floats(1e-3, 0.5))
def test_stretches_hold_every_sample_once_and_are_long_enough(seconds: list[float], least_s: float) -> None:
    slices = stretches(seconds, least_s)
    assert [index for stretch in slices for index in range(stretch.start, stretch.stop)] == list(range(len(seconds)))
    if sum(seconds) > least_s * 1.001:
        assert all(sum(seconds[stretch]) >= least_s for stretch in slices)


@given(st.lists(st.floats(0.21, 3.0), min_size=1, max_size=50))
def test_of_long_runs_the_median_counts(seconds: list[float]) -> None:
    assert summarize(seconds).steady_s == pytest.approx(float(np.median(seconds)))


def test_the_reference_takes_a_believable_time() -> None:
    assert 1e-5 < reference_seconds(1) < 1.0


@pytest.mark.parametrize("rested_ms", [0.0, 2.5, 5.0, 7.5])
def test_the_reference_takes_what_the_quota_sustains_however_long_the_device_rested(
    monkeypatch: pytest.MonkeyPatch, rested_ms: float
) -> None:
    """Else 0.3 to 0.4 ms after a rest: that is how long a device was told to be faster than in its profile."""
    machine = on(Quota(0.0002, 0.5), monkeypatch)
    machine.now_ns = round(rested_ms * 1e6)
    monkeypatch.setattr(speed, "quota", lambda: cores.Quota(0.005, 0.01))
    monkeypatch.setattr(speed, "_session", lambda _threads: (machine, {}))
    assert reference_seconds(1, 0.015) == pytest.approx(0.0004, rel=0.03)


def test_looks_at_the_machines_speed_take_what_they_may(monkeypatch: pytest.MonkeyPatch) -> None:
    looks_s: list[float] = []

    def look(_threads: int, least_s: float) -> float:
        looks_s.append(least_s)
        return 1.0

    monkeypatch.setattr(speed, "reference_seconds", look)
    assert Speeds(1, 0.01).finish() == (1.0, 1.0)
    assert looks_s == [0.01, 0.01]


def test_what_is_read_of_a_kernels_profile(tmp_path: Path) -> None:
    """Other events, and whatever else an event tells, are passed over."""
    path = tmp_path / "profile.json"
    kernel = {"cat": "Node", "name": "conv_kernel_time", "args": {"op_name": "Conv", "output_size": "8"}, "ph": "X"}
    events = [{"cat": "Session", "name": "model_run", "dur": 9}, {"cat": "Node", "name": "conv_fence_before", "dur": 7}]
    path.write_text(json.dumps(events + [kernel | {"dur": duration_us} for duration_us in (900, 30, 20, 40)]))
    assert kernel_seconds(path, 1, None, [0, 1, 2, 3]) == {"conv": pytest.approx(3e-5)}
    # Two rounds of two runs, of which the second counts.
    assert kernel_seconds(path, 0, None, [0, 1], refills=1) == {"conv": pytest.approx(3.5e-5)}


def test_what_waiting_costs_is_told_apart_from_first_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run takes 1 ms after another, 3 ms after a wait, and the first one, which allocates, 50 ms."""
    now_s, next_s = 0.0, 0.05

    def run(*_: object) -> None:
        nonlocal now_s, next_s
        now_s, next_s = now_s + next_s, 0.001

    def sleep(seconds: float) -> None:
        nonlocal now_s, next_s
        now_s, next_s = now_s + seconds, 0.003

    monkeypatch.setattr(speed, "_session", lambda *_: (SimpleNamespace(run=run), {}))
    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(time, "perf_counter", lambda: now_s)
    assert waking_seconds(1) == pytest.approx(0.002)


def test_one_interruption_among_a_handful_of_short_runs_does_not_decide() -> None:
    assert summarize([1e-3, 1e-3, 9e-3, 1e-3, 1e-3]).steady_s == 1e-3


def lengths(*sizes: int) -> list[Feed]:
    return [{"x": np.ones((1, size), np.float32)} for size in sizes]


class Longer(Quota):
    """A session whose time grows with its input."""

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        self.compute_ns = 1_000_000 * input_feed["x"].size
        return super().run(output_names, input_feed)


def test_a_run_over_several_shapes_is_one_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = on(Longer(0.0, 1.0), monkeypatch)
    several = Run.of(lengths(1, 1, 1, 5))
    samples = stopwatch._interleave({"a": several.open(machine)}, several.turns(), 3, lambda _: None)
    assert samples["a"] == pytest.approx([8e-3] * 3)
    same = Run.of(lengths(2, 2))
    assert same.open(machine) is machine
    assert same.turns() == same.feeds


@pytest.mark.alone
def test_an_inference_takes_the_mean_over_the_shapes_that_occur() -> None:
    """Wall and kernels: three small inputs and a large one take a quarter of the large one's time and more."""
    text = "(float[rows, 256] x) => (float[rows, 256] y) { [product] y = MatMul (x, w) }"
    model = parsed(text, {"w": np.ones((256, 256))})
    effort = Effort(minimum=9, maximum=9, budget_s=0.5)
    times = [
        time_models(
            {"model": lambda: model},
            [{"x": np.ones((rows, 256), np.float32)} for rows in sizes],
            SessionOptions(1),
            effort,
            kernels=True,
        )["model"]
        for sizes in ([1], [4000], [1, 1, 1, 4000])
    ]
    for small, large, mixed in (
        [timing.wall.median_s for timing in times],
        [sum(timing.kernels.values()) for timing in times],
    ):
        assert small < 0.01 * large
        assert 10.0 * small < mixed < 0.5 * large  # the median would be `small`


@pytest.mark.parametrize("once_s", [0.0, 1e3])
def test_a_loop_takes_no_longer_by_its_kernels_than_its_run(once_s: float) -> None:
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
    feeds = [{"x": np.ones(4, np.float32)}]
    options = SessionOptions(threads=1)
    effort = Effort(budget_s=0.5)
    timing = time_models({"m": lambda: loop}, feeds, options, effort, kernels=True, once_s=once_s)["m"]
    assert 0.5 * timing.wall.median_s < timing.kernels["repeats"] <= timing.wall.median_s
