"""The remarks on an outcome: its notes by importance, each with what to do. Measures nothing."""

from collections.abc import Sequence

from taglio.flow.outcome import Outcome
from taglio.notes import Kind
from taglio.report.answer import float_stays

# The most remarks on the terminal.
MOST = 5
_RANK = {kind: rank for rank, kind in enumerate(Kind)}


def ranked(outcome: Outcome) -> tuple[str, ...]:
    """What the user should know and do, the most important first."""
    notes = sorted((note for note in outcome.unsure() if note.kind is not Kind.FACT), key=lambda note: _RANK[note.kind])
    remarks = [f"{note}; {note.kind.advice}" if note.kind.advice else note.text for note in notes]
    return (*remarks, *_no_int8(outcome))


def facts(outcome: Outcome) -> tuple[str, ...]:
    """The notes that only describe, in their own order."""
    return tuple(note.text for note in outcome.unsure() if note.kind is Kind.FACT)


def shortened(remarks: Sequence[str], page: str) -> tuple[str, ...]:
    """The first remarks, and where the others are: `page`."""
    more = len(remarks) - MOST
    return tuple(remarks) if more <= 0 else (*remarks[:MOST], f"{more} more in {page}, or with --verbose")


def _no_int8(outcome: Outcome) -> list[str]:
    if outcome.int8.int8_blocks or not float_stays(outcome):
        return []
    return ["no block computes in int8; the report says why"]
