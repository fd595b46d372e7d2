"""What is expected of cases that do not pass: refusals that have a reason, and today's faults. Runs nothing.

`expected.toml` holds the refusals that stay: each entry has a regular expression that the refusal must match, and why
it is right. `faults.toml` holds what is to be mended, by kind (a letter is that of the list of faults that the suite
began with). A case that passes must leave either list; a case in neither must pass. `python -m tests.backend_suite
--update` writes both again: it sorts what does not pass by EXPECTED and KINDS below.

Answers that are off by rounding depend on the kind of processor, so each kind has its own list of them,
`rounding_<kind>.toml`. A kind that nobody has run the suite on has none: there they decide nothing.
"""

import json
import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from taglio.runtimes.processor import sums_saturate
from tests.backend_suite.check import EXCEPTION, PASSED, REFUSED, SKIPPED, WARNING, WRONG, Outcome

HERE = Path(__file__).parent
EXPECTED_FILE, FAULTS_FILE = HERE / "expected.toml", HERE / "faults.toml"
# An answer that is off by so many per cent, not one of another shape or type.
ROUNDING = re.compile(r"output .* is [\d.]+% off the (original's|switchable graph)")

# Refusals that are right: what the line says, and why.
EXPECTED = (
    (r"the model has no inputs", "no inputs: nothing to measure or quantise"),
    (r"NaN or infinite values as", "NaN in the data, or a value beyond the input's type"),
    (r"of the float model is NaN or infinite on the data", "the float model answers no finite number"),
)
# Faults by kind: status, what the line says, kind. The first that fits is taken; the list of faults began with these.
KINDS = (
    (REFUSED, r"the (switchable graph|\S+ model): ONNX Runtime \S+ cannot load", "O: what is built does not load"),
    (WRONG, r"off the switchable.*holds.*\b(If|Loop|Scan)\b", "B: a subgraph reads the tensor before quantisation"),
    (WRONG, r"off the switchable.*holds.*DequantizeLinear", "C: a weight behind DequantizeLinear"),
    (WRONG, r"off the switchable.*holds.*Cast", "A: a float block runs in int8, or the other way round"),
    (WARNING, r".", "a warning of NumPy's on the user's screen"),
)


@dataclass(frozen=True, slots=True)
class Entry:
    """Cases that are known not to pass for one reason."""

    status: str
    detail: str  # regular expression
    kind: str
    cases: tuple[str, ...]


def kind_of(instructions: Collection[str]) -> str:
    """The kind of a processor, by what decides how its kernels add."""
    if any(name.startswith("asimd") for name in instructions):
        return "arm"
    if sums_saturate(instructions):
        return "avx2"
    return "avx512_vnni" if "avx512_vnni" in instructions else "avx_vnni"


def rounding_file(kind: str) -> Path:
    """The list of a kind of processor, which may not be there."""
    return HERE / f"rounding_{kind}.toml"


def rounds(outcome: Outcome) -> bool:
    """Whether rounding may explain an outcome."""
    return outcome.status == WRONG and ROUNDING.search(outcome.detail) is not None


def decides(outcomes: Mapping[str, Outcome], listed: bool) -> dict[str, Outcome]:
    """The outcomes that decide: all, but for rounding on a kind of processor that has not `listed` it."""
    return {name: outcome for name, outcome in outcomes.items() if listed or not rounds(outcome)}


def load(path: Path) -> tuple[Entry, ...]:
    """The entries of a file."""
    tables = tomllib.loads(path.read_text(encoding="utf-8")).get("case", []) if path.exists() else []
    return tuple(Entry(each["status"], each["detail"], each["kind"], tuple(each["cases"])) for each in tables)


def judge(outcomes: Mapping[str, Outcome], entries: tuple[Entry, ...]) -> list[str]:
    """What is not as the lists say, a line each."""
    known = {case: entry for entry in entries for case in entry.cases}
    lines = []
    for name, outcome in outcomes.items():
        entry = known.get(name)
        if outcome.status in (PASSED, SKIPPED):
            if entry is not None:
                lines.append(f"{name}: {outcome.status} now: remove it from the list ({entry.kind})")
        elif entry is None:
            lines.append(f"{name}: {outcome.status}: {outcome.detail}")
        elif outcome.status != entry.status or not re.search(entry.detail, outcome.detail):
            lines.append(f"{name}: {outcome.status}: {outcome.detail} (known as {entry.status}: {entry.kind})")
    return lines


def sort(outcomes: Mapping[str, Outcome]) -> tuple[tuple[Entry, ...], tuple[Entry, ...], tuple[Entry, ...]]:
    """Entries for the three files: expected refusals, faults, rounding."""
    expected: dict[tuple[str, str, str], list[str]] = {}
    faults: dict[tuple[str, str, str], list[str]] = {}
    rounding: dict[tuple[str, str, str], list[str]] = {}
    for name, outcome in outcomes.items():
        if outcome.status in (PASSED, SKIPPED):
            continue
        why = next(((e, w) for e, w in EXPECTED if outcome.status == REFUSED and re.search(e, outcome.detail)), None)
        if why is not None:
            expected.setdefault((REFUSED, *why), []).append(name)
            continue
        if rounds(outcome):
            reason = (outcome.status, ROUNDING.pattern, "kernels of this kind round differently")
            rounding.setdefault(reason, []).append(name)
            continue
        kind = next(((d, k) for s, d, k in KINDS if s == outcome.status and re.search(d, outcome.detail)), None)
        faults.setdefault((outcome.status, *(kind or (_pattern(outcome), f"?: {outcome.detail}"[:160]))), []).append(
            name
        )
    return _entries(expected), _entries(faults), _entries(rounding)


def without(entries: tuple[Entry, ...], names: Collection[str]) -> tuple[Entry, ...]:
    """`entries` less the cases `names`."""
    left = (replace(entry, cases=tuple(case for case in entry.cases if case not in names)) for entry in entries)
    return tuple(entry for entry in left if entry.cases)


def merged(one: tuple[Entry, ...], other: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """Entries of both, cases of the same reason together."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for entry in (*one, *other):
        found.setdefault((entry.status, entry.detail, entry.kind), []).extend(entry.cases)
    return _entries(found)


def _entries(found: Mapping[tuple[str, str, str], list[str]]) -> tuple[Entry, ...]:
    whole = [Entry(status, detail, kind, tuple(sorted(cases))) for (status, detail, kind), cases in found.items()]
    return tuple(sorted(whole, key=lambda entry: (entry.kind, entry.status, entry.detail)))


def _pattern(outcome: Outcome) -> str:
    """A regular expression of a detail: words alone, for names and numbers differ from case to case."""
    if outcome.status in (EXCEPTION, WARNING):
        return re.escape(outcome.detail.partition(": ")[0])
    if outcome.status == WRONG:
        return "^" + re.escape(outcome.detail.partition(":")[0])
    words = [word for word in outcome.detail.split() if re.fullmatch(r"[A-Za-z]+[:,]?", word)]
    return ".*".join(words[:8])


def save(path: Path, entries: tuple[Entry, ...], head: str) -> None:
    """Write a file again. JSON's strings are TOML's."""
    lines = [f"# {line}" for line in head.splitlines()]
    for entry in entries:
        lines += ["", "[[case]]", f"kind = {json.dumps(entry.kind)}", f"status = {json.dumps(entry.status)}"]
        lines += [f"detail = {json.dumps(entry.detail)}", "cases = ["]
        lines += [f"    {json.dumps(case)}," for case in entry.cases]
        lines += ["]"]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
