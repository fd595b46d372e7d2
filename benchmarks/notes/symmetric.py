"""Symmetric against asymmetric activations on yolo11s-seg (the notes: yolo11l-seg and yolo11s-seg on c4).

python benchmarks/notes/symmetric.py
"""

import sys

from claims import Claim, decided, ms, options, report, row, run_case, seconds
from kernels import differences, kernels

NETWORK = "yolo11s-seg"
FORMS = ("qdq", "qoperator")  # written by taglio, and by ONNX Runtime's own quantiser, which the notes used


def main() -> int:
    asked = options(__doc__)
    keys = tuple(f"{form}-u8s8-{each}-pc" for form in FORMS for each in ("sym", "asym"))
    result = run_case(NETWORK, asked, "onnxruntime", keys)
    plain = seconds(result, "onnxruntime/float32")
    spent = kernels(NETWORK, result, keys)
    claims = []
    for form in FORMS:
        symmetric, asymmetric = (f"{form}-u8s8-{each}-pc" for each in ("sym", "asym"))
        first, second = (row(result, f"onnxruntime/{key}") for key in (symmetric, asymmetric))
        assert first.latency is not None
        assert second.latency is not None
        assert first.checked is not None
        assert second.checked is not None
        one, other = first.checked.operators, second.checked.operators
        differ = ", ".join(
            f"{kind} {one.get(kind, 0)} / {other.get(kind, 0)}"
            for kind in sorted(one.keys() | other.keys())
            if one.get(kind) != other.get(kind)
        )
        claims.append(
            Claim(
                f"symmetric activations are faster than asymmetric ones ({form})",
                "asymmetric slower than float at first, symmetric faster",
                f"float {ms(plain)}, asymmetric {ms(second.latency.median_s)} ± {ms(second.latency.deviation_s)}, "
                f"symmetric {ms(first.latency.median_s)} ± {ms(first.latency.deviation_s)}",
                decided(first.latency.median_s + first.latency.deviation_s < second.latency.median_s),
                f"kernels that differ in number (symmetric / asymmetric): {differ or 'none, the same kernels ran'}; "
                f"in milliseconds, largest differences: {differences(spent[symmetric], spent[asymmetric], 6)}",
            )
        )
    return report("symmetric", claims, [result])


if __name__ == "__main__":
    sys.exit(main())
