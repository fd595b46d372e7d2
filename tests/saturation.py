"""Run a quantised model of matrix products as x86 processors without VNNI do, on any processor, in NumPy.

vpmaddubsw adds two neighbouring u8×s8 products in 16 bits, and what does not fit becomes the nearest number that does.
ONNX Runtime's kernels without VNNI add along the inner dimension so.
"""

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import helper, numpy_helper, version_converter
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

_DOMAIN, _LOWEST, _HIGHEST = "tests", -(2**15), 2**15 - 1


class Product(OpRun):
    """u8 values times s8 weights, dequantised."""

    op_domain = _DOMAIN
    saturates = True

    def _run(self, values, scale, zero, weights, weight_scale):  # type: ignore[no-untyped-def]
        rows = values.reshape(-1, values.shape[-1]).astype(np.int32)
        products = rows[:, :, None] * weights.astype(np.int32)[None]
        pairs = products.reshape(len(rows), -1, 2, weights.shape[-1]).sum(axis=2)
        if self.saturates:
            pairs = np.clip(pairs, _LOWEST, _HIGHEST)
        sums = pairs.sum(axis=1) - int(zero) * weights.astype(np.int32).sum(axis=0)
        product = sums * (scale * weight_scale)
        return (product.reshape(*values.shape[:-1], -1).astype(np.float32),)


class ExactProduct(Product):
    """The same with sums in 32 bits."""

    saturates = False


def answers(proto: onnx.ModelProto, feed: Mapping[str, np.ndarray], *, saturates: bool) -> list[np.ndarray]:
    """The outputs for `feed`. Raises AssertionError if no product reads u8 values and s8 weights."""
    kind = Product if saturates else ExactProduct
    converted = version_converter.convert_version(proto, 21)  # the evaluator has no DequantizeLinear of older opsets
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in converted.graph.initializer}
    writer = {name: node for node in converted.graph.node for name in node.output}
    replaced = 0
    for node in converted.graph.node:
        if node.op_type not in ("MatMul", "Gemm"):
            continue
        pair = [writer.get(name) for name in node.input[:2]]
        if any(source is None or source.op_type != "DequantizeLinear" for source in pair):
            continue
        values, weights = (list(source.input) for source in pair if source is not None)
        if constants[weights[0]].dtype != np.int8 or constants[values[2]].dtype != np.uint8:
            continue
        assert node.op_type == "MatMul" and constants[weights[0]].shape[0] % 2 == 0
        node.CopyFrom(
            helper.make_node(kind.__name__, [*values, *weights[:2]], list(node.output), node.name, domain=_DOMAIN)
        )
        replaced += 1
    assert replaced, "no product of u8 values with s8 weights"
    converted.opset_import.append(helper.make_opsetid(_DOMAIN, 1))
    return [np.asarray(value) for value in ReferenceEvaluator(converted, new_ops=[kind]).run(None, dict(feed))]
