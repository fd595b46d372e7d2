"""Ranges chosen by their effect on the outputs."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from taglio.model import graph as graphs
from taglio.quantize.qdq import QdqBuilder
from taglio.quantize.ranges import calibrate
from taglio.quantize.repair import ranges
from tests.models import Sketch, exact, feeds, loaded


def test_a_scalar_stays_a_scalar_when_it_is_quantised(tmp_path: Path) -> None:
    g = Sketch(5)
    once = g.op("Add", g.input("time"), g.constant(np.float32(0.5)))  # as diffusion models embed their time step
    steps = g.op("Mul", g.op("Unsqueeze", once, g.constant(np.array([0]))), g.weight(8))
    model = loaded(g.model(g.op("Gemm", g.op("Unsqueeze", steps, g.constant(np.array([0]))), g.weight(8, 4))), tmp_path)
    graph, scheme, data = graphs.build(model), exact(), feeds(model, 6)
    found = calibrate(model, data, "minmax")
    builder = QdqBuilder(model, graph, {scheme.calibrated: found})
    seen: list[tuple[int, ...]] = []

    def differences(outputs: Sequence[list[np.ndarray]]) -> np.ndarray:
        seen.extend(each.shape for (each,) in outputs)
        return np.zeros((2, 1, 1))

    ranges.choose(builder, found, scheme, data.samples, differences, budget_s=60.0)
    assert set(seen) == {(1, 4)}
