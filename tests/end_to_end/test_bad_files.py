"""Models and data that taglio refuses: one line naming the thing and the fix, a non-zero exit, artifacts unchanged.
What is refused and in which words, tests/model and tests/data try case by case."""

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from tests.end_to_end.command import Case, quick, refused, snapshot, taglio
from tests.models import Sketch, conv_relu_chain, digits_model, saved


def cut_short(path: Path) -> tuple[str, ...]:
    whole = digits_model().read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    return ("cut short", "bytes", "export it again")


def pointer(path: Path) -> tuple[str, ...]:
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 102400\n")
    return ("Git LFS", "run git lfs pull")


def misspelt(path: Path) -> tuple[str, ...]:
    proto = conv_relu_chain()
    proto.graph.node[1].op_type = "Reluu"
    onnx.save(proto, path)
    return ("ONNX Runtime", "Reluu")


def nowhere(path: Path) -> tuple[str, ...]:
    assert not path.exists()
    return ("no such file",)


@pytest.mark.parametrize("make", [cut_short, pointer, misspelt, nowhere])
def test_a_model_that_cannot_be_planned(
    make: Callable[[Path], tuple[str, ...]], tmp_path: Path, workspace: Path, tiny: Case
) -> None:
    bad = tmp_path / "bad.onnx"
    words, before = make(bad), snapshot(workspace)
    options = ("--data", tiny.data, "--max-error", 0.01, "-o", workspace)
    for ran in (taglio("inspect", bad), taglio("optimize", bad, *options)):
        refused(ran, "BadModel", "bad.onnx", *words)
    assert snapshot(workspace) == before


def test_a_model_of_another_kind_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(b"PK\x03\x04" + bytes(100))
    refused(taglio("inspect", path), "BadModel", "model.pt", "PyTorch weights", "torch.export.save", "module:function")


def dynamic(folder: Path) -> Path:
    g = Sketch()
    y = g.op("Relu", g.conv(g.input("picture", "batch", 3, 8, 8), 3, 4))
    return saved(g.model(g.rename(y, "y")), folder, "dynamic")


def test_a_fixed_shape_makes_a_dynamic_model_fit(tmp_path: Path, tiny: Case) -> None:
    path, shape = dynamic(tmp_path), ("--shape", "picture=1x3x8x8")
    assert "picture 1x3x8x8" in taglio("inspect", path, *shape).out
    printed = quick(Case(path, tiny.data), tmp_path / "out", "--max-error", 0.1, *shape, "--json").json()
    assert printed["plan"]["blocks"] == 1
    assert taglio("run", tmp_path / "out", "--runs", 2, "--json").code == 0
