"""QDQ against QOperator at each optimisation level, yolo11n-seg as in the notes.

python benchmarks/notes/levels.py
"""

import sys

from claims import Claim, decided, ms, options, report, row, run_case, seconds
from kernels import differences, kernels
from pairs import turns

NETWORK = "yolo11n-seg"
LEVELS = (" basic", " extended", "")


def _pairs(operators: dict[str, int]) -> int:
    return operators.get("QuantizeLinear", 0) + operators.get("DequantizeLinear", 0)


def main() -> int:
    asked = options(__doc__)
    keys = tuple(f"{form}-u8s8-sym-pc{level}" for form in ("qdq", "qoperator") for level in LEVELS)
    result = run_case(NETWORK, asked, "onnxruntime", keys)
    at = {key: seconds(result, f"onnxruntime/{key}") for key in keys}
    qdq, qoperator = "onnxruntime/qdq-u8s8-sym-pc", "onnxruntime/qoperator-u8s8-sym-pc"
    ratio = turns(NETWORK, result, (qdq, qoperator), 60.0 * asked.effort).ratio(qdq, qoperator)
    basic = at["qdq-u8s8-sym-pc basic"] / at["qoperator-u8s8-sym-pc basic"]
    checked = {key: row(result, f"onnxruntime/{key}").checked for key in keys}
    counted = {key: sum(each.int8_operators.values()) for key, each in checked.items() if each}
    pairs = {key: _pairs(each.operators) for key, each in checked.items() if each}
    spent = kernels(NETWORK, result, keys)
    full, first = (tuple(f"{form}-u8s8-sym-pc{level}" for form in ("qdq", "qoperator")) for level in ("", " basic"))
    shown = {
        level: ", ".join(f"{key}: {counted[key]} int8 kernels, {pairs[key]} (de)quantise" for key in names)
        + f"; milliseconds that differ most, QDQ / QOperator: {differences(spent[names[0]], spent[names[1]])}"
        for level, names in (("all", full), ("basic", first))
    }
    claims = [
        Claim(
            "fully optimised, QDQ and QOperator are the same computation",
            '"in substance equivalent"',
            f"QDQ / QOperator {ratio}; " + ", ".join(f"{key} {ms(value)}" for key, value in at.items()),
            ratio.near_one(),
            f"what ran, by the profile: {shown['all']}",
        ),
        Claim(
            "with basic optimisation QDQ is the slower one",
            "its pairs are still in the graph (screenshots)",
            f"QDQ / QOperator {basic:.2f}",
            decided(basic > 1.1),
            f"what ran, by the profile: {shown['basic']}",
        ),
    ]
    return report("levels", claims, [result])


if __name__ == "__main__":
    sys.exit(main())
