"""ResNet50V2 with random weights: int8 only where a layer alone is faster, against int8 everywhere.

python benchmarks/notes/mixed.py
"""

import sys

from claims import Claim, keras_network, ms, options, report, row, run
from kernels import differences, kernels, within
from pairs import turns

NAME = "resnet50"
MIXED, WHOLE = "mixed-asym-faster", "qdq-u8s8-asym-pc"


def main() -> int:
    asked = options(__doc__)
    try:
        source = keras_network("ResNet50V2")
    except FileNotFoundError as error:
        print(f"skipped {error}")
        return 0
    result = run(NAME, source, "", asked, "onnxruntime", (MIXED, WHOLE))
    keys = [f"onnxruntime/{key}" for key in ("float32", MIXED, WHOLE)]
    taken = turns(NAME, result, keys, 60.0 * asked.effort)
    ratio = taken.ratio(keys[1], keys[2])
    spent = kernels(NAME, result, (MIXED, WHOLE))
    between = {key: within(each, "QuantizeLinear", "DequantizeLinear") for key, each in spent.items()}
    checked = {key: row(result, f"onnxruntime/{key}").checked for key in (MIXED, WHOLE)}
    ran = ", ".join(f"{key} {sum(each.int8_operators.values())}" for key, each in checked.items() if each)
    claims = [
        Claim(
            "int8 only where a layer alone is faster beats int8 everywhere (ResNet50V2)",
            '"better, though not by much" (Intel i7 of the 8th generation, no VNNI, s8s8)',
            f"float {ms(taken.seconds(keys[0]))}, mixed {ms(taken.seconds(keys[1]))}, all int8 "
            f"{ms(taken.seconds(keys[2]))}; mixed / all {ratio}",
            ratio.below_one(),
            f"int8 kernels: {ran}; quantising and dequantising take {ms(between[MIXED])} in the mixed model and "
            f"{ms(between[WHOLE])} in the other; milliseconds that differ most: "
            f"{differences(spent[MIXED], spent[WHOLE])}",
        ),
    ]
    return report("mixed", claims, [result])


if __name__ == "__main__":
    sys.exit(main())
