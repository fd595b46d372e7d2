"""States of sessions on a device, and what happens to them when it is lost."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from taglio.cluster.engine.host import SessionStates
from taglio.cluster.engine.parcel import SessionStep
from taglio.cluster.engine.pipeline import AnsweredRequest, Broken
from taglio.cluster.engine.runner import STEP_BYTES, Runner, Steps
from taglio.components.build import State
from taglio.errors import BadDevice

SUM = State("total", "before", "float32", (1,))


def test_the_session_used_longest_ago_is_forgotten() -> None:
    states, written = SessionStates(most=2), {"total": np.ones(1, np.float32)}
    for name in ("a", "b", "a", "c"):
        states.keep("0", [SUM], SessionStep(name, 0), written)
    assert states.before("0", [SUM], SessionStep("a", 1))["before"].tolist() == [1.0]
    with pytest.raises(BadDevice, match='session "b"'):
        states.before("0", [SUM], SessionStep("b", 1))


class Lines:
    """Pipelines that keep sums as devices do, and break before the answers of some requests; each begins anew."""

    def __init__(self, breaking: Iterator[int]) -> None:
        self.breaking, self.lanes, self.made, self.ran = next(breaking), 4, breaking, dict[str, list[float]]()
        self._held: list[np.ndarray] = []

    def begin(self) -> "Lines":
        return self

    def recover(self, _: str) -> "Lines":
        return Lines(self.made)

    def room(self) -> bool:
        return True

    def send(self, feed: dict[str, np.ndarray], step: SessionStep) -> int:
        ran = self.ran.setdefault(step.session, [])
        assert step.number == len(ran)
        ran.append(float(feed["x"][0]))
        self._held.append(np.full(1, sum(ran)))
        return len(self._held) - 1

    def wait(self, request: int, _: float) -> AnsweredRequest:
        if request == self.breaking:
            raise Broken("its device is gone")
        return AnsweredRequest(request, [self._held[request]], 0.0, 1.0, (), ())

    def give_up(self, _: str) -> None:
        pass


def running(breaking: list[int], **options: int) -> Runner:
    first = Lines(iter([*breaking, -1]))
    recovery = SimpleNamespace(
        begin=first.begin, recover=first.recover, ready=lambda: False, watch=lambda: None, running=None
    )
    return Runner(cast(Any, recovery), 1.0, **cast(Any, options))


def x(value: float) -> dict[str, np.ndarray]:
    return {"x": np.full(1, value)}


@pytest.mark.parametrize("breaking", [[0], [3], [2, 4], [3, 1, 2]])
def test_a_session_is_run_again_where_its_state_is_lost(breaking: list[int]) -> None:
    """Also where the next pipeline breaks, at another step or while the session is run again."""
    runner = running(breaking)
    found = [float(each.outputs[0][0]) for each in runner.answers(map(x, range(1, 7)), Steps("one"))]
    assert found == [1.0, 3.0, 6.0, 10.0, 15.0, 21.0]
    assert runner.interruptions


@pytest.mark.parametrize("breaking", [[], [0], [5], [3, 4]])
def test_sessions_take_turns_and_each_is_run_again_before_its_next_step(breaking: list[int]) -> None:
    runner, sessions = running(breaking), [Steps(name) for name in ("one", "two", "three")]
    for number in range(1, 4):
        step = partial(runner.run, x(number), last=number == 3)
        with ThreadPoolExecutor(3) as pool:
            found = list(pool.map(step, sessions))
        assert [each[0][0] for each in found] == [number * (number + 1) / 2] * 3
    assert not runner._sessions  # all have ended: another plan may take over


def test_the_session_with_the_most_inputs_is_not_run_again_where_all_are_too_many() -> None:
    """It ends in a line, and costs no other its answer."""
    runner, long, short = running([7], kept_bytes=6 * (STEP_BYTES + 8)), Steps("long"), Steps("short")
    for each in [long, short] * 2 + [long] * 3:
        runner.run(x(1.0), each)
    assert (long.kept_bytes, short.kept_bytes) == (0, 2 * (STEP_BYTES + 8))
    assert runner.run(x(1.0), short)[0] == 3.0
    with pytest.raises(BadDevice, match='session "long" lost its state after 5 steps'):
        runner.run(x(1.0), long)
