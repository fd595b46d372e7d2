"""Keras' ResNet152V2 with random weights: what int8 gains in ONNX Runtime and in LiteRT, in time and in size.

python benchmarks/notes/resnet152.py
"""

import sys

from claims import (
    UNTESTABLE,
    Claim,
    decided,
    instructions,
    keras_network,
    megabytes,
    ms,
    options,
    report,
    row,
    run,
    seconds,
    speedup,
)
from kernels import kernels, largest, within
from pairs import turns
from taglio.compare.result import Comparison

NAME = "resnet152"
SIGNED, BEST, UNSIGNED = "qdq-s8s8-asym-pt", "qdq-u8s8-asym-pc", "qdq-u8u8-asym-pt"
CONV = ("QLinearConv", "FusedConv", "Conv")
LITERT = ("dynamic", "float16", "int8")
BUILT_IN = ("float32 built-in", "dynamic built-in", "float16 built-in", "int8 built-in")


def _litert(result: Comparison) -> Claim:
    with_xnnpack = {key: speedup(result, f"litert/{key}") for key in LITERT}
    plain = seconds(result, "litert/float32 built-in")
    without = {key: plain / seconds(result, f"litert/{key}") for key in BUILT_IN[1:]}
    int8 = {key: row(result, f"litert/{key}").checked for key in ("dynamic", "float16", "int8", "int8 built-in")}
    ran = ", ".join(f"{key}: {sum(each.int8_operators.values())} int8 operators" for key, each in int8.items() if each)
    return Claim(
        "quantisation gains nothing in TFLite without special hardware",
        "dynamic slower than float, float16 the same, all slower than ONNX Runtime",
        f"float32 {ms(seconds(result, 'litert/float32'))} (ONNX Runtime {ms(seconds(result, 'onnxruntime/float32'))}); "
        "with XNNPACK " + ", ".join(f"{key} {value:.2f} x" for key, value in with_xnnpack.items()),
        decided(max(with_xnnpack.values()) < 1.1),
        f"what the converted models hold: {ran}. On LiteRT's own kernels without XNNPACK, over their float32 "
        f"({ms(plain)}): " + ", ".join(f"{key} {value:.2f} x" for key, value in without.items()),
    )


def main() -> int:
    asked = options(__doc__)
    try:
        source = keras_network("ResNet152V2")
    except FileNotFoundError as error:
        print(f"skipped {error}")
        return 0
    result = run(NAME, source, "", asked, "onnxruntime,litert", (SIGNED, BEST, UNSIGNED, *LITERT, *BUILT_IN))
    keys = [f"onnxruntime/{key}" for key in ("float32", SIGNED, BEST, UNSIGNED)]
    taken = turns(NAME, result, keys, 60.0 * asked.effort)
    gains = {key: taken.ratio(keys[0], f"onnxruntime/{key}") for key in (SIGNED, UNSIGNED, BEST)}
    spent = kernels(NAME, result, ("float32", SIGNED, UNSIGNED, BEST))
    convolutions = ", ".join(f"{key} {ms(within(each, *CONV))}" for key, each in spent.items())
    vnni = "vnni" in instructions()
    sizes = {key: megabytes(result, f"onnxruntime/{key}") for key in ("float32", BEST)}
    lite = {key: megabytes(result, f"litert/{key}") for key in ("float32", *LITERT)}
    claims = [
        Claim(
            "ResNet152V2 in int8 is about 1.8 x as fast without VNNI",
            "1.8 on e2-standard-4 and Colab",
            f"float {ms(taken.seconds(keys[0]))}; " + ", ".join(f"{key} {value} x" for key, value in gains.items()),
            UNTESTABLE if vnni else decided(1.4 < gains[SIGNED].middle < 2.3),
            f"this processor has {instructions()}. Nearest to it: u8u8, whose convolutions have no VNNI kernel in ONNX "
            f"Runtime (MLAS, platform.cpp). Convolutions take, in the profile: {convolutions}; largest of s8s8: "
            f"{largest(spent[SIGNED], 3)}",
        ),
        _litert(result),
        Claim(
            "int8 divides the size of the file by four, float16 by two",
            "a quarter and a half of float's, by the documentation that is quoted",
            ", ".join(f"ONNX {key} {value:.1f} MB" for key, value in sizes.items())
            + "; "
            + ", ".join(f"TFLite {key} {value:.1f} MB" for key, value in lite.items()),
            decided(
                3.5 < sizes["float32"] / sizes[BEST] < 4.2
                and 3.5 < lite["float32"] / lite["int8"] < 4.2
                and 1.9 < lite["float32"] / lite["float16"] < 2.1
            ),
            "the files that were timed; scales, biases and the graph itself are not a quarter",
        ),
    ]
    return report("resnet152", claims, [result])


if __name__ == "__main__":
    sys.exit(main())
