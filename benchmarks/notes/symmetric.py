"""Symmetric against asymmetric activations on yolo11s-seg (the notes: yolo11l-seg and yolo11s-seg on c4).

The notes ran through OpenVINO's provider and through the CPU's, and do not say which this was: both are tried.

python benchmarks/notes/symmetric.py
"""

import sys

from claims import Claim, ms, options, report, row, run_case
from kernels import differences, kernels
from pairs import Turns, turns
from taglio.compare.environments import find
from taglio.compare.result import Comparison

NETWORK = "yolo11s-seg"
FORMS = ("qdq-u8s8", "qoperator-u8s8", "qdq-s8s8")
CPU, PROVIDER, NATIVE = "onnxruntime", "openvino-ep", "openvino"


def _counts(result: Comparison, backend: str, form: str) -> str:
    """Operators that differ in number between the symmetric and the asymmetric model."""
    one, other = (row(result, f"{backend}/{form}-{each}-pc").checked for each in ("sym", "asym"))
    assert one is not None
    assert other is not None
    kinds = sorted(one.operators.keys() | other.operators.keys())
    differ = [
        f"{kind} {one.operators.get(kind, 0)} / {other.operators.get(kind, 0)}"
        for kind in kinds
        if one.operators.get(kind) != other.operators.get(kind)
    ]
    return ", ".join(differ) or "none"


def _claim(taken: Turns, backend: str, form: str, why: str) -> Claim:
    symmetric, asymmetric = (f"{backend}/{form}-{each}-pc" for each in ("sym", "asym"))
    ratio, against = taken.ratio(symmetric, asymmetric), taken.ratio(asymmetric, f"{backend}/float32")
    return Claim(
        f"symmetric activations are faster than asymmetric ones ({backend}, {form})",
        "asymmetric slower than float, symmetric faster",
        f"float {ms(taken.seconds(f'{backend}/float32'))}, asymmetric {ms(taken.seconds(asymmetric))}, symmetric "
        f"{ms(taken.seconds(symmetric))}; symmetric / asymmetric {ratio}, asymmetric / float {against}",
        ratio.below_one(),
        why,
    )


def main() -> int:
    asked = options(__doc__)
    with_openvino = all(find(each).interpreter is not None for each in (PROVIDER, NATIVE))
    backends = (CPU, PROVIDER, NATIVE) if with_openvino else (CPU,)
    keys = [f"{form}-{each}-pc" for form in FORMS for each in ("sym", "asym")]
    result = run_case(NETWORK, asked, ",".join(backends), tuple(keys))
    claims = []
    taken = turns(NETWORK, result, [f"{CPU}/{key}" for key in ("float32", *keys)], 90.0 * asked.effort)
    spent = kernels(NETWORK, result, keys)
    for form in FORMS:
        why = (
            f"kernels that differ in number (symmetric / asymmetric): {_counts(result, CPU, form)}; in milliseconds, "
            f"largest differences: {differences(spent[f'{form}-sym-pc'], spent[f'{form}-asym-pc'], 6)}"
        )
        claims.append(_claim(taken, CPU, form, why))
    if with_openvino:
        forms = [form for form in FORMS if form.startswith("qdq")]
        own = [f"{PROVIDER}/{form}-{each}-pc" for form in forms for each in ("sym", "asym")]
        taken = turns(NETWORK, result, [f"{PROVIDER}/float32", *own], 60.0 * asked.effort)
        for form in forms:
            why = (
                "parts of OpenVINO's own compiled graph that differ in number (symmetric / asymmetric; the provider "
                f"shows none): {_counts(result, NATIVE, form)}"
            )
            claims.append(_claim(taken, PROVIDER, form, why))
    else:
        print("OpenVINO is not built here: only the CPU provider was tried")
    return report("symmetric", claims, [result])


if __name__ == "__main__":
    sys.exit(main())
