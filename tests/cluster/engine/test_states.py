"""States of sessions on a device, and what happens to them when it is lost."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from taglio.cluster.engine.host import SessionStates
from taglio.cluster.engine.parcel import SessionStep
from taglio.cluster.engine.pipeline import AnsweredRequest, Broken
from taglio.cluster.engine.serve import STEP_BYTES, Server, Steps
from taglio.components.build import State
from taglio.errors import BadDevice

SUM = State("total", "before", "float32", (1,))


def test_the_session_used_longest_ago_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taglio.cluster.engine.host.SESSIONS", 2)
    states, written = SessionStates(), {"total": np.ones(1, np.float32)}
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

    def close(self) -> None:
        pass


def server(breaking: list[int], **options: int) -> Server:
    first = Lines(iter([*breaking, -1]))
    recovery = SimpleNamespace(
        begin=first.begin, recover=first.recover, ready=lambda: False, watch=lambda: None, running=None
    )
    return Server(cast(Any, recovery), 1.0, **cast(Any, options))


def x(value: float) -> dict[str, np.ndarray]:
    return {"x": np.full(1, value)}


def served(breaking: list[int], steps: int) -> tuple[list[float], Server]:
    found = server(breaking)
    return [float(each.outputs[0][0]) for each in found.answers(map(x, range(1, steps + 1)), Steps("one"))], found


@pytest.mark.parametrize("breaking", [[0], [3], [2, 4], [3, 1, 2]])
def test_a_session_is_run_again_where_its_state_is_lost(breaking: list[int]) -> None:
    """Also where the next pipeline breaks, at another step or while the session is run again."""
    found, running = served(breaking, 6)
    assert found == [1.0, 3.0, 6.0, 10.0, 15.0, 21.0]
    assert running.interruptions


@pytest.mark.parametrize("breaking", [[], [0], [5], [3, 4]])
def test_sessions_take_turns_and_each_is_run_again_before_its_next_step(breaking: list[int]) -> None:
    running, names = server(breaking), ("one", "two", "three")
    sessions = {name: Steps(name) for name in names}
    for number in range(1, 4):
        for name in names:
            running.send(x(number), sessions[name], last=number == 3)
        found = [running.next() for _ in names]
        assert [each.outputs[0][0] for each in found] == [number * (number + 1) / 2] * 3
        assert [each.request for each in found] == [3 * number - 3, 3 * number - 2, 3 * number - 1]
    assert not running._sessions  # all have ended: another plan may take over


def test_the_session_with_the_most_inputs_is_not_run_again_where_all_are_too_many() -> None:
    """It ends in a line, and costs no other its answer."""
    running = server([7], kept_bytes=6 * (STEP_BYTES + 8))
    long, short = Steps("long"), Steps("short")
    for each in [long, short] * 2 + [long] * 3:
        running.send(x(1.0), each)
        running.next()
    assert (long.kept_bytes, short.kept_bytes) == (0, 2 * (STEP_BYTES + 8))
    running.send(x(1.0), short)
    assert running.next().outputs[0][0] == 3.0
    running.send(x(1.0), long)
    with pytest.raises(BadDevice, match='session "long" lost its state after 5 steps'):
        running.next()
