"""Single layers in LiteRT, which the notes found no way to: selected ones in int8, and every one alone.

python benchmarks/notes/litert_layers.py
"""

import sys

from claims import Claim, decided, options, report, row, run, trained_resnet

PREPROCESS = "rgb,mean=0,scale=1,stretch,nhwc"
NAME, MIXED = "mlperf-tiny-resnet8", "mixed-top-10"


def main() -> int:
    asked = options(__doc__)
    try:
        source = trained_resnet()
    except FileNotFoundError as error:
        print(f"skipped {error}")
        return 0
    result = run(NAME, source, PREPROCESS, asked, "litert", (MIXED, "int8-aeq"), layers=True)
    checked = row(result, f"litert/{MIXED}").checked
    whole = row(result, "litert/int8-aeq").checked
    assert checked is not None
    assert whole is not None
    count, every = (sum(each.int8_operators.values()) for each in (checked, whole))
    layers = [each for each in result.layers if each.speedup is not None]
    alone = [each for each in layers if each.error is not None]
    faster = [each for each in layers if (each.speedup or 0.0) > 1.0]
    best = max(layers, key=lambda each: each.speedup or 0.0)
    worst = min(layers, key=lambda each: each.speedup or 0.0)
    claims = [
        Claim(
            "TFLite cannot quantise a part of the layers: all or none",
            '"no possibility to name a subset"',
            f"{count} of {sum(checked.operators.values())} operators in int8 (all that can be: {every}); error "
            f"{checked.error_to_float or 0.0:.2%} against {whole.error_to_float or 0.0:.2%}",
            decided(not 0 < count < every),
            "ai-edge-quantizer takes a recipe by names of output tensors; the file that it wrote was looked into",
        ),
        Claim(
            "speed-up and error of a single layer are hard to come by",
            '"not tried yet"; models would have to be divided first',
            f"{len(layers)} layers timed in float and int8, {len(faster)} faster in int8: {best.kind} "
            f"{best.speedup:.2f} x to {worst.kind} {worst.speedup:.2f} x; errors of {len(alone)}",
            decided(not alone),
            "each operator of the TFLite file is cut out as a file of its own and timed; the error is the model's "
            "with it alone in int8",
        ),
    ]
    return report("litert_layers", claims, [result])


if __name__ == "__main__":
    sys.exit(main())
