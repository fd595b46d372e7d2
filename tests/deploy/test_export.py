"""Exported repositories hold what was delivered, in the servers' formats, and only where the answers are the same."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, parser

from taglio import artifact, weights
from taglio.components.build import State
from taglio.components.build import write as write_components
from taglio.components.cut import Component
from taglio.cores import available_cores
from taglio.deploy.export import LAYOUTS, OVMS, PLAIN, TRITON, Export, export
from taglio.deploy.folder import DeliveredModel, read
from taglio.deploy.served import Joining
from taglio.deploy.triton import served
from taglio.deploy.verify import HOLDS
from taglio.deploy.write import VERIFY, Answered, read_answered, write
from taglio.errors import BadArtifact, BadOption
from taglio.flow.export import export as export_workspace
from taglio.flow.work import Setup
from taglio.flow.workspace import COMPONENTS, DEPLOY, SETUP
from taglio.run.in_process import Executor
from taglio.runtimes import onnxruntime, openvino
from taglio.runtimes.openvino_marks import unkept
from taglio.runtimes.way import Way
from tests.deploy.test_delivery import Delivery, delivered
from tests.end_to_end.command import refused, taglio
from tests.models import Sketch

pytest.importorskip("openvino")
ALONE = Joining("it keeps a state from step to step")


def exported(folder: Path, target: Path, layout: str, joining: Joining = ALONE) -> Export:
    model = read(folder)
    joined = {part.name: joining for part in model.components}
    return export(model, target, layout, "net", joined, read_answered(folder))


def configuration(path: Path) -> Any:
    """config.pbtxt, read by the parser of Triton's published model_config.proto."""
    model_config_pb2 = pytest.importorskip("tritonclient.grpc.model_config_pb2")
    from google.protobuf import text_format  # noqa: PLC0415 - a dependency of tritonclient

    return text_format.Parse(path.read_text(), model_config_pb2.ModelConfig())


def rewritten(folder: Path, name: str, change: Mapping[str, Any]) -> None:
    """Change a settings file as if it had been delivered so."""
    path, manifest = folder / name, folder / "deploy.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    described = json.loads(manifest.read_text())
    described["sha256"][name] = weights.sha256(path)
    manifest.write_text(json.dumps(described))


def of_onnx(
    folder: Path,
    proto: onnx.ModelProto,
    feed: dict[str, np.ndarray],
    runtime: str = onnxruntime.NAME,
    way: Way = Way(1),  # noqa: B008 - a value
) -> Path:
    """A workspace with `proto` built and delivered in `way`, without a plan."""
    inputs, outputs = (tuple(value.name for value in values) for values in (proto.graph.input, proto.graph.output))
    part = Component("0-local", "local", ("all",), proto, inputs, outputs, {})
    runtimes = {"local": runtime}
    manifest = write_components(folder / COMPONENTS, "0" * 64, inputs, outputs, [part], runtimes=runtimes)
    setup = Setup("flat.onnx", {}, "", "", 0, way.threads, way.spinning, "all", runtime=runtime)
    setup = replace(setup, at_once=way.at_once, joined=way.joined)
    artifact.save(folder / f"{SETUP}.json", SETUP, "0" * 64, setup)
    values = Executor(folder / COMPONENTS, manifest, setup.options()).run(feed)
    answered = [Answered(feed, dict(zip(manifest.outputs, values, strict=True)))]
    write(folder / DEPLOY, folder / COMPONENTS, manifest, setup.options(), answered, setup.way)
    return folder


def graph(inputs: str, outputs: str, constants: str, operators: str) -> onnx.ModelProto:
    head = '<ir_version: 9, opset_import: ["" : 17]>'
    return parser.parse_model(f"{head} g ({inputs}) => ({outputs}) <{constants}> {{ {operators} }}")


@pytest.fixture(params=[onnxruntime.NAME, openvino.NAME])
def delivery(request: pytest.FixtureRequest, tmp_path: Path) -> Delivery:
    return delivered(tmp_path, request.param)


def test_plain_is_the_delivered_folder(delivery: Delivery, tmp_path: Path) -> None:
    exported(delivery.folder, tmp_path / "out", PLAIN)
    copied, original = (
        {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        for folder in (tmp_path / "out", delivery.folder)
    )
    assert copied == original
    assert Delivery(tmp_path / "out", delivery.components, delivery.manifest, []).verify().returncode == HOLDS


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_folder_with_files_is_refused_and_an_empty_one_is_filled(layout: str, tmp_path: Path) -> None:
    delivery = delivered(tmp_path, openvino.NAME)
    target = tmp_path / "deep" / "out"
    target.mkdir(parents=True)
    (target / "mine.txt").write_text("")
    with pytest.raises(BadOption, match="out exists and is not an empty folder: give a new one, or remove it"):
        exported(delivery.folder, target, layout)
    (target / "mine.txt").unlink()
    exported(delivery.folder, target, layout)
    assert (target / "README.md").is_file()
    assert [path.name for path in target.parent.iterdir()] == ["out"]


def test_nothing_appears_where_an_export_is_refused(tmp_path: Path) -> None:
    delivery = delivered(tmp_path, onnxruntime.NAME)
    rewritten(delivery.folder, "session.json", {"config_entries": {"session.x64quantprecision": "1"}})
    before = sorted(tmp_path.iterdir())
    with pytest.raises(BadOption, match=r"answers may depend on session\.x64quantprecision, which it cannot set"):
        exported(delivery.folder, tmp_path / "deep" / "out", TRITON)
    assert sorted(tmp_path.iterdir()) == before


def test_a_changed_file_is_not_exported(delivery: Delivery, tmp_path: Path) -> None:
    name = read(delivery.folder).components[0].model
    with (delivery.folder / name).open("ab") as file:
        file.write(b"\0")
    with pytest.raises(BadArtifact, match=f"{name}: changed since it was delivered"):
        exported(delivery.folder, tmp_path / "out", PLAIN)


def test_nothing_outside_the_folder_is_exported(delivery: Delivery) -> None:
    manifest = delivery.folder / "deploy.json"
    (delivery.folder.parent / "secret").write_text("secret")
    described = json.loads(manifest.read_text())
    described["sha256"]["../secret"] = weights.sha256(delivery.folder.parent / "secret")
    manifest.write_text(json.dumps(described))
    with pytest.raises(BadArtifact, match=r"file \.\./secret lies outside the folder"):
        read(delivery.folder)


def test_without_samples_only_the_folder_itself_is_exported(delivery: Delivery, tmp_path: Path) -> None:
    shutil.rmtree(delivery.folder / "samples")
    with pytest.raises(BadOption, match="holds no samples, by which an export for OpenVINO Model Server is proven"):
        exported(delivery.folder, tmp_path / "out", OVMS)
    assert exported(delivery.folder, tmp_path / "out", PLAIN).models == ()


def test_triton_reads_its_configuration_for_onnxruntime(tmp_path: Path) -> None:
    delivery = delivered(tmp_path, onnxruntime.NAME)
    result = exported(delivery.folder, tmp_path / "out", TRITON)
    config = configuration(tmp_path / "out" / "net" / "config.pbtxt")
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
    [("ORT_ENABLE_ALL", None), ("ORT_ENABLE_EXTENDED", 1), ("ORT_ENABLE_BASIC", -1), ("ORT_DISABLE_ALL", 2)],
)
def test_levels_are_tritons_own(level: str, number: int | None, tmp_path: Path) -> None:
    """onnxruntime_backend reads -1, 1 and 2; whatever else it reads, and nothing, is all optimisations."""
    delivery = delivered(tmp_path, onnxruntime.NAME)
    rewritten(delivery.folder, "session.json", {"graph_optimization_level": level})
    exported(delivery.folder, tmp_path / "out", TRITON)
    config = configuration(tmp_path / "out" / "net" / "config.pbtxt")
    assert config.optimization.HasField("graph") == (number is not None)
    assert config.optimization.graph.level == (number or 0)


JOINED = graph(
    "float[batch,4] x",
    "float[batch,4] y, int64[batch] index",
    "float[4] scale = {1, 2, 3, 4}",
    "y = Mul(x, scale) index = ArgMax<axis=1, keepdims=0>(y)",
)
# Text after text in one dimension of tokens: rows of one request belong together.
FLATTENED = graph("float[batch,S,4] x", "float[M,4] y", "int64[2] flat = {-1, 4}", "y = Reshape(x, flat)")


def test_requests_are_joined_where_rows_keep_apart(tmp_path: Path) -> None:
    rows = np.arange(8, dtype=np.float32).reshape(2, 4)
    folder = of_onnx(tmp_path / "work", JOINED, {"x": rows})
    result = export_workspace(folder, tmp_path / "out", TRITON)
    config = configuration(tmp_path / "out" / "flat" / "config.pbtxt")
    assert (config.max_batch_size, config.HasField("dynamic_batching")) == (8, True)
    assert [list(port.dims) for port in (*config.input, *config.output)] == [[4], [4], [1]]
    assert config.output[1].HasField("reshape") and not config.output[1].reshape.shape
    assert result.models[0].rows == 8


@pytest.mark.parametrize(
    ("way", "rows", "remarks"),
    [
        (Way(1, 1, 4), 4, []),
        (Way(1, 2, 4), 4, ["each of 2 instances", "measured with one session that all callers shared"]),
        (Way(2, 3), 0, ["each of 3 instances", "as measured", "not joined: one item in a run was the fastest way"]),
    ],
)
def test_triton_runs_as_many_requests_at_once_as_the_way(
    way: Way, rows: int, remarks: list[str], tmp_path: Path
) -> None:
    folder = of_onnx(tmp_path / "work", JOINED, {"x": np.ones((2, 4), np.float32)}, way=way)
    result = export_workspace(folder, tmp_path / "out", TRITON)
    config = configuration(tmp_path / "out" / "flat" / "config.pbtxt")
    assert [(group.kind, group.count) for group in config.instance_group] == [(2, way.at_once)]
    assert config.parameters["intra_op_thread_count"].string_value == str(way.threads)
    assert (config.max_batch_size, config.HasField("dynamic_batching")) == (rows, rows > 0)
    assert config.dynamic_batching.max_queue_delay_microseconds == 0
    said = "; ".join(result.models[0].remarks)
    assert all(remark in said for remark in remarks) and ("instances" in said) == (way.at_once > 1)
    assert f"The model was measured in this way: {way}." in (tmp_path / "out" / "README.md").read_text()


def test_a_way_is_read(tmp_path: Path) -> None:
    folder = delivered(tmp_path, onnxruntime.NAME, way=Way(2, 3, 4)).folder
    assert read(folder).way == Way(2, 3, 4)
    manifest = folder / "deploy.json"
    described = json.loads(manifest.read_text())
    described["way"]["at_once"] = 0
    manifest.write_text(json.dumps(described))
    with pytest.raises(BadArtifact, match=r"deploy\.json: damaged \(a way needs at least one of each"):
        read(folder)


def test_requests_are_not_joined_where_all_first_dimensions_are_dynamic_and_rows_mix(tmp_path: Path) -> None:
    """Triton would join them by itself, had it to complete the configuration."""
    folder = of_onnx(tmp_path / "work", FLATTENED, {"x": np.ones((2, 3, 4), np.float32)})
    result = export_workspace(folder, tmp_path / "out", TRITON)
    config = configuration(tmp_path / "out" / "flat" / "config.pbtxt")
    assert (config.max_batch_size, config.HasField("dynamic_batching")) == (0, False)
    assert [list(port.dims) for port in (*config.input, *config.output)] == [[-1, -1, 4], [-1, 4]]
    assert any(remark.startswith("requests are not joined: ") for remark in result.models[0].remarks)


def test_types_that_triton_cannot_send_are_refused(tmp_path: Path) -> None:
    doubled = graph("double[1,4] x", "double[1,4] y", "", "y = Add(x, x)")
    folder = of_onnx(tmp_path / "work", doubled, {"x": np.ones((1, 4))}, openvino.NAME)
    with pytest.raises(BadOption, match=r"it has no type for f64 \(x\): use `layout` plain"):
        export_workspace(folder, tmp_path / "out", TRITON)


def test_triton_reads_its_configuration_for_openvino(tmp_path: Path) -> None:
    delivery = delivered(tmp_path, openvino.NAME)
    result = exported(delivery.folder, tmp_path / "out", TRITON, Joining("", 8))
    config = configuration(tmp_path / "out" / "net" / "config.pbtxt")
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


@pytest.mark.skipif(available_cores() < 2, reason="OpenVINO makes one stream of two here")
def test_servers_have_a_request_for_each_stream_of_openvino(tmp_path: Path) -> None:
    way = Way(1, 2, 4)
    folder = of_onnx(tmp_path / "work", JOINED, {"x": np.ones((2, 4), np.float32)}, openvino.NAME, way)
    export_workspace(folder, tmp_path / "triton", TRITON)
    config = configuration(tmp_path / "triton" / "flat" / "config.pbtxt")
    assert [(group.kind, group.count) for group in config.instance_group] == [(2, 2)]
    streams = {"PERFORMANCE_HINT": "THROUGHPUT", "NUM_STREAMS": "2", "INFERENCE_NUM_THREADS": "2"}
    assert {key: value.string_value for key, value in config.parameters.items()} == streams
    result = export_workspace(folder, tmp_path / "ovms", OVMS)
    (entry,) = json.loads((tmp_path / "ovms" / "config.json").read_text())["model_config_list"]
    assert entry["config"]["nireq"] == 2
    assert entry["config"]["plugin_config"] == {**streams, "INFERENCE_PRECISION_HINT": "f32"}
    assert result.models[0].remarks == ("requests are not joined there; measured with up to 4 in a run",)


@pytest.mark.skipif(available_cores() < 2, reason="OpenVINO makes one stream of two here")
def test_ovms_has_streams_for_a_plan_for_onnxruntime(tmp_path: Path) -> None:
    folder = of_onnx(tmp_path / "work", JOINED, {"x": np.ones((2, 4), np.float32)}, way=Way(1, 2))
    export_workspace(folder, tmp_path / "out", OVMS)
    (entry,) = json.loads((tmp_path / "out" / "config.json").read_text())["model_config_list"]
    assert (entry["config"]["nireq"], entry["config"]["plugin_config"]["NUM_STREAMS"]) == (2, "2")


def resized() -> onnx.ModelProto:
    g = Sketch(4)
    sizes = g.constant(np.array([1, 1, 2, 2], np.float32))
    y = g.op("Resize", g.conv(g.input("x", 1, 16, 12, 12), 16, 16), "", sizes, mode="linear")
    return g.model(g.rename(y, "y"))


@pytest.mark.skipif("BF16" in openvino.capabilities(), reason="a processor with bfloat16 shows it by running the file")
def test_what_openvino_rounds_whatever_the_file_says_is_refused(tmp_path: Path) -> None:
    folder = of_onnx(tmp_path / "work", resized(), {"x": np.ones((1, 16, 12, 12), np.float32)}, openvino.NAME)
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


# What one model uses of MODELS_CONFIG_SCHEMA and its definitions in openvinotoolkit/model_server, src/schema.cpp.
_TEXT = {"type": "string"}
OVMS_SCHEMA = {
    "type": "object",
    "required": ["model_config_list"],
    "additionalProperties": False,
    "properties": {
        "model_config_list": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["config"],
                "maxProperties": 1,
                "additionalProperties": False,
                "properties": {
                    "config": {
                        "type": "object",
                        "required": ["name"],
                        "additionalProperties": False,
                        "properties": {
                            "name": _TEXT,
                            "base_path": _TEXT,
                            "batch_size": {"type": ["integer", "string"], "minimum": 0},
                            "nireq": {"type": "integer", "minimum": 0},
                            "target_device": _TEXT,
                            "allow_cache": {"type": "boolean"},
                            "plugin_config": {
                                "type": "object",
                                "additionalProperties": {
                                    "anyOf": [{"type": "string"}, {"type": "boolean"}, {"type": "number"}]
                                },
                            },
                        },
                    }
                },
            },
        }
    },
}


def test_ovms_reads_its_configuration(tmp_path: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    delivery = delivered(tmp_path, openvino.NAME)
    result = exported(delivery.folder, tmp_path / "out", OVMS)
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    jsonschema.validate(written, OVMS_SCHEMA)
    (entry,) = written["model_config_list"]
    assert entry["config"] == {
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


def test_ovms_serves_a_float_plan_for_onnxruntime_whose_answers_agree(tmp_path: Path) -> None:
    delivery = delivered(tmp_path, onnxruntime.NAME)
    result = exported(delivery.folder, tmp_path / "out", OVMS)
    (entry,) = json.loads((tmp_path / "out" / "config.json").read_text())["model_config_list"]
    assert entry["config"]["plugin_config"]["INFERENCE_PRECISION_HINT"] == "f32"
    assert sorted(path.name for path in (tmp_path / "out" / "net" / "1").iterdir()) == ["model.bin", "model.xml"]
    assert result.distance <= 1e-5
    assert result.models[0].remarks == (
        "planned for ONNX Runtime, served by OpenVINO: the answers agree, the speed was not measured",
    )


def test_ovms_does_not_serve_an_int8_plan_for_onnxruntime(tmp_path: Path) -> None:
    pair = graph(
        "float[1,4] x",
        "float[1,4] y",
        "float s = {0.1}, uint8 z = {128}",
        "q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z)",
    )
    folder = of_onnx(tmp_path / "work", pair, {"x": np.ones((1, 4), np.float32)})
    with pytest.raises(
        BadOption, match="the error of 1 QuantizeLinear, 1 DequantizeLinear was measured in ONNX Runtime"
    ):
        export_workspace(folder, tmp_path / "out", OVMS)


def test_answers_that_differ_as_the_server_opens_the_files_are_refused(tmp_path: Path) -> None:
    delivery = delivered(tmp_path, onnxruntime.NAME)
    model = read(delivery.folder)
    wrong = [Answered(sample.inputs, {"y": 1.01 * sample.outputs["y"]}) for sample in read_answered(delivery.folder)]
    joining = {part.name: ALONE for part in model.components}
    with pytest.raises(BadOption, match=r"cannot be exported for Triton: opened as it opens files, run without taglio"):
        export(model, tmp_path / "out", TRITON, "net", joining, wrong)


@pytest.mark.parametrize("layout", [TRITON, OVMS])
def test_each_device_gets_a_repository(layout: str, tmp_path: Path) -> None:
    delivery = delivered(tmp_path, openvino.NAME, devices=2)
    result = exported(delivery.folder, tmp_path / "out", layout)
    parts = read(delivery.folder).components
    assert [model.name for model in result.models] == [f"net-{part.name}" for part in parts]
    for model, part in zip(result.models, parts, strict=True):
        folder = tmp_path / "out" / part.device / f"net-{part.name}"
        assert model.path == f"{part.device}/net-{part.name}"
        assert (folder / "1" / part.model).is_file()
    readme = (tmp_path / "out" / "README.md").read_text()
    crossing = read(delivery.folder).crossing()
    assert crossing
    for name, sender, reader in crossing:
        assert f"| {name} | net-{sender.name} | net-{reader.name} |" in readme
    if layout == OVMS:
        names = [
            entry["config"]["name"]
            for device in ("box0", "box1")
            for entry in json.loads((tmp_path / "out" / device / "config.json").read_text())["model_config_list"]
        ]
        assert sorted(names) == sorted(model.name for model in result.models)


def test_components_on_several_devices_are_exported_from_a_workspace(tmp_path: Path) -> None:
    delivery = delivered(tmp_path, onnxruntime.NAME, devices=2)
    setup = Setup("camera.onnx", {}, "", "", 0, 1, False, "all")
    artifact.save(tmp_path / f"{SETUP}.json", SETUP, delivery.manifest.model_sha256, setup)
    result = export_workspace(tmp_path, tmp_path / "out", TRITON)
    assert [model.name for model in result.models] == [f"camera-{piece.name}" for piece in delivery.manifest.pieces]
    for model in result.models:
        config = configuration(tmp_path / "out" / model.path / "config.pbtxt")
        assert (config.name, config.max_batch_size) == (model.name, 0)


def test_the_command_line_exports_and_refuses_in_one_line(tmp_path: Path) -> None:
    folder = of_onnx(tmp_path / "work", JOINED, {"x": np.ones((1, 4), np.float32)})
    ran = taglio("export", folder, "--layout", "triton", tmp_path / "out")
    assert (ran.code, ran.err) == (0, "")
    line = " ".join(ran.out.split())
    assert "1 model for triton; opened as the server opens it, its answers to 1 input are identical to" in line
    refused(taglio("export", folder, tmp_path / "out"), "out exists and is not an empty folder: give a new one")
    ran = taglio("export", folder, tmp_path / "copy", "--json")
    assert ran.json()["layout"] == "plain"


def test_a_model_with_states_is_not_joined(tmp_path: Path) -> None:
    folder = of_onnx(tmp_path / "work", JOINED, {"x": np.ones((1, 4), np.float32)})
    inputs, outputs = (tuple(value.name for value in values) for values in (JOINED.graph.input, JOINED.graph.output))
    part = Component("0-local", "local", ("all",), JOINED, inputs, outputs, {})
    state = State("y", "x", "float32", (1, 4))
    write_components(folder / COMPONENTS, "0" * 64, inputs, outputs, [part], states=[state])
    export_workspace(folder, tmp_path / "out", TRITON)
    assert configuration(tmp_path / "out" / "flat" / "config.pbtxt").max_batch_size == 0


def test_an_unknown_layout_and_a_workspace_without_deploy_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="`layout` zip: use plain, triton or ovms"):
        export_workspace(tmp_path, tmp_path / "out", "zip")
    with pytest.raises(BadArtifact, match="deploy: nothing was delivered here: run taglio build first"):
        export_workspace(tmp_path, tmp_path / "out", PLAIN)


def test_scalars_are_sent_as_one_number(tmp_path: Path) -> None:
    value = helper.make_tensor_value_info
    node = helper.make_node("Mul", ["x", "factor"], ["y"])
    graph_proto = helper.make_graph(
        [node],
        "scaled",
        [value("x", TensorProto.FLOAT, [2]), value("factor", TensorProto.FLOAT, [])],
        [value("y", TensorProto.FLOAT, [2])],
    )
    proto = helper.make_model(graph_proto, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    feed = {"x": np.ones(2, np.float32), "factor": np.array(3.0, np.float32)}
    folder = of_onnx(tmp_path / "work", proto, feed)
    export_workspace(folder, tmp_path / "out", TRITON)
    config = configuration(tmp_path / "out" / "flat" / "config.pbtxt")
    assert [list(port.dims) for port in config.input] == [[2], [1]]
    assert VERIFY not in {path.name for path in (tmp_path / "out").rglob("*")}
