"""Which notes are remarks, and in which order."""

from dataclasses import replace
from pathlib import Path

from taglio import artifact
from taglio.flow.outcome import Outcome
from taglio.flow.workspace import OUTCOME
from taglio.notes import Kind, Note
from taglio.report import remarks, terminal
from tests.report.conftest import Printed


def test_the_most_important_remarks_come_first_and_five_are_printed(outcome: Outcome, printed: Printed) -> None:
    kinds = (
        Kind.FACT,
        Kind.DATA,
        Kind.SHARED_INPUTS,
        Kind.FEW_INPUTS,
        Kind.NOT_COMPARED,
        Kind.NAN_OUTPUT,
        Kind.UNUSED_LABELS,
    )
    notes = tuple(Note(kind, f"about {kind.value}") for kind in kinds)
    busy_outcome = replace(outcome, notes=notes, doubt="the machine was busy: run again when it is quiet")
    lines = remarks.ranked(busy_outcome)
    assert lines == (
        "about nan-output; check the data and their preprocessing",
        "about few-inputs",
        "about shared-inputs; give other inputs, or separate calibration data (--calibration)",
        "the machine was busy: run again when it is quiet",
        "about unused-labels; name the task with --metric",
        "about not-compared",
        "about data",
    )
    assert remarks.facts(busy_outcome) == ("about fact",)
    listed = [line for line in printed(busy_outcome) if line.startswith("- ")]
    assert len(listed) == remarks.MOST + 1 and listed[-1] == "- 2 more in out/report.html, or with --verbose"


def test_json_has_the_kind_of_each_note(outcome: Outcome, tmp_path: Path) -> None:
    noted = replace(outcome, notes=(Note(Kind.THREADS, "runs with 1 thread"),))
    printed = terminal.outcome_object(tmp_path, noted)
    assert (printed["notes"], printed["note_kinds"]) == (["runs with 1 thread"], ["threads"])
    artifact.save(tmp_path / "outcome.json", OUTCOME, "0", noted)
    assert artifact.load(tmp_path / "outcome.json", OUTCOME, Outcome).notes == noted.notes
