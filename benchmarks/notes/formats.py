"""QDQ and QOperator in u8u8, u8s8 and s8s8 on yolo11n-seg (the notes: a ResNet on e2, c3, c3d and c4a machines).

python benchmarks/notes/formats.py
"""

import sys

from claims import Claim, decided, instructions, ms, options, report, run_case, seconds

TYPES = ("u8u8", "u8s8", "s8s8")


def main() -> int:
    asked = options(__doc__)
    keys = tuple(f"{form}-{types}-asym-pt" for form in ("qdq", "qoperator") for types in TYPES)
    result = run_case("yolo11n-seg", asked, "onnxruntime", (*keys, "dynamic-u8s8-pt"))
    at = {key: seconds(result, f"onnxruntime/{key}") for key in (*keys, "dynamic-u8s8-pt", "float32")}
    figures = ", ".join(f"{key} {ms(value)}" for key, value in at.items())
    slowest, fastest = max(keys, key=lambda key: at[key]), min(keys, key=lambda key: at[key])
    kernels = {
        each.wanted.id: each.checked.int8_operators for each in result.rows if each.checked and "s8s8" in each.wanted.id
    }
    claims = [
        Claim(
            "s8s8 QOperator is by far the slowest form on x86",
            "worst on e2 (no VNNI), c3 (VNNI) and c3d; fine on Arm",
            figures,
            decided(slowest == "qoperator-s8s8-asym-pt"),
            f"slowest here: {slowest}; it ran {kernels['onnxruntime/qoperator-s8s8-asym-pt']}, and ONNX Runtime's x86 "
            f"kernels for s8 activations have no fast path whatever the processor has ({instructions()})",
        ),
        Claim(
            "u8 activations with s8 weights are best",
            "best on e2",
            f"{fastest} {ms(at[fastest])}",
            decided("u8s8" in fastest),
            "the instruction multiplies u8 by s8: other pairs are converted first",
        ),
        Claim(
            "dynamic int8 is slow",
            '"slow, better not"',
            f"{at['dynamic-u8s8-pt'] / at['float32']:.2f} x the float time",
            decided(at["dynamic-u8s8-pt"] > at["float32"]),
            "every activation is read once more for its range, and its Conv is ConvInteger, which fuses with nothing",
        ),
    ]
    return report("formats", claims, [result])


if __name__ == "__main__":
    sys.exit(main())
