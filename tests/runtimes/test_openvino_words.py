"""OpenVINO's refusals, as onnxruntime-openvino 1.24 and OpenVINO 2026.4 word them, become one short reason."""

from taglio.runtimes.openvino_words import complaint, without_sources

PER_CHANNEL = """Exception from src/inference/src/cpp/core.cpp:132:
Exception from src/inference/src/dev/plugin.cpp:59:
Check 'false' failed at src/frontends/common_translators/src/unconverted_ops_report.cpp:151:
FrontEnd API failed with OpConversionFailure:
Model wasn't fully converted. Failed operations detailed log:
-- QLinearConv-17 with a message:
While validating ONNX node '<Node(QLinearConv): 246_quantized>': Check 'scale_dim.compatible(x_dim_at_axis)' failed \
at src/frontends/onnx/frontend/src/op/dequantize_linear.cpp:119:
FrontEnd API failed with GeneralFailure:
The number of dequantization scale elements '16' must match the input shape dimension '3 pointed to by the axis

-- com.microsoft.QLinearAdd with a message:
Check '((A.get_element_type() == element::i8))' failed at src/frontends/onnx/qlinear_ops.cpp:46:
While validating ONNX node '<Node(QLinearAdd): 313_quantized>':
All inputs (A, B) must be either int8 or uint8. Got A: dynamic, B: dynamic
"""


def test_the_node_and_why_without_source_files() -> None:
    assert complaint(RuntimeError(PER_CHANNEL)) == (
        "OpenVINO cannot read QLinearConv 246_quantized: The number of dequantization scale elements '16' must match "
        "the input shape dimension '3 pointed to by the axis"
    )


def test_source_files_are_no_part_of_what_is_said() -> None:
    said = (
        "Exception from src/inference/src/cpp/core.cpp:132:\nException from src/inference/src/dev/plugin.cpp:59:\n"
        "Check 'false' failed at src/frontends/common/src/frontend.cpp:47:\nLoading input model\n"
        "Unsupported value_info type: prob"
    )
    assert without_sources(RuntimeError(said)) == "Loading input model Unsupported value_info type: prob"
