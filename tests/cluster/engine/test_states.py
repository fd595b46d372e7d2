"""States of sessions on a device, and what happens to them when it is lost."""

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from onnx import TensorProto, ValueInfoProto, helper

from taglio.cluster.engine import serve
from taglio.cluster.engine.deploy import send
from taglio.cluster.engine.host import Host, Job, States
from taglio.cluster.engine.parcel import Parcel, SessionStep
from taglio.cluster.engine.pipeline import Answer, Broken
from taglio.cluster.engine.serve import Server, Steps
from taglio.cluster.engine.wiring import CALLER, wire
from taglio.components.build import State, write
from taglio.components.cut import Component
from taglio.errors import BadDevice

SUM = State("total", "before", "float32", (1,))


def _one(name: str) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [1])


def counting(folder: Path) -> Host:
    """A host of one component: y and the state are the sum of all inputs of a session."""
    nodes = [helper.make_node("Add", ["x", "before"], ["total"]), helper.make_node("Identity", ["total"], ["y"])]
    reads, writes = ("x", "before"), ("total", "y")
    given, made = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in side] for side in (reads, writes)
    )
    proto = helper.make_model(
        helper.make_graph(nodes, "sum", given, made), opset_imports=[helper.make_opsetid("", 13)], ir_version=8
    )
    part = Component("0", "near", (), proto, reads, writes)
    manifest = write(folder, "0" * 64, reads, ("y", "total"), [part], states=[SUM])
    wiring, host = wire(manifest), Host("near", 1, folder / "store")
    assert [(each.source, each.device, each.names) for each in wiring.messages] == [
        (CALLER, "near", ("x",)), ("0", CALLER, ("y",)),
    ]  # fmt: skip
    send(host, {piece.sha256: folder / piece.file for piece in manifest.pieces})
    piece = manifest.pieces[0]
    host.load([Job(piece, wiring.reads["0"], wiring.sends("0"), manifest.kept_by(piece))], 1, {})
    return host


def test_a_state_is_kept_for_each_session(tmp_path: Path) -> None:
    host, request = counting(tmp_path), iter(range(100))

    def step(value: float, session: str, number: int, *, last: bool = False) -> Parcel:
        sent = next(request)
        told = SessionStep(session, number, last) if session else None
        host.take(Parcel(sent, 0, "", {"x": np.full(1, value, np.float32)}, session=told))
        return host.give(sent, 1)

    for number, (ours, theirs) in enumerate([(1.0, 10.0), (3.0, 30.0), (6.0, 60.0)]):
        assert step(number + 1.0, "ours", number).tensors["y"].tolist() == [ours]
        assert step(10.0 * (number + 1.0), "theirs", number).tensors["y"].tolist() == [theirs]
    assert step(5.0, "", 0).tensors["y"].tolist() == [5.0]
    assert step(7.0, "ours", 0).tensors["y"].tolist() == [7.0]  # begun again
    lost = step(1.0, "ours", 5).error
    assert lost is not None and 'step 5 of session "ours" but has run 1' in str(lost)
    assert step(40.0, "theirs", 3, last=True).tensors["y"].tolist() == [100.0]
    ended = step(1.0, "theirs", 4).error
    assert ended is not None and "has run 0" in str(ended)


def test_the_session_used_longest_ago_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taglio.cluster.engine.host.SESSIONS", 2)
    states, written = States(), {"total": np.ones(1, np.float32)}
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

    def wait(self, request: int, _: float) -> Answer:
        if request == self.breaking:
            raise Broken("its device is gone")
        return Answer(request, [self._held[request]], 0.0, 1.0, (), ())

    def close(self) -> None:
        pass


def server(breaking: list[int]) -> Server:
    first = Lines(iter([*breaking, -1]))
    recovery = SimpleNamespace(
        begin=first.begin, recover=first.recover, ready=lambda: False, watch=lambda: None, running=None
    )
    return Server(cast(Any, recovery), 1.0)


def x(value: float) -> dict[str, np.ndarray]:
    return {"x": np.full(1, value)}


def served(breaking: list[int], steps: int) -> tuple[list[float], Server]:
    found = server(breaking)
    return [float(each.outputs[0][0]) for each in found.steps(map(x, range(1, steps + 1)), "one")], found


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


def test_a_session_too_long_to_be_run_again_ends_in_a_line_and_costs_no_other_its_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serve, "_REPLAYED", 3)
    assert served([3], 6)[0][-1] == 21.0
    with pytest.raises(BadDevice, match=re.escape("after 4 steps (its device is gone): at most 3 steps")):
        served([4], 6)
    running, long, short = server([5]), Steps("long"), Steps("short")
    for number in range(4):
        running.send(x(number), long)
        running.next()
    running.send(x(1.0), short)
    running.next()
    for each in (short, long):
        running.send(x(1.0), each)
    assert running.next().outputs[0][0] == 2.0
    with pytest.raises(BadDevice, match='session "long" lost its state after 4 steps'):
        running.next()


def test_inputs_of_all_sessions_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where they are too many, the longest session cannot be run again."""
    monkeypatch.setattr(serve, "_REPLAYED_BYTES", 8 * 6)
    running, long, short = server([7]), Steps("long"), Steps("short")
    for each in [long, short] * 2 + [long] * 3:
        running.send(x(1.0), each)
        running.next()
    assert (long.kept_bytes, short.kept_bytes) == (0, 16)
    running.send(x(1.0), short)
    assert running.next().outputs[0][0] == 3.0
    running.send(x(1.0), long)
    with pytest.raises(BadDevice, match='session "long" lost its state after 5 steps'):
        running.next()
