"""A profile taken in OpenVINO: of its own compiled graphs, joined to the model's blocks, and planned with."""

import importlib.util
from pathlib import Path

import pytest

from taglio.embedded import digits_data, digits_model
from tests.end_to_end.command import refused, taglio

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("openvino") is None, reason="needs openvino: run make test-backends"
)
ASKED = (digits_model(), "--data", digits_data(), "--scheme", "qdq-u8s8-sym-pc", "--runtime", "openvino")


def test_blocks_have_openvinos_times(tmp_path: Path) -> None:
    profile = taglio("profile", *ASKED, "--effort", 0.1, "-o", tmp_path, "--json").json()
    assert profile["conditions"]["runtime"] == "openvino"
    runs = {run["name"]: run for run in profile["runs"]}
    for name in ("float32", "int8"):
        attribution = runs[name]["attribution"]
        joined = sum(attribution["blocks_s"].values()) + sum(attribution["tensors_s"].values())
        assert joined > 0
        assert attribution["orphans_s"] < 0.2 * joined, attribution["orphans"]
    convolutions = [time for time in profile["blocks"] if "conv" in time["block"].lower()]
    assert convolutions
    assert {time["precision"] for time in profile["blocks"]} >= {"float32", "int8"}


def test_the_whole_flow_decides_by_openvinos_clock(tmp_path: Path) -> None:
    taglio("optimize", *ASKED, "--max-error", "10%", "--effort", 0.05, "-o", tmp_path, "--json").json()
    ran = taglio("run", tmp_path, "--runs", 5, "--json").json()
    assert (ran["runtime"], ran["profiled_in"]) == ("openvino", "openvino")


def test_layers_alone_are_onnx_runtimes(tmp_path: Path) -> None:
    refused(taglio("profile", *ASKED, "--layers", "upstream", "-o", tmp_path), "--layers times ONNX Runtime")
