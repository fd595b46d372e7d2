"""FLOPs against counts that are not ours: operators run on ones."""

import numpy as np
import onnx
import pytest

from taglio.model.flops import operator_flops
from taglio.runtimes.onnxruntime import SessionOptions, open_session
from tests.models import parsed


def multiply_adds_on_ones(
    kind: str, shapes: list[tuple[int, ...]], **attributes: int | list[int]
) -> tuple[onnx.NodeProto, dict[str, tuple[int, ...]], int]:
    """Run `kind` on inputs that are one everywhere: each product then adds one, so the outputs add up to their number.
    Nothing may be padded, or products with the padding would be missing."""
    names = [f"x{i}" for i in range(len(shapes))]
    inputs = ", ".join(f"float{list(shape)} {name}" for name, shape in zip(names, shapes))
    written = ", ".join(f"{key} = {value}" for key, value in attributes.items())
    proto = parsed(
        f"({inputs}) => (float[] y) {{ y = {kind} {f'<{written}>' if written else ''} ({', '.join(names)}) }}"
    )
    feed = {name: np.ones(shape, np.float32) for name, shape in zip(names, shapes)}
    [output] = open_session(proto, SessionOptions(threads=1)).run(None, feed)
    count = int(np.asarray(output, np.float64).sum())
    return proto.graph.node[0], {**dict(zip(names, shapes)), "y": np.shape(output)}, count


@pytest.mark.parametrize(
    ("kind", "shapes", "attributes"),
    [
        ("Conv", [(2, 6, 12, 9), (8, 3, 3, 2)], {"group": 2, "strides": [2, 3]}),
        ("Conv", [(1, 7, 10, 10), (7, 1, 3, 3)], {"group": 7, "dilations": [2, 2]}),
        ("ConvTranspose", [(1, 4, 5, 6), (4, 3, 2, 2)], {"strides": [2, 2]}),
        ("ConvTranspose", [(2, 6, 5, 5), (6, 2, 3, 3)], {"group": 3, "strides": [2, 1]}),
        ("MatMul", [(2, 3, 5, 7), (2, 3, 7, 4)], {}),
        ("MatMul", [(2, 5, 7), (7,)], {}),
        ("Gemm", [(7, 5), (3, 7)], {"transA": 1, "transB": 1}),
    ],
    ids=str,
)
def test_counts_the_products_that_the_operator_makes(
    kind: str, shapes: list[tuple[int, ...]], attributes: dict[str, int | list[int]]
) -> None:
    node, tensor_dims, count = multiply_adds_on_ones(kind, shapes, **attributes)

    assert operator_flops(node, tensor_dims) == 2 * count


def test_a_wrong_shape_that_a_file_declares_counts_nothing() -> None:
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])

    assert operator_flops(node, {"x": (), "w": (5, 4), "y": (3, 4)}) == 0
