"""Models that taglio refuses: one line naming the thing and the fix, a non-zero exit, existing artifacts unchanged."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.end_to_end.command import Case, quick, refused, snapshot, taglio
from tests.models import Sketch, conv_relu_chain, digits_model


def truncated(path: Path) -> None:
    whole = digits_model().read_bytes()
    path.write_bytes(whole[: len(whole) // 2])


def text(path: Path) -> None:
    path.write_text("This is not a network.\n" * 50)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def missing(path: Path) -> None:
    assert not path.exists()


def a_folder(path: Path) -> None:
    path.mkdir()


def no_graph(path: Path) -> None:
    path.write_bytes(helper.make_model(helper.make_graph([], "g", [], [])).SerializeToString())


def with_input(*shape: int | str) -> onnx.ModelProto:
    g = Sketch()
    y = g.op("Relu", g.conv(g.input("picture", *shape), 3, 4))
    return g.model(g.rename(y, "y"))


def dynamic(path: Path) -> None:
    onnx.save(with_input("batch", 3, 8, 8), path)


def without_shape(path: Path) -> None:
    proto = conv_relu_chain()
    proto.graph.input[0].type.tensor_type.ClearField("shape")
    onnx.save(proto, path)


def bad_weights(value: float) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        proto = conv_relu_chain()
        tensor = proto.graph.initializer[0]
        values = onnx.numpy_helper.to_array(tensor).copy()
        values.flat[:2] = value
        tensor.CopyFrom(onnx.numpy_helper.from_array(values, "poisoned"))
        for node in proto.graph.node:
            node.input[:] = ["poisoned" if name == "w0" else name for name in node.input]
        onnx.save(proto, path)

    return make


def custom(path: Path) -> None:
    proto = conv_relu_chain()
    proto.graph.node[1].op_type, proto.graph.node[1].domain = "Swoosh", "com.example"
    proto.opset_import.append(helper.make_opsetid("com.example", 1))
    onnx.save(proto, path)


def bad_attribute(path: Path) -> None:
    proto = conv_relu_chain()
    proto.graph.node[0].attribute.append(helper.make_attribute("swoosh", 3))
    onnx.save(proto, path)


def unknown_operator(path: Path) -> None:
    proto = conv_relu_chain()
    proto.graph.node[1].op_type = "Reluu"
    onnx.save(proto, path)


def wrong_channels(path: Path) -> None:
    g = Sketch()
    g.nodes.append(helper.make_node("Conv", [g.input("x", 1, 3, 8, 8), g.weight(4, 5, 3, 3)], ["y"], name="conv"))
    infos = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(g.nodes, "g", g.inputs, infos, g.initializers)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(proto.SerializeToString())


def undefined_tensor(path: Path) -> None:
    proto = conv_relu_chain()
    proto.graph.node[2].input[0] = "nowhere"
    onnx.save(proto, path)


def from_the_future(path: Path) -> None:
    proto = conv_relu_chain()
    proto.opset_import[0].version = 999
    onnx.save(proto, path)


def without_external_weights(path: Path) -> None:
    onnx.save(conv_relu_chain(), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    (path.parent / "weights.bin").unlink()


BAD_MODELS: list[tuple[str, Callable[[Path], None], tuple[str, ...]]] = [
    ("truncated", truncated, ("cut short", "bytes", "export it again")),
    ("text", text, ("not an ONNX file", "export it again")),
    ("empty", empty, ("0 bytes",)),
    ("missing", missing, ("no such file",)),
    ("a folder", a_folder, ("is a folder",)),
    ("no graph", no_graph, ("no ONNX graph",)),
    ("NaN weights", bad_weights(np.nan), ("poisoned", "2 NaN or Inf", "among 216")),
    ("infinite weights", bad_weights(np.inf), ("poisoned", "2 NaN or Inf")),
    ("custom", custom, ("Swoosh", "com.example")),
    ("bad attribute", bad_attribute, ("ONNX Runtime", "swoosh")),
    ("unknown operator", unknown_operator, ("ONNX Runtime", "Reluu")),
    ("undefined tensor", undefined_tensor, ("ONNX Runtime", "nowhere")),
    ("from the future", from_the_future, ("ONNX Runtime",)),
    ("without external weights", without_external_weights, ("external weights",)),
]


@pytest.mark.parametrize(("make", "words"), [each[1:] for each in BAD_MODELS], ids=[each[0] for each in BAD_MODELS])
def test_a_model_that_cannot_be_planned(
    make: Callable[[Path], None], words: tuple[str, ...], tmp_path: Path, workspace: Path, tiny: Case
) -> None:
    bad = tmp_path / "bad.onnx"
    make(bad)
    before = snapshot(workspace)
    options = ("--data", tiny.data, "--max-error", 0.01, "-o", workspace)
    for ran in (taglio("inspect", bad), taglio("optimize", bad, *options)):
        refused(ran, "BadModel", "bad.onnx", *words)
    assert snapshot(workspace) == before


def test_a_model_of_another_kind_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(b"PK\x03\x04" + bytes(100))
    refused(taglio("inspect", path), "BadModel", "model.pt", "PyTorch weights", "torch.export.save", "module:function")


def test_a_fixed_shape_makes_a_dynamic_model_fit(tmp_path: Path, tiny: Case) -> None:
    path = tmp_path / "dynamic.onnx"
    dynamic(path)
    shape = ("--shape", "picture=1x3x8x8")
    assert "picture 1x3x8x8" in taglio("inspect", path, *shape).out
    printed = quick(Case(path, tiny.data), tmp_path / "out", "--max-error", 0.1, *shape, "--json").json()
    assert printed["plan"]["blocks"] == 1
    assert taglio("run", tmp_path / "out", "--runs", 2, "--json").code == 0


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ("image=1x3x8x8", ("image", "picture")),
        ("picture=3x8x8", ("3 dimensions", "4")),
        ("picture=1x4x8x8", ("gives 4", "fixes 3")),
        ("picture=1xtwox8x8", ("INPUT=1x3x224x224",)),
        ("picture=-1x3x8x8", ("0 or more",)),
        ("1x3x8x8", ("INPUT=1x3x224x224",)),
    ],
)
def test_a_shape_that_does_not_fit(shape: str, words: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "dynamic.onnx"
    dynamic(path)
    refused(taglio("inspect", path, "--shape", shape), "--shape", *words)
