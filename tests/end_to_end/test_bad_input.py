"""What taglio refuses: one line that names the thing and the fix, a non-zero exit, and nothing that existed changed."""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from PIL import Image

from taglio.embedded import digits_model
from tests.conftest import Staged
from tests.end_to_end.command import ENVIRONMENT, SCHEME, Case, Ran, refused, snapshot, taglio
from tests.models import Sketch, conv_relu_chain, pyramid, saved, two_in_two_out

# --- models -----------------------------------------------------------------------------------------------------------


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


def dynamic_sides(path: Path) -> None:
    onnx.save(with_input(1, 3, "height", "width"), path)


def zero(path: Path) -> None:
    onnx.save(with_input(1, 3, 0, 8), path)


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


def bad_constant(path: Path) -> None:
    """NaN in a Constant operator instead of an initialiser."""
    g = Sketch()
    x = g.input("x", 1, 3, 8, 8)
    value = onnx.numpy_helper.from_array(np.full((1, 3, 1, 1), np.nan, np.float32))
    scale = g.op("Constant", value=value)
    onnx.save(g.model(g.rename(g.op("Mul", x, scale), "y")), path)


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


def mixed_types(path: Path) -> None:
    values = [helper.make_tensor_value_info(*each) for each in (
        ("a", TensorProto.FLOAT, [1, 4]), ("b", TensorProto.INT64, [1, 4]), ("y", TensorProto.FLOAT, [1, 4])
    )]  # fmt: skip
    graph = helper.make_graph([helper.make_node("Add", ["a", "b"], ["y"])], "g", values[:2], values[2:])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(proto.SerializeToString())


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
    ("dynamic", dynamic, ("picture", "batchx3x8x8", "--shape picture=1x3x8x8")),
    ("dynamic sides", dynamic_sides, ("1x3xheightxwidth", "--shape picture=")),
    ("without shape", without_shape, ("no shape", "--shape x=")),
    ("zero", zero, ("zero dimension", "1x3x0x8")),
    ("NaN weights", bad_weights(np.nan), ("poisoned", "2 NaN or Inf", "among 216")),
    ("infinite weights", bad_weights(np.inf), ("poisoned", "2 NaN or Inf")),
    ("bad constant", bad_constant, ("NaN",)),
    ("custom", custom, ("Swoosh", "com.example")),
    ("bad attribute", bad_attribute, ("ONNX Runtime", "swoosh")),
    ("unknown operator", unknown_operator, ("ONNX Runtime", "Reluu")),
    ("mixed types", mixed_types, ("ONNX Runtime",)),
    ("wrong channels", wrong_channels, ("ONNX Runtime",)),
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


def test_a_fixed_shape_makes_a_dynamic_model_fit(tmp_path: Path, tiny: Case) -> None:
    path = tmp_path / "dynamic.onnx"
    dynamic(path)
    shape = ("--shape", "picture=1x3x8x8")
    assert "picture 1x3x8x8" in taglio("inspect", path, *shape).out
    options = ("--data", tiny.data, "--max-error", 0.1, "--scheme", SCHEME, "--effort", 0.01, "-o", tmp_path / "out")
    assert taglio("optimize", path, *shape, *options, "--json").json()["plan"]["blocks"] == 1
    assert taglio("run", tmp_path / "out", "--runs", 2, "--json").code == 0


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ("image=1x3x8x8", ("image", "picture")),
        ("picture=3x8x8", ("3 dimensions", "4")),
        ("picture=1x4x8x8", ("gives 4", "fixes 3")),
        ("picture=1xtwox8x8", ("INPUT=1x3x224x224",)),
        ("picture=0x3x8x8", ("at least 1",)),
        ("1x3x8x8", ("INPUT=1x3x224x224",)),
    ],
)
def test_a_shape_that_does_not_fit(shape: str, words: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "dynamic.onnx"
    dynamic(path)
    refused(taglio("inspect", path, "--shape", shape), "--shape", *words)


# --- data -------------------------------------------------------------------------------------------------------------


def array(*shape: int, kind: Any = np.float32) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        np.save(folder / "data.npy", np.ones(shape, kind))
        return folder / "data.npy"

    return make


def poisoned_array(folder: Path) -> Path:
    values = np.ones((6, 3, 8, 8), np.float32)
    values[4, 0, 0, 0] = np.nan
    np.save(folder / "data.npy", values)
    return folder / "data.npy"


def text_array(folder: Path) -> Path:
    np.save(folder / "data.npy", np.full((6, 3, 8, 8), "dog"))
    return folder / "data.npy"


def pickled(folder: Path) -> Path:
    np.save(folder / "data.npy", np.array([{"a": 1}, None], dtype=object), allow_pickle=True)
    return folder / "data.npy"


def cut_short(folder: Path) -> Path:
    path = folder / "data.npz"
    np.savez(path, x=np.ones((6, 3, 8, 8), np.float32))
    path.write_bytes(path.read_bytes()[:2000])
    return path


def other_keys(folder: Path) -> Path:
    np.savez(folder / "data.npz", a=np.ones((6, 3, 8, 8), np.float32), b=np.ones(6))
    return folder / "data.npz"


def too_few_labels(folder: Path) -> Path:
    np.savez(folder / "data.npz", x=np.ones((6, 3, 8, 8), np.float32), label=np.ones(5, int))
    return folder / "data.npz"


def nowhere(folder: Path) -> Path:
    return folder / "nowhere"


def a_table(folder: Path) -> Path:
    (folder / "data.csv").write_text("1,2,3\n")
    return folder / "data.csv"


def empty_folder(folder: Path) -> Path:
    (folder / "pictures").mkdir()
    return folder / "pictures"


def pictures(count: int, folder: Path) -> Path:
    where = empty_folder(folder)
    for index in range(count):
        Image.fromarray(np.full((8, 8, 3), 40 * index, np.uint8)).save(where / f"{index}.png")
    return where


def one_picture(folder: Path) -> Path:
    return pictures(1, folder)


def an_unreadable_picture(folder: Path) -> Path:
    where = pictures(3, folder)
    (where / "broken.jpg").write_bytes(b"\xff\xd8\xff nothing more")
    return where


def a_truncated_picture(folder: Path) -> Path:
    where = pictures(3, folder)
    whole = (where / "1.png").read_bytes()
    (where / "1.png").write_bytes(whole[: len(whole) // 2])
    return where


BAD_DATA: list[tuple[str, Callable[[Path], Path], tuple[str, ...]]] = [
    ("other size", array(6, 3, 9, 9), ("[6, 3, 9, 9]", "[1, 3, 8, 8]")),
    ("channels last", array(6, 8, 8, 3), ("[6, 8, 8, 3]", "moveaxis")),
    ("no samples axis", array(3, 8, 8), ("[3, 8, 8]", "array[None]")),
    ("raw pixels", array(6, 3, 8, 8, kind=np.uint8), ("uint8", "preprocessing")),
    ("complex", array(6, 3, 8, 8, kind=np.complex64), ("complex64", "numbers")),
    ("one sample", array(1, 3, 8, 8), ("1 samples", "at least 2")),
    ("no sample", array(0, 3, 8, 8), ("0 samples",)),
    ("text", text_array, ("save numbers",)),
    ("objects", pickled, ("cannot be read",)),
    ("NaN", poisoned_array, ("sample 4", "NaN")),
    ("cut short", cut_short, ("cannot be read",)),
    ("other keys", other_keys, ("['a', 'b']", "['x']")),
    ("too few labels", too_few_labels, ("[5]", "6 samples")),
    ("nowhere", nowhere, ("does not exist",)),
    ("a table", a_table, (".npz",)),
    ("empty folder", empty_folder, ("0 pictures", "add")),
    ("one picture", one_picture, ("1 samples", "at least 2")),
    ("unreadable picture", an_unreadable_picture, ("broken.jpg", "replace or remove it")),
    ("truncated picture", a_truncated_picture, ("1.png", "replace or remove it")),
]


@pytest.mark.parametrize(("make", "words"), [each[1:] for each in BAD_DATA], ids=[each[0] for each in BAD_DATA])
def test_data_that_does_not_fit(
    make: Callable[[Path], Path], words: tuple[str, ...], tmp_path: Path, workspace: Path, tiny: Case
) -> None:
    bad = make(tmp_path)
    before = snapshot(workspace)
    options = ("--data", bad, "--max-error", 0.01, "--effort", 0.01, "-o", workspace)
    refused(taglio("optimize", tiny.model, *options), "BadData", tmp_path, *words)
    assert snapshot(workspace) == before


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"left": 6}, ("['right']",)),
        ({"left": 6, "right": 5}, ("'left' 6", "'right' 5")),
        ({"left": 6, "right": 6, "middle": 6}, ("['middle']",)),
    ],
    ids=["one missing", "other counts", "one too many"],
)
def test_arrays_that_do_not_fit_several_inputs(arrays: dict[str, int], words: tuple[str, ...], tmp_path: Path) -> None:
    shapes = {"left": (3, 8, 8), "right": (2, 8, 8), "middle": (1,)}
    values = {name: np.ones((count, *shapes[name]), np.float32) for name, count in arrays.items()}
    np.savez(tmp_path / "data.npz", **values)  # type: ignore[arg-type]
    model = saved(two_in_two_out(), tmp_path)
    ran = taglio("profile", model, "--data", tmp_path / "data.npz", "-o", tmp_path / "out")
    refused(ran, "BadData", "data.npz", *words)
    assert not (tmp_path / "out").exists()


def test_values_that_the_model_cannot_run_on(tmp_path: Path) -> None:
    """An index past the table: right shape, right type, and only running shows it."""
    g = Sketch()
    table = g.weight(10, 8)
    g.inputs.append(helper.make_tensor_value_info("words", TensorProto.INT64, [1, 4]))
    y = g.op("MatMul", g.op("Gather", table, "words", axis=0), g.weight(8, 6))
    model = saved(g.model(g.rename(y, "y")), tmp_path)
    np.save(tmp_path / "words.npy", np.full((6, 4), 99))
    arguments = (model, "--data", tmp_path / "words.npy", "--max-error", 0.1, "--effort", 0.01)
    refused(taglio("optimize", *arguments, "-o", tmp_path / "out"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rgb,mean=grey", ("mean=grey",)),
        ("hsv", ("hsv", "rgb")),
        ("gray", ("gray", "rgb or bgr")),
        ("nhwc", ("nhwc", "nchw")),
        ("scale=0", ("scale",)),
    ],
)
def test_preprocessing_that_does_not_fit(text: str, words: tuple[str, ...], tmp_path: Path, tiny: Case) -> None:
    options = ("--data", pictures(4, tmp_path), "--preprocess", text, "-o", tmp_path / "out")
    refused(taglio("profile", tiny.model, *options), "BadOption", *words)
    assert not (tmp_path / "out").exists()


def test_preprocessing_of_arrays(tmp_path: Path, tiny: Case) -> None:
    ran = taglio("profile", *tiny.arguments(), "--preprocess", "rgb", "-o", tmp_path / "out")
    refused(ran, "BadOption", "preprocess")


# --- limits and pins --------------------------------------------------------------------------------------------------


def quick(case: Case, out: Path, *options: object) -> Ran:
    scheme = () if "--scheme" in options else ("--scheme", SCHEME)
    return taglio("optimize", *case.arguments(), *scheme, "--effort", 0.01, "-o", out, *options)


def test_a_bound_that_nothing_meets_says_the_best_reachable(tiny: Case, tmp_path: Path) -> None:
    pins = ("--force-int8", "conv*")
    line = refused(quick(tiny, tmp_path / "out", "--max-error", 1e-9, *pins), "Infeasible", "--max-error", code=3)
    reached = re.search(r"best reaches ([0-9.]+)%", line)
    assert reached is not None
    best = float(reached.group(1)) / 100
    assert 1e-4 < best < 0.5
    printed = quick(tiny, tmp_path / "out", "--max-error", 1.001 * best + 1e-6, *pins, "--json").json()
    assert printed["plan"]["error"] == pytest.approx(best, rel=0.01)


def test_a_plan_that_nothing_meets_leaves_the_old_one(workspace: Path) -> None:
    before = snapshot(workspace)
    ran = taglio("plan", workspace, "--max-error", 1e-9, "--force-int8", "*")
    refused(ran, "Infeasible", "best reaches", code=3)
    assert snapshot(workspace) == before


@pytest.mark.parametrize("bound", ["-0.01", "-1%", "nan", "inf", "much", ""])
def test_a_bound_that_is_no_bound(bound: str, tiny: Case, workspace: Path) -> None:
    before = snapshot(workspace)
    refused(taglio("optimize", *tiny.arguments(), f"--max-error={bound}", "-o", workspace), "--max-error", "0.01")
    refused(taglio("plan", workspace, f"--max-error={bound}"), "--max-error", "0.01")
    assert snapshot(workspace) == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--scheme", "int8"), ("int8", "qdq")),
        (("--scheme", "qdq-s8u8"), ("s8u8", "s8s8")),
        (("--threads", "0"), ("--threads", "0")),
        (("--threads", "many"), ("--threads", "many")),
        (("--effort", "0"), ("--effort", "0")),
        (("--effort", "-1"), ("--effort", "-1")),
        (("--optimization", "most"), ("--optimization", "most")),
        (("--seed", "x"), ("--seed", "x")),
        (("--keep-float", "nothing*"), ("nothing*", "taglio inspect")),
        (("--force-int8", "nothing*"), ("nothing*", "taglio inspect")),
        (("--swiftly",), ("--swiftly",)),
    ],
    ids=lambda each: " ".join(each),
)
def test_options_that_are_wrong(options: tuple[str, ...], words: tuple[str, ...], tiny: Case, workspace: Path) -> None:
    before = snapshot(workspace)
    ran = taglio("optimize", *tiny.arguments(), "--max-error", 0.01, "--effort", 0.01, "-o", workspace, *options)
    refused(ran, *words)
    assert snapshot(workspace) == before


def test_a_missing_option_is_one_line(tiny: Case) -> None:
    refused(taglio("optimize", *tiny.arguments()), "--max-error")


def test_pins_that_contradict_each_other(workspace: Path, tiny: Case) -> None:
    before = snapshot(workspace)
    pins = ("--keep-float", "conv0", "--force-int8", "conv*")
    refused(taglio("plan", workspace, "--max-error", 0.1, *pins), "BadOption", "conv0", "pins")
    refused(quick(tiny, workspace, "--max-error", 0.1, *pins), "BadOption", "conv0", "pins")
    assert snapshot(workspace) == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--pin", "a=conv*", "--pin", "b=conv0"), ("conv0", "to a", "to b")),
        (("--pin", "a=nothing*"), ("nothing*", "none of")),
        (("--pin", "conv0"), ("DEVICE=PATTERN",)),
        (("--cut", "nowhere"), ("nowhere", "taglio inspect")),
        (("--cut", "x"), ('"x"',)),
        (("--cut", "conv0_out", "--pin", "a=conv0"), ("--cut", "--pin")),
        (("--cut", "relu1_out", "--devices", "a,b,c"), ("1 cuts", "3 were named")),
        (("--cut", "relu1_out", "--devices", "a/../../b,c"), ("a/../../b",)),
        (("--devices", "a,b"), ("--devices", "--cut")),
        (("--pin", "../up=conv0"), ("../up",)),
        (("--cut", "y", "--devices", "a,b"), ('"y"', "no block")),
    ],
    ids=lambda each: " ".join(each),
)
def test_placements_that_contradict(options: tuple[str, ...], words: tuple[str, ...], workspace: Path) -> None:
    before = snapshot(workspace)
    refused(taglio("plan", workspace, "--max-error", 0.1, *options), "BadOption", *words)
    assert snapshot(workspace) == before


def test_cuts_out_of_order(workspace: Path, tiny: Case) -> None:
    graph = taglio("inspect", tiny.model, "--json").json()["graph"]
    first, second = [block["outputs"][0] for block in graph["blocks"] if block["kind"].startswith("Conv")][:2]
    ran = taglio("plan", workspace, "--max-error", 0.5, "--cut", second, "--cut", first)
    refused(ran, "BadOption", first, "from input to output")


# --- artifacts --------------------------------------------------------------------------------------------------------

READERS: dict[str, list[tuple[str, ...]]] = {
    "setup.json": [("error",), ("plan", "--max-error", "0.1"), ("build",), ("run",)],
    "profile.json": [("error",), ("plan", "--max-error", "0.1"), ("build",), ("run",)],
    "error.json": [("plan", "--max-error", "0.1")],
    "plan.json": [("build",), ("run",)],
    "components/manifest.json": [("run",)],
}
PAIRS = [(name, command) for name, commands in READERS.items() for command in commands]
each_reader = pytest.mark.parametrize(("name", "command"), PAIRS, ids=[f"{c[0]} reads {n}" for n, c in PAIRS])


def edit(path: Path, **fields: object) -> None:
    whole = json.loads(path.read_text())
    path.write_text(json.dumps(whole | fields))


def another_version(path: Path) -> tuple[str, ...]:
    edit(path, format_version=99)
    return ("format version 99",)


def another_model(path: Path) -> tuple[str, ...]:
    edit(path, model_sha256="0" * 64)
    return ("another model", "000000000000")


def another_kind(path: Path) -> tuple[str, ...]:
    edit(path, kind="holiday")
    return ("holiday",)


def cut_in_half(path: Path) -> tuple[str, ...]:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return ("again",)


def not_json(path: Path) -> tuple[str, ...]:
    path.write_bytes(b"\x80\x81 binary \x00")
    return ("again",)


def another_body(path: Path) -> tuple[str, ...]:
    edit(path, body={"model_sha256": 3})
    return ("damaged", "again")


def deleted(path: Path) -> tuple[str, ...]:
    path.unlink()
    return ("no such file", "run taglio")


@each_reader
@pytest.mark.parametrize(
    "damage", [another_version, another_model, another_kind, cut_in_half, not_json, another_body, deleted]
)
def test_an_artifact_that_cannot_be_used(
    damage: Callable[[Path], tuple[str, ...]], name: str, command: tuple[str, ...], workspace: Path
) -> None:
    words = damage(workspace / name)
    before = snapshot(workspace)
    refused(taglio(command[0], workspace, *command[1:]), "BadArtifact", Path(name).name, *words)
    assert snapshot(workspace) == before


@pytest.mark.parametrize("command", [("error",), ("plan", "--max-error", "1%"), ("build",), ("run",), ("report",)])
def test_a_stage_before_the_first(command: tuple[str, ...], tmp_path: Path) -> None:
    ran = taglio(command[0], tmp_path / "out", *command[1:])
    refused(ran, "BadArtifact", str(tmp_path / "out"), "run taglio profile")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("damage", [another_version, another_kind, cut_in_half, not_json, another_body, deleted])
def test_a_report_needs_the_profile(damage: Callable[[Path], tuple[str, ...]], workspace: Path) -> None:
    words = damage(workspace / "profile.json")
    before = snapshot(workspace)
    refused(taglio("report", workspace), "BadArtifact", "profile.json", *words)
    assert snapshot(workspace) == before


@pytest.mark.parametrize("damage", [another_version, another_model, cut_in_half, deleted])
@pytest.mark.parametrize("stage", ["error", "plan", "run"])
def test_a_report_says_what_it_leaves_out(
    damage: Callable[[Path], tuple[str, ...]], stage: str, workspace: Path
) -> None:
    damage(workspace / f"{stage}.json")
    assert taglio("report", workspace).code == 0
    assert f"taglio {stage} {workspace}" in (workspace / "report.html").read_text()


def test_a_component_that_was_changed(workspace: Path) -> None:
    path = workspace / "components" / "model.onnx"
    path.write_bytes(path.read_bytes() + b"\0")
    refused(taglio("run", workspace), "BadArtifact", "model.onnx", "changed", "build")
    path.unlink()
    refused(taglio("run", workspace), "BadArtifact", "model.onnx", "missing", "build")


def test_a_model_that_changed_since(tmp_path: Path, tiny: Case) -> None:
    case, out = Case(saved(pyramid(), tmp_path), tiny.data), tmp_path / "out"
    assert taglio("profile", *case.arguments(), "--scheme", SCHEME, "--effort", 0.01, "-o", out).code == 0
    saved(conv_relu_chain(), tmp_path)
    before = snapshot(out)
    refused(taglio("error", out), "BadArtifact", "another model")
    case.model.unlink()
    refused(taglio("error", out), "BadModel", "no such file")
    assert snapshot(out) == before


def test_data_that_is_gone(tmp_path: Path, tiny: Case) -> None:
    case, out = Case(tiny.model, Path(shutil.copy(tiny.data, tmp_path))), tmp_path / "out"
    assert taglio("profile", *case.arguments(), "--scheme", SCHEME, "--effort", 0.01, "-o", out).code == 0
    case.data.unlink()
    refused(taglio("error", out), "BadData", case.data.name)


def test_an_error_model_of_another_scheme(workspace: Path, tiny: Case) -> None:
    other = ("--scheme", "qdq-s8s8-sym-pt", "--effort", 0.01, "-o", workspace)
    assert taglio("profile", *tiny.arguments(), *other).code == 0
    refused(taglio("plan", workspace, "--max-error", 0.1), "BadArtifact", "error.json", "scheme", "taglio error")


def test_a_plan_of_another_scheme(workspace: Path, tiny: Case) -> None:
    other = ("--scheme", f"{SCHEME}-percentile", "--effort", 0.01, "-o", workspace)
    assert taglio("profile", *tiny.arguments(), *other).code == 0
    for command in ("build", "run"):
        refused(taglio(command, workspace), "BadArtifact", "plan.json", "scheme", "taglio plan")


def test_components_of_another_plan(workspace: Path) -> None:
    assert taglio("plan", workspace, "--max-error", 0.5, "--force-int8", "conv*").code == 0
    refused(taglio("run", workspace), "BadArtifact", "taglio build")


# --- the disk, and the user's patience --------------------------------------------------------------------------------


def commands_that_write(case: Case, out: Path) -> list[tuple[object, ...]]:
    return [
        ("profile", *case.arguments(), "--scheme", SCHEME, "--effort", 0.01, "-o", out),
        ("error", out, "--effort", 0.01),
        ("plan", out, "--max-error", 0.05),
        ("build", out),
        ("run", out, "--runs", 3),
        ("report", out),
        ("quantize", *case.arguments(), "-o", out / "components" / "model.onnx"),
    ]


@pytest.mark.parametrize("index", range(7), ids=["profile", "error", "plan", "build", "run", "report", "quantize"])
def test_a_disk_that_is_full(index: int, workspace: Path, tiny: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every write beside the artifacts fails halfway, as on a full disk."""
    before, write = snapshot(workspace), Path.write_bytes

    def full(self: Path, content: bytes) -> int:
        if workspace in self.parents:
            write(self, content[: len(content) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self))
        return write(self, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    refused(taglio(*commands_that_write(tiny, workspace)[index]), "BadArtifact", str(workspace), "the disk is full")
    assert snapshot(workspace) == before


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount, unmount = shutil.which("mount"), shutil.which("umount")
    if sys.platform != "linux" or os.geteuid() != 0 or mount is None or unmount is None:
        pytest.skip("mounting a small file system takes root on Linux")
    made = subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if made.returncode:
        pytest.skip(f"no small file system here: {made.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run([unmount, str(folder)], check=True)


def test_a_real_disk_that_is_full(small_disk: Path, workspace: Path, tiny: Case) -> None:
    out = Path(shutil.copytree(workspace, small_disk / "out"))
    with (small_disk / "filler").open("wb", buffering=0) as filler, pytest.raises(OSError, match="No space"):
        while True:
            filler.write(bytes(4096))
    before = snapshot(out)
    for command in commands_that_write(tiny, out):
        refused(taglio(*command), "the disk is full")
        assert snapshot(out) == before
    (small_disk / "filler").unlink()
    assert taglio("build", out).code == 0


def test_a_folder_that_cannot_be_made(tiny: Case, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("here first")
    options = ("--scheme", SCHEME, "--effort", 0.01)
    refused(taglio("profile", *tiny.arguments(), *options, "-o", tmp_path / "file"), "file", "-o")
    refused(taglio("profile", *tiny.arguments(), *options, "-o", tmp_path / "file" / "out"), "file", "-o")
    assert (tmp_path / "file").read_text() == "here first"


def started(case: Case, out: Path) -> subprocess.Popen[str]:
    """An optimisation in a process of its own, its profile just written."""
    options = ("--max-error", "0.01", "--scheme", SCHEME, "--effort", "0.02", "-o", out, "--json")
    command = [sys.executable, "-m", "taglio.cli", "optimize", *case.arguments(), *options]
    process = subprocess.Popen(
        [str(each) for each in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    until = time.monotonic() + 120
    while not (out / "profile.json").exists() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.01)
    assert process.poll() is None, process.communicate()
    return process


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["interrupted", "killed"])
def test_stopped_halfway(how: signal.Signals, few_digits: Case, tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = started(few_digits, out)
    process.send_signal(how)
    printed, said = process.communicate(timeout=60)
    assert printed == ""
    if how is signal.SIGINT:
        assert process.returncode == 130
        assert len(said.splitlines()) == 1
        assert said.startswith("taglio: stopped")
        assert not [path for path in out.rglob(".*") if path.is_file()]
    else:
        assert process.returncode == -signal.SIGKILL
    assert not (out / "plan.json").exists()
    assert not (out / "outcome.json").exists()
    # What was written is whole: the next stage reads it, and the whole flow runs over it.
    assert taglio("error", out, "--effort", 0.01, "--json").json()["evaluations"] > 0
    assert quick(few_digits, out, "--max-error", 0.01, "--json").json()["plan"]["error"] <= 0.01


def test_an_interrupted_run_over_an_old_one(workspace: Path, tiny: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    def impatient(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("taglio.optimize.study", impatient)
    before = snapshot(workspace)
    ran = quick(tiny, workspace, "--max-error", 0.05)
    refused(ran, "stopped", "intact", code=130)
    assert set(snapshot(workspace)) == set(before)
    assert snapshot(workspace)["plan.json"] == before["plan.json"]


def test_standard_output_that_closes(digits: Case) -> None:
    """`taglio inspect | head -1` says nothing about it."""
    command = [sys.executable, "-m", "taglio.cli", "inspect", str(digits.model)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""


def test_a_workspace_is_not_changed_by_reading_it(tiny_staged: Staged, workspace: Path) -> None:
    assert snapshot(workspace) == snapshot(tiny_staged.folder)
    assert taglio("build", workspace, "--json").json() == tiny_staged.printed["build"]
    changed = {name for name, digest in snapshot(workspace).items() if snapshot(tiny_staged.folder)[name] != digest}
    assert not changed
