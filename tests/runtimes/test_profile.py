"""A profile taken in OpenVINO: of its own compiled graphs, joined to the model's blocks, and planned with."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import TWO_DEVICES, once
from tests.end_to_end.command import Case, refused, taglio
from tests.processor import needs_openvino

pytestmark = [pytest.mark.whole, needs_openvino]
HOW = ("--scheme", "qdq-u8s8-asym-pc", "--runtime", "openvino", "--threads", 1, "--effort", 0.01)


@pytest.fixture(scope="module")
def profiled(few_digits: Case, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The embedded model's workspace with a profile of OpenVINO's, and what was printed of it."""

    def make(folder: Path) -> Any:
        arguments = (*few_digits.arguments(), *HOW, "-o", folder / "out", "--json")
        return taglio("profile", *arguments).json()

    folder, printed = once(tmp_path_factory, "openvino", make)
    return folder / "out", printed


def test_blocks_have_openvinos_times(profiled: tuple[Path, Any]) -> None:
    profile = profiled[1]
    assert profile["conditions"]["runtime"] == "openvino"
    runs = {run["name"]: run for run in profile["runs"]}
    for name in ("float32", "int8"):
        attribution = runs[name]["attribution"]
        joined = sum(attribution["blocks_s"].values()) + sum(attribution["tensors_s"].values())
        assert joined > 0
        assert attribution["orphans_s"] < 0.2 * joined
    convolutions = [time for time in profile["blocks"] if "conv" in time["block"].lower()]
    assert convolutions
    assert {time["precision"] for time in profile["blocks"]} >= {"float32", "int8"}


def test_a_device_of_a_cluster_is_planned_with_times_of_its_own_runtime(
    profiled: tuple[Path, Any], tmp_path: Path
) -> None:
    out, cluster = Path(shutil.copytree(profiled[0], tmp_path / "out")), tmp_path / "cluster.toml"
    taglio("error", out, "--effort", 0.01, "--json").json()
    cluster.write_text(TWO_DEVICES)  # the camera runs what its profile was taken in
    plan = taglio("plan", out, "--cluster", cluster, "--max-error", "10%", "--time-limit", 1, "--json").json()
    assert {usage["runtime"] for usage in plan["plans"][0]["usage"]} == {"openvino"}
    cluster.write_text(TWO_DEVICES.replace("[device.camera]", '[device.camera]\nruntime = "onnxruntime"'))
    ran = taglio("plan", out, "--cluster", cluster, "--max-error", "10%", "--time-limit", 1)
    refused(ran, 'was taken in openvino, but device "camera" runs onnxruntime', "--runtime onnxruntime")
