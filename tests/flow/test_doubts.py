"""Notes on the data speak of what they can change."""

from pathlib import Path

import numpy as np
import pytest

import taglio
from tests.models import Sketch, saved


@pytest.mark.whole
def test_what_is_told_of_inputs_and_outputs(tmp_path: Path) -> None:
    g = Sketch(6)
    x, _ = g.input("x", "n", 3, "height", 6), g.input("unused", 1, 2)
    model = saved(g.model(g.conv(x, 3, 4), g.constant(np.arange(3.0), "anchors")), tmp_path)
    inputs = np.random.default_rng(0).normal(0, 1, (64, 3, 6, 6)).astype(np.float32)
    work = taglio.Model(model, {"x": inputs, "unused": np.zeros((64, 2), np.float32)}, threads=1)
    table = taglio.profile_model(work, effort=0.02, scheme="qdq-u8s8-asym-pc")
    notes = " ".join(map(str, taglio.error_model(work, table, effort=0.02).notes))
    assert "unused" not in notes
    assert "anchors" not in notes
    assert "measured at height 6 only" in notes
