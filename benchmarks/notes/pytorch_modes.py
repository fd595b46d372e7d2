"""PyTorch's ways to quantise, on ultraface-rfb-320: what the notes quote of its documentation.

python benchmarks/notes/pytorch_modes.py
"""

import sys

from claims import Claim, decided, megabytes, options, report, run_case, seconds, speedup
from taglio.compare.environments import find
from taglio.compare.result import Comparison

NETWORK = "ultraface-rfb-320"
STATIC, COMPILED, DYNAMIC = "fx-static-asym-pc x86", "pt2e-static-asym-pc", "fx-dynamic-pt x86"


def _said(result: Comparison, key: str) -> str:
    found = next(each for each in result.rows if each.wanted.id == f"pytorch/{key}")
    return f"{key}: {found.status}{': ' if found.reason else ''}{found.reason}"


def main() -> int:
    asked = options(__doc__)
    if (place := find("pytorch")).interpreter is None:
        print(f"skipped: {place.reason}")
        return 0
    result = run_case(NETWORK, asked, "pytorch", (STATIC, COMPILED, DYNAMIC, "float32 compiled"))
    measured = [key for key in (STATIC, COMPILED) if _said(result, key).endswith("measured")]
    gains = {key: speedup(result, f"pytorch/{key}") for key in measured}
    compiled = seconds(result, "pytorch/float32 compiled")
    over = compiled / seconds(result, f"pytorch/{COMPILED}") if COMPILED in measured else 0.0
    sizes = {key: megabytes(result, f"pytorch/{key}") for key in ("float32", *measured)}
    smaller = sizes["float32"] / sizes[STATIC] if STATIC in measured else 0.0
    dynamic = _said(result, DYNAMIC)
    claims = [
        Claim(
            "int8 computes 2 to 4 times as fast as float32",
            "quoted from PyTorch's documentation",
            ", ".join(f"{key} {value:.2f} x eager float32" for key, value in gains.items())
            + (f"; {COMPILED} {over:.2f} x compiled float32" if over else ""),
            decided(max(gains.values(), default=0.0) >= 2.0),
            "; ".join(_said(result, key) for key in (STATIC, COMPILED))
            + ". Confirmed means that one way reaches 2 x eager",
        ),
        Claim(
            "int8 divides the size by four",
            "quoted from PyTorch's documentation",
            ", ".join(f"{key} {value:.1f} MB" for key, value in sizes.items()),
            decided(3.5 < smaller < 4.2),
            f"float32 over {STATIC}: {smaller:.2f}. At a byte each the weights would be {sizes['float32'] / 4:.1f} MB: "
            "the rest is scales, zero points, biases and the archive's records, which a small network feels",
        ),
        Claim(
            "dynamic quantisation does not take every operator",
            "tables in screenshots",
            dynamic,
            decided("measured" not in dynamic),
            "asked for on every operator of the network",
        ),
    ]
    return report("pytorch_modes", claims, [result])


if __name__ == "__main__":
    sys.exit(main())
