"""What `--shape` would bring is measured, and offered where all data has one shape."""

from pathlib import Path

import numpy as np
import pytest

from taglio.flow import fixed_shapes
from taglio.flow.fixed_shapes import fixed_shapes_note
from taglio.flow.opening import Model
from tests.models import Sketch, saved


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Products of rows, whose number is dynamic."""
    g = Sketch(1)
    x = g.input("x", "rows", 64)
    for _ in range(3):
        x = g.op("Relu", g.op("MatMul", x, g.weight(64, 64)))
    return saved(g.model(g.rename(x, "y")), tmp_path)


def rows(*sizes: int) -> list[dict[str, np.ndarray]]:
    draws = np.random.default_rng(0)
    return [{"x": draws.standard_normal((size, 64)).astype(np.float32)} for size in sizes]


def test_a_gain_is_offered_with_the_option_that_brings_it(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixed_shapes, "_WORTH", 0.0)  # however small it is here
    line = str(fixed_shapes_note(Model(model, rows(*[5] * 8), threads=1), None))
    assert "with --shape x=5x64, float32 in " in line
    assert "not confirmed" in line
