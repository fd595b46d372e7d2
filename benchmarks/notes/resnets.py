"""Keras' ResNet50V2 and ResNet152V2, random weights: int8 speed-up in ONNX Runtime and LiteRT, and mixed precision.

python benchmarks/notes/resnets.py
"""

import sys

from claims import UNTESTABLE, Claim, decided, instructions, keras_network, ms, options, report, run, seconds, speedup

ONNX = ("qdq-s8s8-asym-pt", "qdq-u8s8-asym-pc", "mixed-asym-faster")
LITERT = ("dynamic", "float16", "int8")


def main() -> int:
    asked = options(__doc__)
    try:
        large = run("resnet152", keras_network("ResNet152V2"), "", asked, "onnxruntime,litert", (*ONNX[:2], *LITERT))
        small = run("resnet50", keras_network("ResNet50V2"), "", asked, "onnxruntime", ONNX)
    except FileNotFoundError as error:
        print(f"skipped {error}")
        return 0
    gains = {key: speedup(large, f"onnxruntime/{key}") for key in ONNX[:2]}
    mixed, whole = (seconds(small, f"onnxruntime/{key}") for key in ("mixed-asym-faster", "qdq-u8s8-asym-pc"))
    lite = {key: speedup(large, f"litert/{key}") for key in LITERT}
    vnni = "vnni" in instructions()
    claims = [
        Claim(
            "ResNet152V2 in int8 is about 1.8 x as fast without VNNI",
            "1.8 on e2-standard-4 and Colab",
            ", ".join(f"{key} {value:.2f} x" for key, value in gains.items()),
            UNTESTABLE if vnni else decided(1.4 < gains["qdq-s8s8-asym-pt"] < 2.3),
            f"the processor has {instructions()}: ONNX Runtime cannot leave it unused" if vnni else "no VNNI here",
        ),
        Claim(
            "int8 only where a layer alone is faster beats int8 everywhere (ResNet50V2)",
            '"better, though not by much"',
            f"mixed {ms(mixed)}, all int8 {ms(whole)}",
            decided(mixed < whole),
            "layers chosen alone leave out what switching back and forth costs between them",
        ),
        Claim(
            "quantisation gains nothing in TFLite without special hardware",
            "dynamic slower than float, float16 the same",
            ", ".join(f"{key} {value:.2f} x" for key, value in lite.items()),
            decided(max(lite.values()) < 1.1),
            "XNNPACK's int8 kernels use the same instructions as ONNX Runtime's; it was not in the notes' interpreter",
        ),
    ]  # fmt: skip
    return report("resnets", claims, [large, small])


if __name__ == "__main__":
    sys.exit(main())
