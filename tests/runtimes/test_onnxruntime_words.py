"""ONNX Runtime's refusals, as versions 1.16 to 1.32 word them, become one short reason."""

import pytest

from taglio.runtimes.onnxruntime_words import without_sources

RESHAPE = """[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Non-zero status code returned while running Reshape node. \
Name:'/a/Reshape' Status Message: /onnxruntime_src/onnxruntime/core/providers/cpu/tensor/reshape_helper.h:45 \
onnxruntime::ReshapeHelper::ReshapeHelper(const onnxruntime::TensorShape&, onnxruntime::TensorShapeVector&, bool) \
input_shape_size == size was false. The input tensor cannot be reshaped to the requested shape. Input shape:{3}, \
requested shape:{2,-1}
"""
CHECKED = """[ONNXRuntimeError] : 1 : FAIL : \
D:\\a\\_work\\1\\s\\onnxruntime\\core/providers/cpu/math/element_wise_ops.h:479 \
onnxruntime::BroadcastIterator::Init axis == 1 || axis == largest was false. Attempting to broadcast an axis by a \
dimension other than 1. 15 by 64"""
THROWN = """[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : /onnxruntime_src/onnxruntime/core/framework/op_kernel.cc:83 \
virtual OrtValue* onnxruntime::OpKernelContext::OutputMLValue(int, const onnxruntime::TensorShape&) const \
out of memory"""
PLAIN = """[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Non-zero status code returned while running Gather node. \
Name:'gather' Status Message: indices element out of data bounds, idx=99 must be within the inclusive range [-4,3]"""


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (
            RESHAPE,
            "Reshape /a/Reshape: The input tensor cannot be reshaped to the requested shape. Input shape:{3}, "
            "requested shape:{2,-1}",
        ),
        (CHECKED, "Attempting to broadcast an axis by a dimension other than 1. 15 by 64"),
        (THROWN, "out of memory"),
        ("matmul_helper.h:164 Compute MatMul dimension mismatch", "MatMul dimension mismatch"),
        (PLAIN, "Gather gather: indices element out of data bounds, idx=99 must be within the inclusive range [-4,3]"),
        ("no message of ONNX Runtime", "no message of ONNX Runtime"),
    ],
)
def test_the_node_and_why_without_source_files(raised: str, said: str) -> None:
    assert without_sources(RuntimeError(raised)) == said
