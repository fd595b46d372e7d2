"""Keras' ResNet50V2 and ResNet152V2, random weights: int8 speed-up in ONNX Runtime and LiteRT, and mixed precision.

python benchmarks/notes/resnets.py
"""

import sys

from claims import UNTESTABLE, Claim, decided, instructions, keras_network, ms, options, report, run, seconds, speedup
from kernels import kernels, largest, within

ONNX = ("qdq-s8s8-asym-pt", "qdq-u8s8-asym-pc", "mixed-asym-faster", "qdq-u8u8-asym-pt")
LITERT = ("dynamic", "float16", "int8")
BUILT_IN = ("float32 built-in", "dynamic built-in", "float16 built-in", "int8 built-in")


def main() -> int:
    asked = options(__doc__)
    try:
        large = run(
            "resnet152",
            keras_network("ResNet152V2"),
            "",
            asked,
            "onnxruntime,litert",
            (*ONNX[:2], ONNX[3], *LITERT, *BUILT_IN),
        )
        small = run("resnet50", keras_network("ResNet50V2"), "", asked, "onnxruntime", ONNX[:3])
    except FileNotFoundError as error:
        print(f"skipped {error}")
        return 0
    gains = {key: speedup(large, f"onnxruntime/{key}") for key in (*ONNX[:2], ONNX[3])}
    mixed, whole = (seconds(small, f"onnxruntime/{key}") for key in ("mixed-asym-faster", "qdq-u8s8-asym-pc"))
    lite = {key: speedup(large, f"litert/{key}") for key in LITERT}
    built_in = {
        key: seconds(large, "litert/float32 built-in") / seconds(large, f"litert/{key}") for key in BUILT_IN[1:]
    }
    spent = kernels("resnet50", small, ("qdq-u8s8-asym-pc", "mixed-asym-faster"))
    between = {key: within(each, "QuantizeLinear", "DequantizeLinear") for key, each in spent.items()}
    ran = kernels("resnet152", large, ("qdq-s8s8-asym-pt", "qdq-u8u8-asym-pt"))
    vnni = "vnni" in instructions()
    claims = [
        Claim(
            "ResNet152V2 in int8 is about 1.8 x as fast without VNNI",
            "1.8 on e2-standard-4 and Colab",
            ", ".join(f"{key} {value:.2f} x" for key, value in gains.items()),
            UNTESTABLE if vnni else decided(1.4 < gains["qdq-s8s8-asym-pt"] < 2.3),
            f"what ran as s8s8: {largest(ran['qdq-s8s8-asym-pt'], 3)}; u8u8, for which ONNX Runtime has no VNNI kernel "
            f"(platform.cpp): {largest(ran['qdq-u8u8-asym-pt'], 3)}; the processor has {instructions()}",
        ),
        Claim(
            "int8 only where a layer alone is faster beats int8 everywhere (ResNet50V2)",
            '"better, though not by much"',
            f"mixed {ms(mixed)}, all int8 {ms(whole)}",
            decided(mixed < whole),
            f"quantising and dequantising take {ms(between['mixed-asym-faster'])} in the mixed model and "
            f"{ms(between['qdq-u8s8-asym-pc'])} in the other; largest kernels of the mixed one: "
            f"{largest(spent['mixed-asym-faster'])}",
        ),
        Claim(
            "quantisation gains nothing in TFLite without special hardware",
            "dynamic slower than float, float16 the same",
            "with XNNPACK " + ", ".join(f"{key} {value:.2f} x" for key, value in lite.items()),
            decided(max(lite.values()) < 1.1),
            "without XNNPACK, on LiteRT's built-in kernels (over their own float32): "
            + ", ".join(f"{key} {value:.2f} x" for key, value in built_in.items()),
        ),
    ]  # fmt: skip
    return report("resnets", claims, [large, small])


if __name__ == "__main__":
    sys.exit(main())
