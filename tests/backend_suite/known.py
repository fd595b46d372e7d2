"""Refusals that are right, in `expected.toml`: cases by the reason, which is one of REASONS. Runs nothing.

A case that is not listed must pass; one that passes must leave the list. Wrong answers, tracebacks, warnings, crashes
and timeouts are never right. `python -m tests.backend_suite --update` writes the list again.
"""

import json
import re
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path

from taglio.runtimes.processor import sums_saturate
from tests.backend_suite.check import PASSED, REFUSED, SKIPPED, WRONG, Outcome

FILE = Path(__file__).parent / "expected.toml"
# Why a refusal is right, and what it says.
REASONS = {
    "no inputs: nothing to measure or quantise": r"the model has no inputs",
    "NaN in the data, or a value beyond the input's type": r"NaN or infinite values as",
    "the float model answers no finite number": r"of the float model is NaN or infinite on the data",
}
# An answer that is off by so many per cent, not one of another shape or type.
ROUNDING = re.compile(r"output .* is [\d.]+% off the (original's|switchable graph)")
Expected = Mapping[str, Collection[str]]


def rounding_decides(instructions: Collection[str]) -> bool:
    """Whether an answer beyond the tolerances is wrong on a processor with these instruction sets. The suite has run on
    x86 with AVX-512 VNNI and on x86 without any VNNI; kernels of other kinds may round differently."""
    if any(name.startswith("asimd") for name in instructions):
        return False
    return "avx512_vnni" in instructions or sums_saturate(instructions)


def rounds(outcome: Outcome) -> bool:
    """Whether rounding may explain an outcome."""
    return outcome.status == WRONG and ROUNDING.search(outcome.detail) is not None


def load(path: Path) -> dict[str, list[str]]:
    """The cases of a file by their reason."""
    return tomllib.loads(path.read_text(encoding="utf-8"))


def judge(outcomes: Mapping[str, Outcome], expected: Expected) -> list[str]:
    """What is not as the list says, a line per case."""
    reasons = {case: reason for reason, cases in expected.items() for case in cases}
    lines = []
    for name, outcome in outcomes.items():
        reason = reasons.get(name, "")
        if outcome.status in (PASSED, SKIPPED):
            if reason:
                lines.append(f"{name}: {outcome.status} now: remove it from the list ({reason})")
        elif not reason:
            lines.append(f"{name}: {outcome.status}: {outcome.detail}")
        elif outcome.status != REFUSED or not re.search(REASONS[reason], outcome.detail):
            lines.append(f"{name}: {outcome.status}: {outcome.detail} (known as refused: {reason})")
    return lines


def updated(expected: Expected, outcomes: Mapping[str, Outcome]) -> dict[str, list[str]]:
    """The list with the refusals among `outcomes` that are right, instead of what it says of these cases."""
    refused = {name: outcome.detail for name, outcome in outcomes.items() if outcome.status == REFUSED}
    result = {}
    for reason, pattern in REASONS.items():
        kept = {case for case in expected.get(reason, ()) if case not in outcomes}
        result[reason] = sorted(kept | {name for name, detail in refused.items() if re.search(pattern, detail)})
    return result


def save(path: Path, expected: Expected) -> None:
    """Write a file again. JSON's strings are TOML's."""
    lines = ["# Refusals that are right. This list may only shrink; see known.py."]
    for reason, cases in expected.items():
        lines += ["", f"{json.dumps(reason)} = [", *(f"    {json.dumps(case)}," for case in cases), "]"]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
