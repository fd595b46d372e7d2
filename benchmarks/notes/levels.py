"""QDQ against QOperator at each optimisation level, yolo11n-seg as in the notes.

python benchmarks/notes/levels.py
"""

import sys

from claims import Claim, decided, level, ms, options, report, row, run_case, seconds

LEVELS = (" basic", " extended", "")


def _pairs(operators: dict[str, int]) -> int:
    return operators.get("QuantizeLinear", 0) + operators.get("DequantizeLinear", 0)


def main() -> int:
    asked = options(__doc__)
    keys = tuple(f"{form}-u8s8-sym-pc{level}" for form in ("qdq", "qoperator") for level in LEVELS)
    result = run_case("yolo11n-seg", asked, "onnxruntime", keys)
    at = {key: seconds(result, f"onnxruntime/{key}") for key in keys}
    ratio = at["qdq-u8s8-sym-pc"] / at["qoperator-u8s8-sym-pc"]
    basic = at["qdq-u8s8-sym-pc basic"] / at["qoperator-u8s8-sym-pc basic"]
    checked = {key: row(result, f"onnxruntime/{key}").checked for key in keys}
    counted = {key: sum(each.int8_operators.values()) for key, each in checked.items() if each}
    pairs = {key: _pairs(each.operators) for key, each in checked.items() if each}
    shown = ", ".join(f"{key}: {counted[key]} int8 kernels, {pairs[key]} (de)quantise" for key in keys)
    claims = [
        Claim(
            "fully optimised, QDQ and QOperator are the same computation",
            '"in substance equivalent" (also yolo11x on c4)',
            f"QDQ / QOperator {ratio:.3f}; " + ", ".join(f"{key} {ms(value)}" for key, value in at.items()),
            decided(level(result, "onnxruntime/qdq-u8s8-sym-pc", "onnxruntime/qoperator-u8s8-sym-pc")),
            f"kernels that ran, by the profile: {shown}",
        ),
        Claim(
            "with basic optimisation QDQ is the slower one",
            "its pairs are still in the graph (screenshots)",
            f"QDQ / QOperator {basic:.2f}",
            decided(basic > 1.1),
            f"kernels that ran, by the profile: {shown}",
        ),
    ]
    return report("levels", claims, [result])


if __name__ == "__main__":
    sys.exit(main())
