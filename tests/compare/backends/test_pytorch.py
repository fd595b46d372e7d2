"""PyTorch rows of a PyTorch module."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.compare.backends.conftest import compare, need, rows, sound, told

MODULE = """
from torch import nn

def build():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A module with a linear layer, whose weights are drawn when it is built, compared. Fewer samples would give it
    ranges so narrow that held-out outputs are clipped by far more than they are rounded."""
    need("torch")
    folder = tmp_path_factory.mktemp("torch")
    (folder / "small.py").write_text(MODULE)
    np.save(folder / "data.npy", np.random.default_rng(0).standard_normal((80, 3, 8, 8)).astype(np.float32))
    model = Path(f"{folder}/small.py:build")
    out = folder / "out"
    return compare(out, model, folder / "data.npy", "pytorch,onnxruntime", "--shape", "x=1x3x8x8"), out


def test_float_runs_in_eager_mode(own: tuple[Any, Path]) -> None:
    found = rows(own[0], "pytorch")
    sound(found)
    told(found, ("bfloat16",), {})


def test_compiled_forms_need_a_compiler(own: tuple[Any, Path]) -> None:
    found = rows(own[0], "pytorch")
    keys = ("float32 compiled", "bfloat16 compiled", "pt2e-static-asym-pc", "pt2e-dynamic-asym-pc")
    if not shutil.which("g++"):
        told(found, (), dict.fromkeys(keys, "C++ compiler"))
        return
    told(found, keys, {})
    for key in keys[2:]:
        checked = found[key]["checked"]
        assert sum(checked["int8_operators"].values()) > 0, key
        assert 0 < checked["error_to_float"] < 0.1, key


def test_gpu_rows_run_or_say_that_there_is_no_gpu(own: tuple[Any, Path]) -> None:
    found = rows(own[0], "pytorch")
    for key in ("float32 cuda", "float16 cuda"):
        if found[key]["status"] != "measured":
            told(found, (), {key: "no CUDA device here"})


def test_the_module_reaches_the_other_back_ends(own: tuple[Any, Path]) -> None:
    (step,) = own[0]["conversions"]
    assert (step["source"], step["target"]) == ("torch", "onnx")
    assert step["distance"] < 1e-4
    assert rows(own[0], "onnxruntime")["qdq-u8s8-asym-pc"]["status"] == "measured"


def test_pytorch_needs_a_pytorch_model(few: tuple[Path, Path], tmp_path: Path) -> None:
    need("torch")
    found = rows(compare(tmp_path, *few, "pytorch"), "pytorch")
    assert {row["status"] for row in found.values()} == {"impossible"}
    assert "this is ONNX: give its module:function or .pt2 file" in found["float32"]["reason"]
