"""yolo11x-seg: all int8 in QOperator and QDQ, and only the 10 and 20 blocks with most operations, as in the notes.

python benchmarks/notes/yolo11x.py
"""

import sys

from claims import Claim, decided, instructions, level, ms, options, report, row, run_case, seconds, spread
from kernels import kernels, largest, within

QDQ, QOPERATOR = "onnxruntime/qdq-u8s8-sym-pc", "onnxruntime/qoperator-u8s8-sym-pc"
ROWS = ("qoperator-u8s8-sym-pc", "qdq-u8s8-sym-pc", "mixed-sym-top-10", "mixed-sym-top-20")


def main() -> int:
    asked = options(__doc__)
    result = run_case("yolo11x-seg", asked, "onnxruntime", ROWS)
    plain = seconds(result, "onnxruntime/float32")
    at = {key: seconds(result, f"onnxruntime/{key}") for key in ROWS}
    ratio = at["qdq-u8s8-sym-pc"] / at["qoperator-u8s8-sym-pc"]
    gain = plain / at["qoperator-u8s8-sym-pc"]
    ten, twenty = plain - at["mixed-sym-top-10"], plain - at["mixed-sym-top-20"]
    counted = {
        key: sum(each.int8_operators.values())
        for key in ROWS
        if (each := row(result, f"onnxruntime/{key}").checked) is not None
    }
    spent = kernels("yolo11x-seg", result, ("float32", *ROWS))
    conv = {key: within(each, "QLinearConv", "FusedConv", "Conv") for key, each in spent.items()}
    claims = [
        Claim(
            "large models gain most: 3.75 x",
            "1 s → 300 ms on c4-standard-4",
            f"{ms(plain)} → {ms(at['qoperator-u8s8-sym-pc'])}: {gain:.2f} x",
            decided(gain > 2.5),
            f"convolutions {ms(conv['float32'])} → {ms(conv['qoperator-u8s8-sym-pc'])}, everything else "
            f"{ms(sum(spent['float32'].values()) - conv['float32'])} → "
            f"{ms(sum(spent['qoperator-u8s8-sym-pc'].values()) - conv['qoperator-u8s8-sym-pc'])} ({asked.threads} "
            f"threads, {instructions()}; confirmed means above 2.5 x)",
        ),
        Claim(
            "QDQ takes as long as QOperator",
            "practically the same",
            f"QDQ {spread(result, QDQ)}, QOperator {spread(result, QOPERATOR)}: ratio {ratio:.3f}",
            decided(level(result, QDQ, QOPERATOR)),
            f"int8 kernels that ran: QDQ {counted['qdq-u8s8-sym-pc']}, QOperator {counted['qoperator-u8s8-sym-pc']}",
        ),
        Claim(
            "the 10 blocks with most operations gain a third of float's time, 20 gain more",
            "300 ms and 400 ms of about 1 s",
            f"{ms(ten)} and {ms(twenty)} of {ms(plain)}: {ten / plain:.0%} and {twenty / plain:.0%}",
            decided(0.0 < ten < twenty),
            "confirmed means that both gain and 20 gain more; convolutions in float, 10 and 20 in int8: "
            f"{ms(conv['float32'])}, {ms(conv['mixed-sym-top-10'])}, {ms(conv['mixed-sym-top-20'])}; largest with 20: "
            f"{largest(spent['mixed-sym-top-20'])}",
        ),
    ]
    return report("yolo11x", claims, [result])


if __name__ == "__main__":
    sys.exit(main())
