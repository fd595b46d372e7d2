"""PyTorch rows of a PyTorch module."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.compare.backends.conftest import compare, measured, need, rows, sound
from tests.end_to_end.command import Case

MODULE = """
from torch import nn

def build():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A module with a linear layer, whose weights are drawn when it is built, compared. Fewer samples would give it
    ranges so narrow that held-out outputs are clipped by far more than they are rounded."""
    need("torch")
    folder = tmp_path_factory.mktemp("torch")
    (folder / "small.py").write_text(MODULE)
    np.save(folder / "data.npy", np.random.default_rng(0).standard_normal((80, 3, 8, 8)).astype(np.float32))
    case = Case(Path(f"{folder}/small.py:build"), folder / "data.npy")
    return compare(folder / "out", case, "pytorch,onnxruntime", "--shape", "x=1x3x8x8")


def test_rows_run_or_say_what_is_missing(own: Any) -> None:
    figures = rows(own, "pytorch")
    sound(figures)
    measured(figures, "bfloat16")
    keys = ("float32 compiled", "bfloat16 compiled", "pt2e-static-asym-pc", "pt2e-dynamic-asym-pc")
    if shutil.which("g++"):
        measured(figures, *keys)
        for key in keys[2:]:
            checked = figures[key]["checked"]
            assert sum(checked["int8_operators"].values()) > 0, key
            assert 0 < checked["error_to_float"] < 0.1, key
    else:
        assert all("C++ compiler" in figures[key]["reason"] for key in keys)


def test_the_module_reaches_the_other_back_ends(own: Any) -> None:
    (step,) = own["conversions"]
    assert (step["source"], step["target"]) == ("torch", "onnx")
    assert step["distance"] < 1e-4
    measured(rows(own, "onnxruntime"), "qdq-u8s8-asym-pc")


def test_pytorch_needs_a_pytorch_model(few_digits: Case, tmp_path: Path) -> None:
    need("torch")
    figures = rows(compare(tmp_path, few_digits, "pytorch"), "pytorch")
    assert {row["status"] for row in figures.values()} == {"impossible"}
    assert "this is ONNX: give its module:function or .pt2 file" in figures["float32"]["reason"]
