"""Repositories for OpenVINO Model Server: its configuration, and which plans it may serve."""

from pathlib import Path

import pytest

from taglio.cores import available_cores
from taglio.deploy.export import OVMS, TRITON
from taglio.errors import BadOption
from taglio.flow.export import export as export_workspace
from taglio.runtimes import openvino
from taglio.runtimes.way import Way
from tests.deploy.repositories import exported, ovms_entry, rows_in, triton_configuration
from tests.deploy.test_delivery import delivered

pytest.importorskip("openvino")
needs_streams = pytest.mark.skipif(available_cores() < 2, reason="OpenVINO makes one stream of two here")


@needs_streams
def test_servers_have_a_request_for_each_stream_of_openvino(tmp_path: Path) -> None:
    way = Way(1, 2, 4)
    folder = rows_in(tmp_path, openvino.NAME, way)
    export_workspace(folder, tmp_path / "triton", TRITON)
    config = triton_configuration(tmp_path / "triton" / "m")
    assert [(group.kind, group.count) for group in config.instance_group] == [(2, 2)]
    streams = {"PERFORMANCE_HINT": "THROUGHPUT", "NUM_STREAMS": "2", "INFERENCE_NUM_THREADS": "2"}
    assert {key: value.string_value for key, value in config.parameters.items()} == streams
    result = export_workspace(folder, tmp_path / "ovms", OVMS)
    entry = ovms_entry(tmp_path / "ovms")
    assert entry["nireq"] == 2
    assert entry["plugin_config"] == {**streams, "INFERENCE_PRECISION_HINT": "f32"}
    assert result.models[0].remarks == ("requests are not joined there; measured with up to 4 in a run",)


def test_the_configuration_is_one_that_the_servers_schema_allows(tmp_path: Path) -> None:
    """The keys are those of MODELS_CONFIG_SCHEMA in openvinotoolkit/model_server, src/schema.cpp."""
    delivery = delivered(tmp_path, openvino.NAME)
    result = exported(delivery.folder, tmp_path / "out", OVMS)
    assert ovms_entry(tmp_path / "out") == {
        "name": "net",
        "base_path": "net",
        "target_device": "CPU",  # by default the server takes a GPU that it finds
        "nireq": 1,
        "plugin_config": {
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": "1",
            "INFERENCE_PRECISION_HINT": "f32",
            "INFERENCE_NUM_THREADS": "1",
        },
    }
    assert result.distance == 0.0
    for name in ("model.xml", "model.bin"):
        assert (tmp_path / "out" / "net" / "1" / name).read_bytes() == (delivery.folder / name).read_bytes()


def test_ovms_does_not_serve_a_plan_for_onnxruntime(tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="it computes with OpenVINO, and the plan was measured in ONNX Runtime"):
        export_workspace(rows_in(tmp_path), tmp_path / "out", OVMS)
