"""Which notes are remarks, and in which order."""

from dataclasses import replace
from pathlib import Path

import pytest

from taglio import artifact
from taglio.flow.outcome import Outcome
from taglio.flow.workspace import OUTCOME
from taglio.notes import Kind, Note
from taglio.report import remarks, terminal
from taglio.search.curve import Level
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
        "about shared-inputs; give others, or calibrate on --calibration",
        "the machine was busy: run again when it is quiet",
        "about unused-labels; name the task with --metric",
        "about not-compared",
        "about data",
    )
    assert remarks.facts(busy_outcome) == ("about fact",)
    listed = [line for line in printed(busy_outcome) if line.startswith("- ")]
    assert len(listed) == remarks.MOST + 1 and listed[-1] == "- 2 more in out/report.html, or with --verbose"


def test_json_has_the_kind_of_each_note(outcome: Outcome, tmp_path: Path) -> None:
    noted = replace(outcome, notes=(Note(Kind.THREADS, "runs with 1 thread"),), drift=1.0)
    printed = terminal.outcome_object(tmp_path, noted)
    assert (printed["notes"], printed["note_kinds"]) == (["runs with 1 thread"], ["threads"])
    artifact.save(tmp_path / "outcome.json", OUTCOME, "0", noted)
    assert artifact.load(tmp_path / "outcome.json", OUTCOME, Outcome).notes == noted.notes


FLOAT, FASTER, MOVED = (1.0, 0, ""), (0.5, 3, ""), (0.5, 0, "openvino")


@pytest.mark.parametrize(
    ("plan", "int8", "levels", "offer"),
    [
        # A plan in float may have a lower median: it did not win in enough rounds.
        ((0.5, 0, ""), (1.0, 0.023), [(0.03, 1.0)], ""),
        ((0.5, 0, ""), (1.0, 0.023), [(0.03, 1.4)], "1.4 × at 3.00"),
        (FASTER, (0.56, 0.023), [(0.03, 1.5), (0.1, 2.5)], "2.5 × at 10.0"),
        # All int8 holds the limit.
        (FLOAT, (1.2, 0.005), [(0.09, 1.31)], ""),
        # The smallest of the limits that gain clearly, more than float in another runtime does.
        (MOVED, (0.4, 0.06), [(0.03, 2.2), (0.05, 2.2), (0.1, 2.4)], "2.2 × at 3.00"),
    ],
)
def test_a_larger_limit_is_offered_where_it_gains(
    plan: tuple[float, int, str],
    int8: tuple[float, float],
    levels: list[tuple[float, float]],
    offer: str,
    outcome: Outcome,
) -> None:
    """`plan`: its latency as a share of float's, int8 blocks, runtime; `int8`: share and error; `levels`: limit and
    speed-up."""
    base, (share, blocks, runtime), (int8_share, error) = outcome.float32.latency, plan, int8
    chosen = replace(outcome.plan, latency=base.times(share), int8_blocks=blocks)
    tried = replace(
        outcome,
        plan=replace(chosen, runtime=runtime or chosen.runtime),
        int8=replace(outcome.int8, latency=base.times(int8_share), error=error),
        curve=tuple(Level(limit, speed_up, 5) for limit, speed_up in levels),
    )
    lines = [line for line in remarks.ranked(tried) if "larger limit" in line]
    assert len(lines) == bool(offer)
    assert all(f"a larger limit is predicted to give about {offer}\u00a0%, not confirmed" in line for line in lines)


def test_a_larger_limit_is_offered_with_the_option_that_asks_for_it(outcome: Outcome) -> None:
    gaining = replace(outcome, curve=(Level(0.03, 2.5, 5),))
    assert remarks.ranked(gaining) == (
        "a larger limit is predicted to give about 2.5 × at 3.00\u00a0%, not confirmed; if that is allowed, "
        "take it with taglio build OUT --max-error 3%",
    )
    assert remarks.ranked(replace(outcome, curve=(Level(0.03, 1.0, 5),))) == ()
