"""What a run says of its devices, without an engine."""

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from taglio.cluster.devices import Link
from taglio.cluster.engine.pipeline import Answer
from taglio.cluster.engine.result import DeviceSpeed
from taglio.cluster.engine.run import DeviceSpeeds, _Run, too_short, way_s
from taglio.cluster.engine.wiring import Message
from taglio.cluster.file import load
from taglio.components.build import Port
from taglio.errors import MeasurementFailed
from taglio.plan.simulate import Span
from taglio.profile.speed import reference_seconds

CLUSTER = """start = "camera"
[device.camera]
profile = "camera.json"
[device.server]
threads = 2
profile = "server.json"
[[link]]
from = "camera"
to = "server"
both = true
bandwidth_mbit_s = 100
latency_ms = 1
"""


@dataclass
class Host:
    """A device that says what it was told to, then is lost."""

    says: list[float]
    asked: list[int] = field(default_factory=list)

    def call(self, function: object, threads: int, least_s: float) -> float:
        assert function is reference_seconds and least_s > 0.0
        self.asked.append(threads)
        return self.says.pop(0)


def test_a_run_keeps_every_look_at_its_devices_and_goes_on_without_one_that_is_lost(tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text(CLUSTER)
    hosts = {"camera": Host([1.0, 2.0, 4.0]), "server": Host([3.0])}
    deployment = SimpleNamespace(hosts=lambda: hosts)
    speeds = DeviceSpeeds(load(tmp_path / "cluster.toml"))
    speeds.look(deployment)  # type: ignore[arg-type]
    speeds.look_between(deployment)  # type: ignore[arg-type]
    assert speeds.seen == {"camera": [1.0], "server": [3.0]}  # a moment ago
    speeds.looked_s -= 10.0
    speeds.look_between(deployment)  # type: ignore[arg-type]
    speeds.look(deployment)  # type: ignore[arg-type]
    assert speeds.seen == {"camera": [1.0, 2.0, 4.0], "server": [3.0]}
    assert hosts["server"].asked == [2, 2, 2]
    kept = speeds.kept(tmp_path)
    assert kept == (DeviceSpeed("camera", None, None, (1.0, 2.0, 4.0)), DeviceSpeed("server", None, None, (3.0,)))


def test_how_much_slower_a_device_is_than_in_its_profile_is_told_from_the_median_of_all_looks() -> None:
    assert DeviceSpeed("camera", 2.0, (1.9, 2.2), (3.0, 100.0, 2.8)).slower == 1.5
    assert DeviceSpeed("camera", 2.0, (1.9, 2.2), (1.0, 1.0, 1.1)).slower == 0.5
    assert DeviceSpeed("camera", None, None, (3.0,)).slower is None


def test_a_device_is_not_told_to_be_slower_by_what_looks_at_it_scatter_by() -> None:
    assert DeviceSpeed("camera", 2.0, (1.9, 2.2), (3.0, 1.9, 2.4)).slower is None
    assert DeviceSpeed("camera", 2.0, (1.6, 2.9), (2.5, 2.6)).slower is None


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


def answered(outputs: list[object]) -> Answer:
    return Answer(0, outputs, 0.0, 1.0, (), ())  # type: ignore[arg-type]


def test_an_answer_is_compared_with_one_process_also_where_an_output_is_a_sequence() -> None:
    wanted = [[np.ones(3), np.ones(2)], np.ones(4)]
    running = SimpleNamespace(plan=SimpleNamespace(fingerprint=lambda: "plan"))
    run = _Run(running, None, [{}], {"plan": [wanted]})  # type: ignore[arg-type, list-item]
    run.check(answered([[np.ones(3), np.ones(2)], np.ones(4)]), running)  # type: ignore[arg-type]
    assert (run.identical, run.distance) == (1, 0.0)
    run.answers.clear()
    with pytest.raises(MeasurementFailed, match="differs"):
        run.check(answered([[np.ones(3), np.zeros(2)], np.ones(4)]), running)  # type: ignore[arg-type]


def test_a_run_that_no_quota_met_says_how_many_requests_would_tell_what_devices_sustain() -> None:
    said = too_short(40, 0.03, 2.28)
    assert said is not None and "40 requests took 0.03 s" in said and "2000 runs take" in said
    assert too_short(40, 0.03, 1.05) is None and too_short(1200, 1.1, 2.28) is None
