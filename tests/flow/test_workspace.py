"""What one stage writes, the next one reads, whatever failed its int8 trial."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import taglio
from taglio.flow import stages
from taglio.flow.workspace import reopen_profiled
from taglio.quantize.scheme import parse_scheme
from taglio.report.material import gather
from tests.models import Sketch, saved

QUICK: dict[str, Any] = {"scheme": "qdq-u8s8-asym-pc", "runtime": "onnxruntime", "threads": 1, "effort": 0.02}


def masked() -> onnx.ModelProto:
    """Scores beside a mask that is computed and then moved: the move fails its int8 trial, and flows depend on that."""
    g = Sketch(71)
    x = g.input("x", 1, 6, 16)
    lowest = g.constant(np.float32(np.finfo(np.float32).min))
    mask = g.op("Unsqueeze", g.op("Mul", g.op("Relu", g.input("off", 1, 6)), lowest), g.constant(np.array([1])))
    scores = g.op("MatMul", g.op("MatMul", x, g.weight(16, 16)), g.op("Transpose", x, perm=[0, 2, 1]))
    return g.model(g.op("MatMul", g.op("Softmax", g.op("Add", scores, mask), axis=-1), x))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    off = (np.arange(12)[:, None] % 6 < np.arange(6)[None]).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=rng.normal(0, 1, (12, 6, 16)).astype(np.float32), off=off)
    return tmp_path / "data.npz"


@pytest.mark.whole
def test_a_profile_fits_its_workspace(data: Path, tmp_path: Path) -> None:
    graph, _ = stages.profile(tmp_path / "out", saved(masked(), tmp_path), data, **QUICK)
    assert any(block.kind == "Unsqueeze" and "masks" in block.refusal for block in graph.blocks)
    assert reopen_profiled(tmp_path / "out")[0].graph == graph == gather(tmp_path / "out").graph


@pytest.mark.whole
def test_a_result_fits_its_workspace(data: Path, tmp_path: Path) -> None:
    result = taglio.optimize(saved(masked(), tmp_path), data, max_error=0.05, **QUICK)
    result.save(tmp_path / "out")
    assert taglio.load(tmp_path / "out").graph == reopen_profiled(tmp_path / "out")[0].graph


@pytest.mark.whole
def test_a_result_with_errors_that_are_not_finite_can_be_loaded(tmp_path: Path) -> None:
    """Roots of values on both sides of 0 are NaN, in int8 for other values than in float."""
    g = Sketch(5)
    hidden = g.op("MatMul", g.input("x", 1, 16), g.weight(16, 16))
    path = saved(g.model(g.op("Sqrt", g.op("MatMul", hidden, g.weight(16, 16)))), tmp_path)
    inputs = np.random.default_rng(0).normal(0, 1, (40, 16)).astype(np.float32)
    result = taglio.optimize(path, {"x": inputs}, max_error=0.05, **QUICK | {"scheme": "auto"})
    result.save(tmp_path / "out")
    assert taglio.load(tmp_path / "out").table == result.table


def test_a_scheme_keeps_what_failed_under_the_one_before(data: Path, tmp_path: Path) -> None:
    """The screen tries blocks under one scheme and may choose another; a workspace is opened with that one alone."""
    work = taglio.Model(saved(masked(), tmp_path), data, threads=1)
    first, second = parse_scheme("qdq-u8s8-asym-pc"), parse_scheme("qdq-s8s8-sym-pc")
    chosen = work.settled(first).settled(second)
    assert any("masks" in block.refusal for block in chosen.graph.blocks)
    assert chosen.graph == work.settled(second).graph
