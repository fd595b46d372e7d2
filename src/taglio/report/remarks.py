"""The remarks on an outcome: its notes by importance, each with what to do. Measures nothing."""

from collections.abc import Sequence

from taglio.error.loss import RELATIVE_L2
from taglio.flow.outcome import Outcome
from taglio.notes import Kind
from taglio.report.answer import float_stays, larger_limit

# The most remarks on the terminal.
MOST = 5
_RANK = {kind: rank for rank, kind in enumerate(Kind)}


def ranked(outcome: Outcome) -> tuple[str, ...]:
    """What the user should know and do, the most important first."""
    notes = sorted((note for note in outcome.unsure() if note.kind is not Kind.FACT), key=lambda note: _RANK[note.kind])
    remarks = [f"{note}; {note.kind.advice}" if note.kind.advice else note.text for note in notes]
    return (*remarks, *_larger_limit(outcome), *_no_int8(outcome))


def facts(outcome: Outcome) -> tuple[str, ...]:
    """The notes that only describe, in their own order."""
    return tuple(note.text for note in outcome.unsure() if note.kind is Kind.FACT)


def shortened(remarks: Sequence[str], page: str) -> tuple[str, ...]:
    """The first remarks, and where the others are: `page`."""
    more = len(remarks) - MOST
    return tuple(remarks) if more <= 0 else (*remarks[:MOST], f"{more} more in {page}, or with --verbose")


def _larger_limit(outcome: Outcome) -> list[str]:
    line, max_error = larger_limit(outcome)
    if not line:
        return []
    if outcome.metric.name != RELATIVE_L2:
        return [f"{line}; raise the limit if that is allowed"]
    limit = f"{max_error * 100:.3g}%"
    return [f"{line}; if that is allowed, take it with taglio build OUT --max-error {limit}"]


def _no_int8(outcome: Outcome) -> list[str]:
    if outcome.int8.int8_blocks or not float_stays(outcome):
        return []
    return ["no block computes in int8; taglio inspect MODEL --blocks all says why"]
