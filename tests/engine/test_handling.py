"""What the probe measures messages with: pipelines of as many messages as they say, and lost devices that are named."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from taglio.cluster_file import parse
from taglio.components.build import write
from taglio.engine import handling
from taglio.engine.pipeline import Broken
from taglio.engine.wiring import CALLER, wire
from taglio.errors import BadDevice
from taglio.runtimes.onnxruntime import SessionOptions, open_session
from tests.engine.devices import CLUSTER


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
    part = handling._part("working", "camera", ["x"], {"y": 8}, working=True)
    session = open_session(part.proto, SessionOptions(1))
    values = [1.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    (found,) = session.run(None, {"x": np.array(values, np.float32)})
    # Every row of the matrix repeats the input 50 times, so that its square holds 50 · 3 times the input's numbers.
    assert found.tolist() == pytest.approx([each + 50 * 3 * 2.0 for each in values])


def test_a_device_that_stops_answering_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object) -> float:
        raise Broken('device "server" stopped answering')

    monkeypatch.setattr(handling, "_request_s", gone)
    connection: Any = None
    with pytest.raises(BadDevice, match='measured, device "server" stopped answering: see taglio cluster status'):
        handling.handling(connection, parse(CLUSTER))
