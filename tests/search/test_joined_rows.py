"""Rows that share a batch share int8-dynamic's scale."""

from pathlib import Path

import numpy as np
import pytest

import taglio
from taglio.quantize.precision import UNCALIBRATED
from taglio.quantize.scheme import parse_scheme
from taglio.search.joined_rows import RowErrors, row_errors
from tests.models import Sketch, saved


def errors(batch: int | str, scale: float, tmp_path: Path, *, infinite: bool = False) -> RowErrors | None:
    g = Sketch(3)
    y = g.op("MatMul", g.input("x", batch, 64), g.weight(64, 64))
    some = g.constant(np.arange(64) < 8)
    model = saved(g.model(g.op("Where", some, g.constant(-np.inf), y) if infinite else y), tmp_path)
    rows = np.random.default_rng(0).standard_normal((32, 64)).astype(np.float32)
    rows[::4] *= np.float32(scale)
    work = taglio.Model(model, rows, threads=1)
    block = work.graph.blocks[0]
    scheme = parse_scheme("qdq-u8s8-asym-pc-dyn")
    return row_errors(work, work.builder(scheme).build({block.name: UNCALIBRATED["dyn"]}))


def test_a_large_row_takes_the_precision_of_the_others(tmp_path: Path) -> None:
    found = errors("N", 100.0, tmp_path)
    assert found is not None and found.rows == 8
    assert found.coupled and found.joined > 5.0 * found.alone > 0.0
    assert "one scale for all rows of a batch" in found.note().text


@pytest.mark.filterwarnings("error")
def test_infinities_of_the_float_model_leave_the_other_values_to_compare(tmp_path: Path) -> None:
    found = errors("N", 100.0, tmp_path, infinite=True)
    assert found is not None and found.joined > 5.0 * found.alone > 0.0


def test_rows_of_like_size_may_share_a_scale(tmp_path: Path) -> None:
    found = errors("N", 1.0, tmp_path)
    assert found is not None and not found.coupled


@pytest.mark.parametrize("batch", [1, 4])
def test_a_fixed_batch_has_no_other_rows(batch: int, tmp_path: Path) -> None:
    assert errors(batch, 100.0, tmp_path) is None
