"""Repositories for Triton Inference Server: its configuration, and where requests are joined."""

from pathlib import Path

import numpy as np
import pytest

from taglio.components.build import State
from taglio.deploy.export import OVMS, TRITON
from taglio.deploy.folder import DeliveredModel, read
from taglio.deploy.served import Joining
from taglio.deploy.triton import served
from taglio.deploy.write import VERIFY
from taglio.errors import BadOption
from taglio.flow.export import export as export_workspace
from taglio.runtimes import onnxruntime, openvino
from taglio.runtimes.openvino_marks import unkept
from taglio.runtimes.way import Way
from tests.built import product, workspace
from tests.deploy.repositories import exported, rewritten, rows_in, triton_configuration, workspace_of
from tests.deploy.test_delivery import delivered
from tests.models import Sketch, parsed

pytest.importorskip("openvino")


def test_triton_reads_its_configuration_for_onnxruntime(tmp_path: Path) -> None:
    delivery = delivered(tmp_path, onnxruntime.NAME)
    result = exported(delivery.folder, tmp_path / "out", TRITON)
    config = triton_configuration(tmp_path / "out" / "net")
    assert (config.name, config.backend, config.max_batch_size) == ("net", "onnxruntime", 0)
    assert not config.HasField("dynamic_batching")
    # Listed, or Triton would complete the configuration, and join.
    (source,), (answer,) = config.input, config.output
    assert (source.name, list(source.dims)) == ("x", [1, 4, 8, 8])
    assert (answer.name, list(answer.dims)) == ("y", [1, 8, 8, 8])
    assert [(group.kind, group.count) for group in config.instance_group] == [(2, 1)]  # KIND_CPU
    assert {key: value.string_value for key, value in config.parameters.items()} == {
        "intra_op_thread_count": "1",
        "inter_op_thread_count": "1",
        "execution_mode": "0",
    }
    file = tmp_path / "out" / "net" / "1" / config.default_model_filename
    assert file.read_bytes() == (delivery.folder / "model.onnx").read_bytes()
    (model,) = result.models
    assert (model.rows, result.distance, result.samples) == (1, 0.0, 2)
    spins, alone = model.remarks
    assert spins.startswith("threads spin while they wait")
    assert alone == "requests are not joined: it keeps a state from step to step"
    readme = (tmp_path / "out" / "README.md").read_text()
    assert all(remark in readme for remark in model.remarks)


@pytest.mark.parametrize(
    ("level", "number"),
    [("ORT_ENABLE_ALL", None), ("ORT_ENABLE_BASIC", -1), ("ORT_DISABLE_ALL", 2)],
)
def test_levels_are_tritons_own(level: str, number: int | None, tmp_path: Path) -> None:
    """onnxruntime_backend reads -1, 1 and 2; whatever else it reads, and nothing, is all optimisations."""
    delivery = delivered(tmp_path, onnxruntime.NAME)
    rewritten(delivery.folder, "session.json", {"graph_optimization_level": level})
    exported(delivery.folder, tmp_path / "out", TRITON)
    config = triton_configuration(tmp_path / "out" / "net")
    assert config.optimization.HasField("graph") == (number is not None)
    assert config.optimization.graph.level == (number or 0)


def test_requests_are_joined_where_rows_keep_apart(tmp_path: Path) -> None:
    result = export_workspace(rows_in(tmp_path), tmp_path / "out", TRITON)
    config = triton_configuration(tmp_path / "out" / "m")
    assert (config.max_batch_size, config.HasField("dynamic_batching")) == (8, True)
    assert [list(port.dims) for port in (*config.input, *config.output)] == [[4], [4], [1]]
    assert config.output[1].HasField("reshape") and not config.output[1].reshape.shape
    assert result.models[0].rows == 8


@pytest.mark.parametrize(
    ("way", "rows", "remarks"),
    [
        (Way(1, 1, 4), 4, []),
        (Way(1, 2, 4), 4, ["each of 2 instances", "measured with one session that all callers shared"]),
        (Way(2, 2, 4, shared=True), 4, ["each of 2 instances", "measured with one session that all callers shared"]),
        (Way(2, 3), 0, ["each of 3 instances", "as measured", "not joined: one item in a run was the fastest way"]),
    ],
)
def test_triton_runs_as_many_requests_at_once_as_the_way(
    way: Way, rows: int, remarks: list[str], tmp_path: Path
) -> None:
    folder = rows_in(tmp_path, way=way)
    result = export_workspace(folder, tmp_path / "out", TRITON)
    config = triton_configuration(tmp_path / "out" / "m")
    assert [(group.kind, group.count) for group in config.instance_group] == [(2, way.at_once)]
    assert config.parameters["intra_op_thread_count"].string_value == str(way.threads)
    assert (config.max_batch_size, config.HasField("dynamic_batching")) == (rows, rows > 0)
    assert config.dynamic_batching.max_queue_delay_microseconds == 0
    said = "; ".join(result.models[0].remarks)
    assert all(remark in said for remark in remarks) and ("instances" in said) == (way.at_once > 1)
    assert f"The speed was measured in this way: {way}." in (tmp_path / "out" / "README.md").read_text()


def test_requests_are_not_joined_where_all_first_dimensions_are_dynamic_and_rows_mix(tmp_path: Path) -> None:
    """Triton would join them by itself, had it to complete the configuration. Text follows text in one dimension."""
    flattened = parsed(
        "(float[batch,S,4] x) => (float[M,4] y) <int64[2] flat = {-1, 4}> { y = Reshape (x, flat) }", imports='"": 17'
    )
    folder = workspace_of(tmp_path / "work", flattened, {"x": np.ones((2, 3, 4), np.float32)})
    result = export_workspace(folder, tmp_path / "out", TRITON)
    config = triton_configuration(tmp_path / "out" / "m")
    assert (config.max_batch_size, config.HasField("dynamic_batching")) == (0, False)
    assert [list(port.dims) for port in (*config.input, *config.output)] == [[-1, -1, 4], [-1, 4]]
    assert any(remark.startswith("requests are not joined: ") for remark in result.models[0].remarks)


def test_triton_reads_its_configuration_for_openvino(tmp_path: Path) -> None:
    delivery = delivered(tmp_path, openvino.NAME)
    result = exported(delivery.folder, tmp_path / "out", TRITON, Joining("", 8))
    config = triton_configuration(tmp_path / "out" / "net")
    # Its backend joins only to a fixed number of rows, so that it never gets one.
    assert (config.backend, config.max_batch_size, config.HasField("dynamic_batching")) == ("openvino", 0, False)
    assert {key: value.string_value for key, value in config.parameters.items()} == {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": "1",
        "INFERENCE_NUM_THREADS": "1",
    }
    file = tmp_path / "out" / "net" / "1" / "model.xml"
    assert unkept(file) == ""
    assert unkept(delivery.folder / "model.xml") != ""
    assert file.with_suffix(".bin").is_file()
    assert result.distance <= 1e-6
    assert "layout=" not in file.read_text()  # with one, Triton would complete max_batch_size


@pytest.mark.skipif("BF16" in openvino.capabilities(), reason="a processor with bfloat16 shows it by running the file")
def test_what_openvino_rounds_whatever_the_file_says_is_refused(tmp_path: Path) -> None:
    g = Sketch(4)
    sizes = g.constant(np.array([1, 1, 2, 2], np.float32))
    y = g.op("Resize", g.conv(g.input("x", 1, 16, 12, 12), 16, 16), "", sizes, mode="linear")
    feed = {"x": np.ones((1, 16, 12, 12), np.float32)}
    folder = workspace_of(tmp_path / "work", g.model(g.rename(y, "y")), feed, openvino.NAME)
    with pytest.raises(BadOption, match=r"on processors with bfloat16 Interpolate .* whatever the file says"):
        export_workspace(folder, tmp_path / "out", TRITON)
    assert export_workspace(folder, tmp_path / "out", OVMS).models


def test_triton_is_asked_for_bfloat16_where_the_plan_has_it(tmp_path: Path) -> None:
    delivery = delivered(tmp_path, openvino.NAME)
    rewritten(delivery.folder, "properties.json", {"INFERENCE_PRECISION_HINT": "bf16"})
    model: DeliveredModel = read(delivery.folder)
    opened = served(model, model.components[0], "net", Joining("", 8), tmp_path)
    assert 'key: "HINT_BF16" value { string_value: "YES" }' in opened.configuration
    assert opened.settings["INFERENCE_PRECISION_HINT"] == "bf16"
    assert opened.files[0] == delivery.folder / "model.xml"


@pytest.mark.skipif("BF16" in openvino.capabilities(), reason="this processor computes in bfloat16")
def test_bfloat16_without_effect_here_is_refused(tmp_path: Path) -> None:
    delivery = delivered(tmp_path, openvino.NAME)
    rewritten(delivery.folder, "properties.json", {"INFERENCE_PRECISION_HINT": "bf16"})
    with pytest.raises(BadOption, match=r"openvino computes with INFERENCE_PRECISION_HINT=f32, not bf16"):
        exported(delivery.folder, tmp_path / "out", TRITON)


def test_a_model_with_states_is_not_joined(tmp_path: Path) -> None:
    folder = rows_in(tmp_path)
    workspace(folder, product(), [State("y", "x", "float32", (1, 4))])
    export_workspace(folder, tmp_path / "out", TRITON)
    assert triton_configuration(tmp_path / "out" / "m").max_batch_size == 0


def test_scalars_are_sent_as_one_number(tmp_path: Path) -> None:
    proto = parsed("(float[2] x, float factor) => (float[2] y) { y = Mul (x, factor) }")
    feed = {"x": np.ones(2, np.float32), "factor": np.array(3.0, np.float32)}
    folder = workspace_of(tmp_path / "work", proto, feed)
    export_workspace(folder, tmp_path / "out", TRITON)
    config = triton_configuration(tmp_path / "out" / "m")
    assert [list(port.dims) for port in config.input] == [[2], [1]]
    assert VERIFY not in {path.name for path in (tmp_path / "out").rglob("*")}
