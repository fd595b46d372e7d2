"""QDQ and QOperator in u8u8, u8s8 and s8s8 on ResNet50V2 (the notes: a ResNet on e2, c3, c3d and c4a machines).

python benchmarks/notes/formats.py
"""

import sys

from claims import Claim, decided, instructions, keras_network, ms, multiplies_signed, options, report, run
from kernels import kernels, largest, within
from pairs import turns

NAME = "resnet50"
TYPES = ("u8u8", "u8s8", "s8s8")
DYNAMIC = "dynamic-u8s8-pt"
CONV = ("QLinearConv", "FusedConv", "Conv")
# Read in ONNX Runtime's source, onnxruntime/core/mlas/lib/platform.cpp.
MLAS = "MLAS (platform.cpp) has a VNNI kernel for u8 by s8 alone; s8 by s8 has none on x86 without AVX-VNNI-INT8"


def main() -> int:
    asked = options(__doc__)
    try:
        source = keras_network("ResNet50V2")
    except FileNotFoundError as error:
        print(f"skipped {error}")
        return 0
    keys = tuple(f"{form}-{types}-asym-pt" for form in ("qdq", "qoperator") for types in TYPES)
    result = run(NAME, source, "", asked, "onnxruntime", (*keys, DYNAMIC))
    every = (*keys, DYNAMIC, "float32")
    taken = turns(NAME, result, [f"onnxruntime/{key}" for key in every], 90.0 * asked.effort)
    at = {key: taken.seconds(f"onnxruntime/{key}") for key in every}
    spent = kernels(NAME, result, every)
    figures = ", ".join(f"{key} {ms(value)}" for key, value in at.items())
    convolutions = ", ".join(f"{key} {ms(within(spent[key], *CONV))}" for key in keys)
    signed = "has" if multiplies_signed() else "has not"
    best = taken.best([f"onnxruntime/{key}" for key in keys if "u8s8" in key])
    other = taken.best([f"onnxruntime/{key}" for key in keys if "u8s8" not in key])
    first = taken.ratio(best, other)
    slowest = max((key for key in keys if key != "qoperator-s8s8-asym-pt"), key=lambda key: at[key])
    last = taken.ratio(f"onnxruntime/{slowest}", "onnxruntime/qoperator-s8s8-asym-pt")
    over = taken.ratio("onnxruntime/qdq-s8s8-asym-pt", "onnxruntime/float32")
    unsigned = taken.ratio("onnxruntime/qdq-u8s8-asym-pt", "onnxruntime/qoperator-u8s8-asym-pt")
    dynamic = taken.ratio("onnxruntime/float32", f"onnxruntime/{DYNAMIC}")
    claims = [
        Claim(
            "s8s8 QOperator is by far the slowest form on x86",
            "worst on e2 (no VNNI), c3 (VNNI) and c3d; fine on Arm",
            f"{figures}; the next slowest, {slowest}, over it: {last}",
            last.below_one(),
            f"in the profile it is the convolutions: {convolutions}. {MLAS}, which this processor {signed}",
        ),
        Claim(
            "s8s8 is fast on x86 as QDQ and slow only as QOperator",
            "an assistant's answer, quoted there",
            f"QDQ s8s8 / float {over}, QDQ {ms(at['qdq-s8s8-asym-pt'])}, QOperator {ms(at['qoperator-s8s8-asym-pt'])}",
            over.below_one(),
            f"what ran for the QDQ form: {largest(spent['qdq-s8s8-asym-pt'], 4)}; for the QOperator form: "
            f"{largest(spent['qoperator-s8s8-asym-pt'], 4)}; in float: {largest(spent['float32'], 2)}",
        ),
        Claim(
            "QOperator is much slower than QDQ",
            "so the text of one test (types not told); the later tests have it for s8s8 alone",
            f"u8s8: QDQ / QOperator {unsigned}",
            decided(unsigned.high < 0.9),
            f"QDQ: {largest(spent['qdq-u8s8-asym-pt'], 4)}; QOperator: {largest(spent['qoperator-u8s8-asym-pt'], 4)}",
        ),
        Claim(
            "u8 activations with s8 weights are best",
            "best on e2",
            f"{best} over the best of other types, {other}: {first}",
            first.below_one(),
            f"convolutions take {convolutions} ({instructions()}; {MLAS})",
        ),
        Claim(
            "dynamic int8 is slow",
            '"slow, better not"',
            f"float / dynamic {dynamic}: {ms(at['float32'])} and {ms(at[DYNAMIC])}",
            dynamic.below_one(),
            f"its kernels: {largest(spent[DYNAMIC], 6)}; float's: {largest(spent['float32'], 3)}",
        ),
    ]
    return report("formats", claims, [result])


if __name__ == "__main__":
    sys.exit(main())
