"""What the probe measures messages with: pipelines of as many messages as they say, and lost devices that are named."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from taglio.cluster.engine import handling
from taglio.cluster.engine.pipeline import Broken
from taglio.cluster.engine.wiring import CALLER, wire
from taglio.cluster.file import parse
from taglio.components.build import write
from taglio.errors import BadDevice
from taglio.runtimes.onnxruntime import SessionOptions, open_session
from tests.cluster.engine.devices import CLUSTER


@pytest.mark.parametrize("more", [0, 2])
def test_one_message_comes_back_and_one_more_than_asked_for_goes_there(tmp_path: Path, more: int) -> None:
    parts = handling._parts("camera", "server", more)
    wiring = wire(write(tmp_path, "0" * 64, ["x"], ["y"], parts))
    ways = [(each.source_device or "camera", each.device or "camera") for each in wiring.messages]
    assert ways.count(("camera", "server")) == 1 + more and ways.count(("server", "camera")) == 1
    assert [each.device for each in wiring.messages if each.source == "last"] == [CALLER]


@pytest.mark.parametrize(("there", "back"), [(0, 0), (100_000, 0), (0, 100_000)])
def test_many_bytes_go_there_or_back(tmp_path: Path, there: int, back: int) -> None:
    parts = handling._parts("camera", "server", there=there, back=back)
    wiring = wire(write(tmp_path, "0" * 64, ["x"], ["y"], parts))
    sizes = {(each.source_device, each.device): each.bytes for each in wiring.messages}
    assert (sizes["camera", "server"], sizes["server", "camera"]) == (there or 32, back or 32)
    values = {"x": np.arange(8, dtype=np.float32)}
    for part in parts:
        session = open_session(part.proto, SessionOptions(1))
        made = session.run(list(part.outputs), {name: values[name] for name in part.inputs})
        values |= dict(zip(part.outputs, made, strict=True))
    assert values["y"].tolist() == list(range(8))


def test_a_working_component_works() -> None:
    part = handling._part("working", "camera", {"x": 8}, {"y": 8}, working=True)
    session = open_session(part.proto, SessionOptions(1))
    values = [1.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    (found,) = session.run(None, {"x": np.array(values, np.float32)})
    # The layers hold 3 times the input, and every row of the matrix repeats that 50 times: its square holds
    # 3 · 3 · 50 · 3 times the input's numbers.
    assert found.tolist() == pytest.approx([each + 3 * 2.0 + 3 * 3 * 50 * 3 * 2.0 for each in values])


def test_a_request_costs_what_it_takes_longer_than_the_run_of_its_component(monkeypatch: pytest.MonkeyPatch) -> None:
    requests_s = iter([0.5, 0.012, 0.011, 0.031])  # the first ones warm up; the machine was busy during the last
    closed: list[bool] = []
    pipeline = SimpleNamespace(close=lambda: closed.append(True))
    deployment = SimpleNamespace(hosts=lambda: {"camera": SimpleNamespace(alone=lambda *_: 0.010)})
    monkeypatch.setattr(handling, "_opened", lambda *_, **__: (deployment, pipeline))
    monkeypatch.setattr(handling, "_each_s", lambda *_: next(requests_s))
    monkeypatch.setattr(handling, "_TURNS", 3)
    nothing: Any = None
    assert handling._request_s(nothing, parse(CLUSTER), nothing) == pytest.approx(0.002)
    assert closed == [True]


def test_how_much_of_a_device_is_free_at_the_time_is_taken_out_after_the_differences(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Processor seconds of a request, and how much of the device was free just then.
    taken = {
        "alone": {"camera": (0.001, 0.5)},
        "server-few": {"camera": (0.004, 0.5), "server": (0.003, 1.0)},
        "server-more": {"camera": (0.006, 0.5), "server": (0.005, 1.0)},
        "server-there": {"camera": (0.005, 0.9), "server": (0.006, 1.0)},
        "server-back": {"camera": (0.007, 0.9), "server": (0.004, 0.4)},
    }

    def measured(_: object, __: object, folder: Path, *___: object) -> dict[str, handling._Use]:
        return {name: handling._Use(*use) for name, use in taken[folder.name].items()}

    monkeypatch.setattr(handling, "_request_s", lambda *_: 0.0001)
    monkeypatch.setattr(handling, "_taken", measured)
    connection: Any = None
    found = handling.handling(connection, parse(CLUSTER))
    many = 1e6
    expected = {
        "server": (0.002, 0.001, 0.001 / many, 0.003 / many),
        "camera": (0.001, 0.002, 0.001 / many, 0.003 / many),
    }
    share = {"server": 1.0, "camera": 0.7}
    for name, seconds in expected.items():
        each = found[name]
        of = (each.send_s, each.receive_s, each.send_byte_s, each.receive_byte_s)
        assert of == pytest.approx([taken_s / share[name] for taken_s in seconds])
    assert (found["camera"].request_s, found["server"].request_s) == (0.0001, 0.0)


def test_a_device_that_stops_answering_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object) -> float:
        raise Broken('device "server" stopped answering')

    monkeypatch.setattr(handling, "_request_s", gone)
    connection: Any = None
    with pytest.raises(BadDevice, match='measured, device "server" stopped answering: see taglio cluster status'):
        handling.handling(connection, parse(CLUSTER))
