"""DequantizeLinear without what ONNX Runtime's rewrites need: the graph's own answers at every optimisation level."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from taglio.model.dequantize import with_zero_points
from taglio.runtimes.onnxruntime import Optimization, SessionOptions, open_session
from tests.models import parsed

KINDS = (np.int8, np.uint8, np.int32)


def moved(
    dtype: type[np.integer], move: str, zero: bool = False, scale_dims: tuple[int, ...] = ()
) -> tuple[onnx.ModelProto, np.ndarray]:
    """DequantizeLinear of an input, Transpose or Reshape, MatMul; and values of the input."""
    constants: dict[str, object] = {
        "scale": np.full(scale_dims, 0.001), "w": np.random.default_rng(0).standard_normal((8, 16))
    }  # fmt: skip
    constants |= {"zero": np.zeros(scale_dims, dtype)} if zero else {}
    constants |= {"shape": np.array([2, 12, 8])} if move == "Reshape" else {}
    proto = parsed(
        f"""({dtype.__name__}[2, 8, 12] x) => (float[2, 12, 16] y) {{
            values = DequantizeLinear (x, scale{", zero" * zero})
            moved = {"Reshape (values, shape)" if move == "Reshape" else "Transpose <perm = [0, 2, 1]> (values)"}
            y = MatMul (moved, w)
        }}""",
        constants,
    )
    ends = np.iinfo(dtype)
    low, high = max(ends.min, -3000), min(ends.max, 3000)
    return proto, np.random.default_rng(1).integers(low, high, (2, 8, 12)).astype(dtype)


def product(values: np.ndarray, move: str, weights: np.ndarray) -> np.ndarray:
    floats = values.astype(np.float64) * 0.001
    return np.asarray((floats.transpose(0, 2, 1) if move == "Transpose" else floats.reshape(2, 12, 8)) @ weights)


@pytest.mark.parametrize("scale_dims", [(), (1,)])
@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("move", ["Transpose", "Reshape"])
@pytest.mark.parametrize("dtype", KINDS)
def test_the_answers_are_those_of_the_graph_at_every_level(
    dtype: type[np.integer], move: str, zero: bool, scale_dims: tuple[int, ...]
) -> None:
    proto, values = moved(dtype, move, zero, scale_dims)
    weights = next(numpy_helper.to_array(tensor) for tensor in proto.graph.initializer if tensor.name == "w")
    wanted = product(values, move, weights)
    for level in Optimization:
        (answer,) = open_session(with_zero_points(proto), SessionOptions(1, level)).run(None, {"x": values})
        assert np.linalg.norm(answer - wanted) < 1e-5 * np.linalg.norm(wanted)


def test_a_model_that_needs_nothing_stays_as_it_is() -> None:
    for dtype, zero in ((np.uint8, False), (np.int8, True)):
        proto, _ = moved(dtype, "Transpose", zero)
        assert with_zero_points(proto) is proto
