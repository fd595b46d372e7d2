"""QDQ and QOperator in u8u8, u8s8 and s8s8 on yolo11n-seg (the notes: a ResNet on e2, c3, c3d and c4a machines).

python benchmarks/notes/formats.py
"""

import sys

from claims import Claim, decided, instructions, ms, multiplies_signed, options, report, run_case, seconds
from kernels import kernels, largest, within

TYPES = ("u8u8", "u8s8", "s8s8")
CONV = ("QLinearConv", "FusedConv", "Conv")
# Read in ONNX Runtime's source, onnxruntime/core/mlas/lib/platform.cpp.
MLAS = "MLAS (platform.cpp) has a VNNI kernel for u8 by s8 alone; s8 by s8 has none on x86 without AVX-VNNI-INT8"


def main() -> int:
    asked = options(__doc__)
    name = "yolo11n-seg"
    keys = tuple(f"{form}-{types}-asym-pt" for form in ("qdq", "qoperator") for types in TYPES)
    result = run_case(name, asked, "onnxruntime", (*keys, "dynamic-u8s8-pt"))
    at = {key: seconds(result, f"onnxruntime/{key}") for key in (*keys, "dynamic-u8s8-pt", "float32")}
    spent = kernels(name, result, tuple(at))
    figures = ", ".join(f"{key} {ms(value)}" for key, value in at.items())
    slowest, fastest = max(keys, key=lambda key: at[key]), min(keys, key=lambda key: at[key])
    convolutions = ", ".join(f"{key} {ms(within(spent[key], *CONV))}" for key in keys)
    signed = "has" if multiplies_signed() else "has not"
    dynamic = spent["dynamic-u8s8-pt"]
    claims = [
        Claim(
            "s8s8 QOperator is by far the slowest form on x86",
            "worst on e2 (no VNNI), c3 (VNNI) and c3d; fine on Arm",
            figures,
            decided(slowest == "qoperator-s8s8-asym-pt"),
            f"in the profile it is the convolutions: {convolutions}. {MLAS}, which this processor {signed}",
        ),
        Claim(
            "s8s8 is fast on x86 as QDQ and slow only as QOperator",
            "an assistant's answer, quoted there",
            f"s8s8: QDQ {ms(at['qdq-s8s8-asym-pt'])}, QOperator {ms(at['qoperator-s8s8-asym-pt'])}; float "
            f"{ms(at['float32'])}, QDQ u8s8 {ms(at['qdq-u8s8-asym-pt'])}",
            decided(at["qdq-s8s8-asym-pt"] < at["float32"]),
            f"what ran for the QDQ form: {largest(spent['qdq-s8s8-asym-pt'], 5)}: a Conv that reads float is not int8",
        ),
        Claim(
            "u8 activations with s8 weights are best",
            "best on e2",
            f"{fastest} {ms(at[fastest])}",
            decided("u8s8" in fastest),
            f"convolutions take {convolutions} ({instructions()}; {MLAS})",
        ),
        Claim(
            "dynamic int8 is slow",
            '"slow, better not"',
            f"{at['dynamic-u8s8-pt'] / at['float32']:.2f} x the float time",
            decided(at["dynamic-u8s8-pt"] > at["float32"]),
            f"its kernels: {largest(dynamic, 6)}; float's: {largest(spent['float32'], 3)}",
        ),
    ]
    return report("formats", claims, [result])


if __name__ == "__main__":
    sys.exit(main())
