"""What a run says of its devices, without an engine."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from taglio.cluster.devices import Link
from taglio.cluster.engine.pipeline import AnsweredRequest, Broken
from taglio.cluster.engine.run import MOST_LANES, _RunInProgress, lanes_for, way_s
from taglio.cluster.engine.runner import Runner
from taglio.cluster.engine.wiring import Message
from taglio.components.build import Port
from taglio.errors import MeasurementFailed
from taglio.plan.result import Span


def test_what_waits_for_its_link_is_predicted_to_take_as_long_as_in_the_plan() -> None:
    link = Link("camera", "server", 1e6, 0.5)
    timeline = (
        Span("camera", "0-camera", 0, 0.0, 1.0, transfer=False),
        Span("camera -> server", "a (float32)", 0, 1.0, 3.5, transfer=True),
        Span("camera -> server", "b (int8)", 0, 3.0, 4.5, transfer=True),
    )
    a, b = Port("a", "float32", (2,), 2_000_000), Port("b/int8", "uint8", (1,), 1_000_000)
    assert way_s(timeline, Message("0-camera", "camera", "server", (b,)), link) == 3.5
    assert way_s(timeline, Message("0-camera", "camera", "server", (a, b)), link) == 3.5
    assert way_s(timeline, Message("", "", "server", (a,)), link) == 3.5  # an input leaves at once
    other = Port("c", "float32", (1,), 1_000_000)
    assert way_s(timeline, Message("0-camera", "camera", "server", (other,)), link) == 1.5


def answered(outputs: list[object], planned: SimpleNamespace) -> AnsweredRequest:
    return AnsweredRequest(0, outputs, 0.0, 1.0, (), (), planned=planned)  # type: ignore[arg-type]


def test_an_answer_is_compared_with_one_process_also_where_an_output_is_a_sequence() -> None:
    wanted = [[np.ones(3), np.ones(2)], np.ones(4)]
    running = SimpleNamespace(folder=Path("plan"))
    run = _RunInProgress(running, None, [{}], {Path("plan"): [wanted]})  # type: ignore[arg-type, list-item]
    run.check(answered([[np.ones(3), np.ones(2)], np.ones(4)], running))
    assert (run.identical, run.distance) == (1, 0.0)
    run.answers.clear()
    with pytest.raises(MeasurementFailed, match="differs"):
        run.check(answered([[np.ones(3), np.zeros(2)], np.ones(4)], running))


def running(name: str, *devices: str, takes_s: float) -> SimpleNamespace:
    plan = SimpleNamespace(
        fingerprint=lambda: name,
        devices=lambda: {f"block of {each}": each for each in devices},
        predicted_latency_s=SimpleNamespace(value=takes_s),
    )
    return SimpleNamespace(plan=plan, folder=Path(name))


def test_requests_of_each_plan_are_told_apart_without_those_that_were_sent_again() -> None:
    both, alone = running("a", "camera", "server", takes_s=0.02), running("b", "camera", takes_s=0.06)
    run = _RunInProgress(both, None, [{}], {Path("a"): [[]], Path("b"): [[]]})  # type: ignore[arg-type]
    took_s = [0.01, 0.01, 8.0, 0.03, 0.03, 0.01]
    for request, each_s in enumerate(took_s):
        plan, attempts = (alone, 1 + (request == 2)) if 2 <= request <= 4 else (both, 1)
        run.check(AnsweredRequest(request, [], 0.0, each_s, (), (), attempts, plan))  # type: ignore[arg-type]
    first, second = run.plans()
    assert (first.devices, first.requests, first.measured.mean_s, first.ratio) == (("camera", "server"), 3, 0.01, 2.0)
    assert (second.devices, second.requests, second.measured.mean_s, second.ratio) == (("camera",), 3, 0.03, 2.0)
    assert len(run.answers) == 6


class Line:
    """The pipeline of a plan that answers `value`; its request number `breaking` cannot be sent."""

    def __init__(self, value: float, lanes: int, breaking: int) -> None:
        self.value, self.lanes, self.breaking = value, lanes, breaking
        self.sent = self.answered = 0

    def room(self) -> bool:
        return self.sent - self.answered < self.lanes

    def send(self, _: object, __: object) -> int:
        if self.sent == self.breaking:
            raise Broken("its device is gone")
        self.sent += 1
        return self.sent - 1

    def wait(self, request: int, _: float) -> AnsweredRequest:
        self.answered += 1
        return AnsweredRequest(request, [np.full(1, self.value)], 0.0, 1.0, (), ())

    def give_up(self, _: str = "") -> None:
        pass

    close = give_up


class Losing:
    """Each loss ends in another plan, whose answers differ."""

    def __init__(self, *lines: Line) -> None:
        self.lines, self.watched = iter(lines), 0

    def recover(self, _: str = "") -> Line:
        line = next(self.lines)
        self.running = running(f"{line.value}", "camera", takes_s=1.0)
        return line

    begin = recover

    def ready(self) -> bool:
        return False

    def watch(self) -> None:
        self.watched += 1

    def close(self) -> None:
        pass


def test_an_answer_is_checked_against_its_plan_also_if_another_takes_over_before_it_is_handed_out() -> None:
    """Four requests in flight are sent again on one lane: the second loss is met while the third answer is in hand."""
    recovery = Losing(Line(1.0, 4, breaking=3), Line(2.0, 1, breaking=2), Line(3.0, 1, breaking=-1))
    runner = Runner(recovery, 1.0)  # type: ignore[arg-type]
    wanted = {Path(f"{value}"): [[np.full(1, value)]] for value in (1.0, 2.0, 3.0)}
    run = _RunInProgress(recovery.running, None, [{}], wanted)  # type: ignore[arg-type]
    for answer in runner.answers([{}] * 5):
        run.check(answer)
    runner.close()
    assert run.identical == 5 and recovery.watched == 5
    assert {plan.plan_sha256: plan.requests for plan in run.plans()} == {"2.0": 2, "3.0": 3}


@pytest.mark.parametrize(
    ("latency_s", "rate_per_s", "machines", "lanes"),
    [
        (0.01, None, 1, 2),
        (0.01, 100.0, 1, 2),
        (0.115, 102.0, 1, 13),  # a slow link of much bandwidth is full only with many on their way
        (1.0, 1000.0, 1, MOST_LANES),
        (1.0, 1000.0, 3, 3 * MOST_LANES),
    ],
)
def test_as_many_requests_are_in_flight_as_keep_the_busiest_resource_busy(
    latency_s: float, rate_per_s: float | None, machines: int, lanes: int
) -> None:
    rate = None if rate_per_s is None else SimpleNamespace(value=rate_per_s)
    usage = (SimpleNamespace(machines=("a",)), SimpleNamespace(machines=tuple(map(str, range(machines)))))
    plan = SimpleNamespace(predicted_latency_s=SimpleNamespace(value=latency_s), predicted_rate_per_s=rate, usage=usage)
    assert lanes_for(plan) == lanes  # type: ignore[arg-type]
