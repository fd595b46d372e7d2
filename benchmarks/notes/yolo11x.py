"""yolo11x-seg: all int8 in QOperator and QDQ, and only the 10 and 20 blocks with most operations, as in the notes.

python benchmarks/notes/yolo11x.py
"""

import sys

from claims import Claim, decided, instructions, ms, options, report, run_case, seconds

ROWS = ("qoperator-u8s8-sym-pc", "qdq-u8s8-sym-pc", "mixed-sym-top-10", "mixed-sym-top-20")


def main() -> int:
    asked = options(__doc__)
    result = run_case("yolo11x-seg", asked, "onnxruntime", ROWS)
    plain = seconds(result, "onnxruntime/float32")
    at = {key: seconds(result, f"onnxruntime/{key}") for key in ROWS}
    ratio = at["qdq-u8s8-sym-pc"] / at["qoperator-u8s8-sym-pc"]
    gain = plain / at["qoperator-u8s8-sym-pc"]
    ten, twenty = plain - at["mixed-sym-top-10"], plain - at["mixed-sym-top-20"]
    claims = [
        Claim(
            "large models gain most: 3.75 x",
            "1 s → 300 ms on c4-standard-4",
            f"{ms(plain)} → {ms(at['qoperator-u8s8-sym-pc'])}: {gain:.2f} x",
            decided(gain > 2.5),
            f"{asked.threads} threads of a processor with {instructions()}; confirmed means above 2.5 x",
        ),
        Claim(
            "QDQ takes as long as QOperator",
            "practically the same",
            f"QDQ / QOperator {ratio:.3f}",
            decided(abs(ratio - 1.0) < 0.1),
            "the same int8 kernels run once the pairs are fused",
        ),
        Claim(
            "the 10 blocks with most operations gain a third of float's time, 20 gain more",
            "300 ms and 400 ms of about 1 s",
            f"{ms(ten)} and {ms(twenty)} of {ms(plain)}: {ten / plain:.0%} and {twenty / plain:.0%}",
            decided(0.0 < ten < twenty),
            "the share depends on how fast float and int8 are here; confirmed means that both gain and 20 gain more",
        ),
    ]
    return report("yolo11x", claims, [result])


if __name__ == "__main__":
    sys.exit(main())
