"""yolo11x-seg: all int8 in QOperator and QDQ, and only the 10 and 20 blocks with most operations, as in the notes.

python benchmarks/notes/yolo11x.py
"""

import sys

from claims import Claim, decided, instructions, ms, options, report, row, run_case
from kernels import differences, kernels, largest, within
from pairs import turns

NETWORK = "yolo11x-seg"
QDQ, QOPERATOR = "qdq-u8s8-sym-pc", "qoperator-u8s8-sym-pc"
TOP = ("mixed-sym-top-10", "mixed-sym-top-20")
KEYS = ("float32", QOPERATOR, QDQ, *TOP)


def main() -> int:
    asked = options(__doc__)
    result = run_case(NETWORK, asked, "onnxruntime", KEYS)
    taken = turns(NETWORK, result, [f"onnxruntime/{key}" for key in KEYS], 100.0 * asked.effort)
    at = {key: taken.seconds(f"onnxruntime/{key}") for key in KEYS}
    plain = at["float32"]
    gain = taken.ratio("onnxruntime/float32", f"onnxruntime/{QOPERATOR}")
    formats = taken.ratio(f"onnxruntime/{QDQ}", f"onnxruntime/{QOPERATOR}")
    more = taken.ratio(f"onnxruntime/{TOP[1]}", f"onnxruntime/{TOP[0]}")
    counted = {
        key: sum(each.int8_operators.values())
        for key in KEYS
        if (each := row(result, f"onnxruntime/{key}").checked) is not None
    }
    spent = kernels(NETWORK, result, KEYS)
    conv = {key: within(each, "QLinearConv", "FusedConv", "Conv") for key, each in spent.items()}
    ten, twenty = (plain - at[key] for key in TOP)
    claims = [
        Claim(
            "large models gain most: 3.75 x",
            "1 s → 300 ms on c4-standard-4 (VNNI and AMX)",
            f"{ms(plain)} → {ms(at[QOPERATOR])}: {gain} x",
            decided(gain.low > 2.5),
            f"convolutions {ms(conv['float32'])} → {ms(conv[QOPERATOR])} in the profile, everything else "
            f"{ms(sum(spent['float32'].values()) - conv['float32'])} → "
            f"{ms(sum(spent[QOPERATOR].values()) - conv[QOPERATOR])}: what is not a convolution gains little "
            f"({asked.threads} threads, {instructions()}; confirmed means above 2.5 x)",
        ),
        Claim(
            "QDQ takes as long as QOperator",
            "practically the same",
            f"QDQ {ms(at[QDQ])}, QOperator {ms(at[QOPERATOR])}: ratio {formats}",
            formats.near_one(),
            f"int8 kernels that ran: QDQ {counted[QDQ]}, QOperator {counted[QOPERATOR]}; milliseconds that differ most "
            f"(QDQ / QOperator): {differences(spent[QDQ], spent[QOPERATOR])}",
        ),
        Claim(
            "the 10 blocks with most operations gain a third of float's time, 20 gain more",
            "300 ms and 400 ms of about 1 s",
            f"{ms(ten)} and {ms(twenty)} of {ms(plain)}: {ten / plain:.0%} and {twenty / plain:.0%}; 20 over 10 {more}",
            more.below_one() if ten > 0.0 else decided(False),
            "convolutions in float, 10 and 20 in int8: "
            f"{ms(conv['float32'])}, {ms(conv[TOP[0]])}, {ms(conv[TOP[1]])}; largest with 20: {largest(spent[TOP[1]])}",
        ),
    ]
    return report("yolo11x", claims, [result])


if __name__ == "__main__":
    sys.exit(main())
