"""Symmetric against asymmetric activations on yolo11s-seg (the notes: yolo11l-seg and yolo11s-seg on c4).

python benchmarks/notes/symmetric.py
"""

import sys

from claims import Claim, decided, ms, options, report, row, run_case, seconds
from kernels import differences, kernels


def main() -> int:
    asked = options(__doc__)
    result = run_case("yolo11s-seg", asked, "onnxruntime", ("qdq-u8s8-sym-pc", "qdq-u8s8-asym-pc"))
    symmetric, asymmetric = (seconds(result, f"onnxruntime/qdq-u8s8-{each}-pc") for each in ("sym", "asym"))
    plain = seconds(result, "onnxruntime/float32")
    kinds = {}
    for each in ("sym", "asym"):
        checked = row(result, f"onnxruntime/qdq-u8s8-{each}-pc").checked
        assert checked is not None
        kinds[each] = checked.operators
    differ = {
        kind: (kinds["sym"].get(kind, 0), kinds["asym"].get(kind, 0))
        for kind in sorted(kinds["sym"].keys() | kinds["asym"].keys())
        if kinds["sym"].get(kind, 0) != kinds["asym"].get(kind, 0)
    }
    found = kernels("yolo11s-seg", result, ("qdq-u8s8-sym-pc", "qdq-u8s8-asym-pc"))
    spent = differences(*found.values(), 6)
    claim = Claim(
        "symmetric activations are faster than asymmetric ones",
        "asymmetric slower than float at first, symmetric faster",
        f"float {ms(plain)}, asymmetric {ms(asymmetric)}, symmetric {ms(symmetric)}",
        decided(symmetric < 0.97 * asymmetric),
        f"kernels that differ in number (symmetric, asymmetric): {differ or 'none: the same kernels ran'}; most of the "
        f"time is won or lost in (symmetric / asymmetric, ms): {spent}",
    )
    return report("symmetric", [claim], [result])


if __name__ == "__main__":
    sys.exit(main())
