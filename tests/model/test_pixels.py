"""Operators that scale pixels at the start of a model."""

import numpy as np
import pytest

from taglio.model.pixels import pixel_scaling
from tests.models import Sketch


@pytest.mark.parametrize(
    ("kind", "constant", "words"),
    [
        ("Div", [255.0], "divides by 255"),
        ("Mul", [1 / 255], "multiplies by 0.0039"),
        ("Sub", [123.7, 116.3, 103.5], "subtracts 123.7"),
        ("Add", [-127.5], "adds 127.5"),
        ("Sub", [0.485, 0.456, 0.406], ""),
    ],
)
def test_the_first_operator_that_computes_tells(kind: str, constant: list[float], words: str) -> None:
    g = Sketch(1)
    x = g.op("Transpose", g.input("x", "N", 8, 8, 3), perm=[0, 3, 1, 2])
    scaled = g.op(kind, x, g.constant(np.array(constant).reshape(-1, 1, 1)))
    assert pixel_scaling(g.model(g.conv(scaled, 3, 4)).graph, "x") == words


def test_a_batch_normalization_of_pixels_tells() -> None:
    g = Sketch(2)
    ones = g.constant(np.ones(3))
    mean = g.constant(np.full(3, 120.0))
    normal = g.op("BatchNormalization", g.input("x", 1, 3, 8, 8), ones, ones, mean, ones)
    assert pixel_scaling(g.model(g.conv(normal, 3, 4)).graph, "x") == "subtracts a mean of 120"
