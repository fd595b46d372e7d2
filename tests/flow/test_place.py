"""What a plan on several devices is asked for, such as the runtimes of devices."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import taglio
from taglio.cluster.devices import Cluster, Device, Link
from taglio.cluster.planning.place import Answer
from taglio.cluster.planning.place import place as solve
from taglio.errors import BadArtifact, BadOption, Infeasible
from taglio.flow import place
from taglio.flow.place import Candidate
from taglio.flow.placing import reopened
from taglio.plan.result import Interval, Limits, Placement, Plan
from taglio.quantize.precision import precisions
from taglio.quantize.scheme import parse_scheme
from tests.conftest import Staged
from tests.end_to_end.command import SCHEME
from tests.models import Sketch

CLUSTER = Cluster("a", (Device("a", active_watts=2.0), Device("b", active_watts=5.0)), ())


def cluster(camera: str = "", server: str = "") -> Cluster:
    """A measured camera and a server that is assumed to take half its time, with the runtimes of a cluster file."""
    devices = (
        Device("camera", camera, profile="profile.json"),
        Device("server", server, profile="profile.json", scale=0.5),
    )
    return Cluster("camera", devices, (Link("camera", "server", 1e8), Link("server", "camera", 1e8)))


@pytest.fixture(scope="module")
def embedded(digits_staged: Staged, tmp_path_factory: pytest.TempPathFactory) -> Candidate:
    """The embedded model, allowed an error of 1 %."""
    folder = Path(shutil.copytree(digits_staged.folder, tmp_path_factory.mktemp("embedded") / "out"))
    return reopened(folder, cluster(), max_error=0.01)


def taken_in(candidate: Candidate, runtime: str) -> Candidate:
    """The same with a profile as if it had been taken in `runtime`, and no results kept."""
    measured, work = candidate.measured, candidate.work.but(kept=type(candidate.work.kept)())
    there = replace(measured, conditions=replace(measured.conditions, runtime=runtime))
    return replace(candidate, work=work, measured=there)


@pytest.mark.parametrize(
    ("instructions", "form", "scheme", "told"),
    [
        (("avx2",), "int8", "qdq-u8s8-asym-pc", True),
        (("avx2", "avx_vnni"), "int8", "qdq-u8s8-asym-pc", False),
        ((), "int8", "qdq-u8s8-asym-pc", False),  # nothing is known
        (("avx2",), "float32", "qdq-u8s8-asym-pc", False),
        (("avx2",), "int8", "qdq-u8s8-asym-pc-rr", False),
    ],
)
def test_a_device_whose_sums_saturate_is_named(
    embedded: Candidate, instructions: tuple[str, ...], form: str, scheme: str, told: bool
) -> None:
    """Errors are measured on another processor, where they do not."""
    measured, parsed = embedded.measured, parse_scheme(scheme)
    machine = replace(measured.conditions.machine, instructions=instructions)
    there = replace(measured, conditions=replace(measured.conditions, machine=machine))
    none = Interval(0.0, 0.0, 0.0)
    placed = (Placement("conv", "server", form), Placement("other", "camera", "float32"))
    plan = Plan("m", parsed, precisions(parsed), Limits(0.01), placed, "optimal", 0.0, none, none)
    notes = place.saturating_devices(plan, {"server": there, "camera": there})
    assert len(notes) == told
    assert all(note.startswith("server: no VNNI") and "qdq-u8s8-asym-pc-rr" in note for note in notes)


def runtimes(candidate: Candidate, where: Cluster) -> dict[str, str]:
    return {name: each.conditions.runtime for name, each in candidate.device_profiles(where).items()}


@pytest.mark.parametrize("objective", ["energy", "latency=1,energy=2"])
def test_energy_that_nothing_takes_is_not_minimised(embedded: Candidate, objective: str) -> None:
    with pytest.raises(BadOption, match="no device has active_watts and no link joules_per_mb"):
        place.place(embedded, cluster(), objective=objective, time_limit_s=0.5)


def test_a_limit_that_a_larger_error_does_not_help_is_refused_at_once(
    embedded: Candidate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each further plan took as long again to find the limits that contradict each other."""
    tried = 0

    def counted(*given: Any, **named: Any) -> Answer:
        nonlocal tried
        tried += 1
        return solve(*given, **named)

    monkeypatch.setattr(place, "solve", counted)
    alone = Cluster("camera", (Device("camera", profile="profile.json", memory_bytes=1.0),), ())
    with pytest.raises(Infeasible, match=r"no plan keeps the memory of camera \(1e-06 MB\): loosen it"):
        place.place(embedded, alone, time_limit_s=0.5)
    assert tried == 1


@pytest.mark.parametrize("limit", ["device_pins", "device_exclusions"])
def test_a_pin_to_a_device_that_is_not_there_is_named(embedded: Candidate, limit: str) -> None:
    block = embedded.work.graph.blocks[0].name
    pins: dict[str, Any] = {limit: ((block, "sever"),)}
    pinned = replace(embedded, limits=replace(embedded.limits, **pins))
    with pytest.raises(BadOption, match='no device "sever": did you mean "server"'):
        place.place(pinned, cluster(), time_limit_s=0.5)


def test_a_device_runs_what_its_profile_was_taken_in(embedded: Candidate) -> None:
    there = taken_in(embedded, "openvino")
    assert runtimes(embedded, cluster()) == {"camera": "onnxruntime", "server": "onnxruntime"}
    assert runtimes(there, cluster()) == {"camera": "openvino", "server": "openvino"}
    assert runtimes(there, cluster("openvino", "onnxruntime")) == {"camera": "openvino", "server": "onnxruntime"}
    with pytest.raises(BadArtifact, match='was taken in openvino, but device "camera" runs onnxruntime'):
        there.device_profiles(cluster("onnxruntime"))


def test_a_plan_says_what_runs_it(embedded: Candidate) -> None:
    plan = place.place(taken_in(embedded, "openvino"), cluster(), time_limit_s=0.5).plans[0]
    assert {plan.runtime_on(each.device) for each in plan.placements} == {"openvino"}
    other = replace(plan, usage=tuple(replace(each, runtime="onnxruntime") for each in plan.usage))
    assert other.fingerprint() != plan.fingerprint()


def test_a_model_without_int8_forms_sends_nothing_as_int8() -> None:
    """On a slow link, where a quarter of the bytes would pay; the condition is no float tensor at all."""
    sketch = Sketch()
    x = sketch.op("Sin", sketch.input("x", 1, 4096))
    small = sketch.op("Less", x, sketch.constant(np.float32(0.5)))
    y = sketch.op("Cos", sketch.op("Where", small, x, sketch.op("Exp", x)))
    model = taglio.Model(
        sketch.model(sketch.rename(y, "y")), {"x": np.ones((8, 1, 4096), np.float32)}, threads=1, runtime="onnxruntime"
    )
    profile = taglio.profile_model(model, scheme=SCHEME, effort=0.01)
    error = taglio.error_model(model, profile, effort=0.01)
    pins = ("camera=sin0", "camera=less1", "server=where3")
    candidate = taglio.candidate(model, profile, error, max_error=0.05, pins=pins)
    slow = replace(cluster(), links=(Link("camera", "server", 1e5), Link("server", "camera", 1e5)))
    plan = place.place(candidate, slow, time_limit_s=0.5).plans[0]
    assert plan.crossings and {each.precision for each in plan.crossings} == {"float32"}
    assert taglio.build(model, plan).proof is not None
