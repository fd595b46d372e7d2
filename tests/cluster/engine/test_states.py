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
from taglio.cluster.engine.host import Host, Job
from taglio.cluster.engine.parcel import Parcel
from taglio.cluster.engine.pipeline import Answer, Broken
from taglio.cluster.engine.serve import Server
from taglio.cluster.engine.states import States
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
    send(host, {piece.sha256: (folder / piece.file, piece.size_bytes) for piece in manifest.pieces})
    piece = manifest.pieces[0]
    host.load([Job(piece, wiring.reads["0"], wiring.sends("0"), manifest.kept_by(piece))], 1, {})
    return host


def test_a_state_is_kept_for_each_session(tmp_path: Path) -> None:
    host, request = counting(tmp_path), iter(range(100))

    def step(value: float, session: tuple[str, int] | None) -> Parcel:
        number = next(request)
        host.take(Parcel(number, 0, "", {"x": np.full(1, value, np.float32)}, session=session))
        return host.give(number, 1)

    for number, (ours, theirs) in enumerate([(1.0, 10.0), (3.0, 30.0), (6.0, 60.0)]):
        assert step(number + 1.0, ("ours", number)).tensors["y"].tolist() == [ours]
        assert step(10.0 * (number + 1.0), ("theirs", number)).tensors["y"].tolist() == [theirs]
    assert step(5.0, None).tensors["y"].tolist() == [5.0]
    assert step(7.0, ("ours", 0)).tensors["y"].tolist() == [7.0]  # begun again
    lost = step(1.0, ("ours", 5)).error
    assert lost is not None and 'step 5 of session "ours" but has run 1' in str(lost)


def test_the_session_used_longest_ago_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taglio.cluster.engine.states._SESSIONS", 2)
    states, written = States(), {"total": np.ones(1, np.float32)}
    for name in ("a", "b", "a", "c"):
        states.keep("0", [SUM], (name, 0), written)
    assert states.before("0", [SUM], ("a", 1))["before"].tolist() == [1.0]
    with pytest.raises(BadDevice, match='session "b"'):
        states.before("0", [SUM], ("b", 1))


class Lines:
    """Pipelines that keep sums as devices do, and break before the answers of some requests; each begins anew."""

    def __init__(self, breaking: Iterator[int]) -> None:
        self.breaking, self.lanes, self.made, self.ran = next(breaking), 1, breaking, list[float]()
        self._held: dict[int, np.ndarray] = {}

    def begin(self) -> "Lines":
        return self

    def recover(self, _: str) -> "Lines":
        return Lines(self.made)

    def room(self) -> bool:
        return True

    def holds(self, request: int) -> bool:
        return request in self._held

    def send(self, request: int, feed: dict[str, np.ndarray], session: tuple[str, int]) -> None:
        assert session == ("one", request) and len(self.ran) == request
        self.ran.append(float(feed["x"][0]))
        self._held[request] = np.full(1, sum(self.ran))

    def wait(self, request: int, _: float) -> Answer:
        if request == self.breaking:
            raise Broken("its device is gone")
        return Answer(request, [self._held.pop(request)], 0.0, 1.0, (), ())

    def close(self) -> None:
        pass


def served(breaking: list[int], steps: int) -> tuple[list[float], Server]:
    first = Lines(iter([*breaking, -1]))
    server = Server(cast(Any, SimpleNamespace(begin=first.begin, recover=first.recover)), 1.0)
    feeds = ({"x": np.full(1, float(number))} for number in range(1, steps + 1))
    return [float(each.outputs[0][0]) for each in server.steps(feeds, "one")], server


@pytest.mark.parametrize("breaking", [[0], [3], [2, 4], [3, 1, 2]])
def test_a_session_is_run_again_where_its_state_is_lost(breaking: list[int]) -> None:
    """Also where the next pipeline breaks, at another step or while the session is run again."""
    found, server = served(breaking, 6)
    assert found == [1.0, 3.0, 6.0, 10.0, 15.0, 21.0]
    assert server.interruptions


def test_a_session_too_long_to_be_run_again_ends_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "_REPLAYED", 3)
    assert served([3], 6)[0][-1] == 21.0
    with pytest.raises(BadDevice, match=re.escape("after 4 steps (its device is gone): at most 3 steps")):
        served([4], 6)
