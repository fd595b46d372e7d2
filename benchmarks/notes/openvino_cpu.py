"""OpenVINO against ONNX Runtime's CPU provider on yolo11n-seg, and the sum of layers against the whole.

python benchmarks/notes/openvino_cpu.py
"""

import sys

from claims import Claim, decided, ms, options, report, run_case, seconds
from taglio.compare.environments import find


def main() -> int:
    asked = options(__doc__)
    for backend in ("openvino", "openvino-ep"):
        if (place := find(backend)).interpreter is None:
            print(f"skipped: {place.reason}")
            return 0
    keys = ("qdq-u8s8-sym-pc", "qdq-s8s8-sym-pc", "float32 CPU provider", "bfloat16")
    result = run_case("yolo11n-seg", asked, "onnxruntime,openvino-ep,openvino", keys)
    plain = seconds(result, "onnxruntime/float32")
    provider, beside = seconds(result, "openvino-ep/float32"), seconds(result, "openvino-ep/float32 CPU provider")
    quantized = {
        backend: seconds(result, f"{backend}/qdq-s8s8-sym-pc") for backend in ("onnxruntime", "openvino-ep", "openvino")
    }
    claims = [
        Claim(
            "float is faster on the CPU provider than through OpenVINO",
            '"very strange" (sums of layers)',
            f"OpenVINO provider {ms(provider)}, CPU provider of the same build {ms(beside)}, "
            f"native {ms(seconds(result, 'openvino/float32'))} (bf16 {ms(seconds(result, 'openvino/bfloat16'))})",
            decided(beside < provider),
            "the notes added layers run one by one, each paying the provider's hand-over; here whole models are timed",
        ),
        Claim(
            "s8s8 is slow on x86",
            "in ONNX Runtime",
            ", ".join(f"{backend} {ms(value)}" for backend, value in quantized.items()) + f" (float {ms(plain)})",
            decided(quantized["onnxruntime"] > quantized["openvino"]),
            "a property of ONNX Runtime's kernels, not of the processor: OpenVINO runs the same file fast",
        ),
    ]
    return report("openvino_cpu", claims, [result])


if __name__ == "__main__":
    sys.exit(main())
