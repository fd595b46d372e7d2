"""Which outcomes are as they must be: what passes or is skipped, and refusals whose reason holds. Runs nothing.

Wrong answers, tracebacks, warnings, crashes and timeouts are never right, but rounding may differ on a kind of
processor that the suite has not run on.
"""

import re
from collections.abc import Collection, Mapping

from taglio.runtimes.processor import sums_saturate
from tests.backend_suite.check import PASSED, RIGHTLY, SKIPPED, WRONG, Outcome

# An answer that is off by so many per cent, not one of another shape or type.
ROUNDING = re.compile(r"output .* is [\d.]+% off the (original's|switchable graph)")


def rounding_decides(instructions: Collection[str]) -> bool:
    """Whether an answer beyond the tolerances is wrong on a processor with these instruction sets. The suite has run on
    x86 with AVX-512 VNNI and on x86 without any VNNI; kernels of other kinds may round differently."""
    if any(name.startswith("asimd") for name in instructions):
        return False
    return "avx512_vnni" in instructions or sums_saturate(instructions)


def rounds(outcome: Outcome) -> bool:
    """Whether rounding may explain an outcome."""
    return outcome.status == WRONG and ROUNDING.search(outcome.detail) is not None


def problems(outcomes: Mapping[str, Outcome], instructions: Collection[str]) -> list[str]:
    """What is not as it must be on a processor with these instruction sets, a line per case."""
    decides = rounding_decides(instructions)
    return [
        f"{name}: {outcome.status}: {outcome.detail}"
        for name, outcome in outcomes.items()
        if outcome.status not in (PASSED, SKIPPED, RIGHTLY) and (decides or not rounds(outcome))
    ]
