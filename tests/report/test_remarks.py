"""Which notes are remarks, in which order, and that every kind is one that a stage writes."""

from dataclasses import replace
from pathlib import Path

import pytest

import taglio
from taglio.error.tasks.task import parse_task
from taglio.flow.outcome import Outcome
from taglio.report import remarks
from taglio.search.curve import Level
from taglio.search.front import Point
from tests.report.conftest import Printed

SOURCE = Path(taglio.__file__).parent


def test_every_phrase_is_one_that_some_stage_writes() -> None:
    """A note that is worded anew, and not here, would lose its place and its advice."""
    sources = (path for path in SOURCE.rglob("*.py") if path.name != "remarks.py")
    # A string may go on in the next line, and have values in it: the longest part between them is looked for.
    texts = [" ".join(path.read_text(encoding="utf-8").replace('f"', "").replace('"', "").split()) for path in sources]
    phrases = [*(kind.phrase for kind in remarks.KINDS), *remarks.FACTS]
    assert [phrase for phrase in phrases if not any(phrase.strip() in text for text in texts)] == []


def test_the_most_important_remarks_come_first_and_five_are_printed(outcome: Outcome, printed: Printed) -> None:
    notes = (
        "values fed: image 0 to 1",
        "something that no kind knows",
        "2 of 9 held-out inputs are also calibration inputs: errors on others may be larger",
        "few inputs: 2 for the ranges and 3 for the error; give more data",
        "schemes were not compared; a higher effort compares them",
        "the float model's output has NaN, which must stay NaN: y for 1 of 2 inputs",
        "the labels were not used: top-1 accuracy needs a class",
    )
    busy_outcome = replace(outcome, notes=notes, doubt="the machine was busy: run again when it is quiet")
    lines = remarks.ranked(busy_outcome)
    starts = ["the float model's output", "few inputs", "2 of 9 held-out", "the machine was busy", "the labels were"]
    assert [line for line, start in zip(lines, starts, strict=False) if not line.startswith(start)] == []
    assert lines[0].endswith("; check the data and their preprocessing") and lines[-1] == notes[1]
    assert remarks.facts(busy_outcome) == notes[:1]
    listed = [line for line in printed(busy_outcome) if line.startswith("- ")]
    assert len(listed) == remarks.MOST + 1 and listed[-1] == "- 2 more in out/report.html, or with --verbose"


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


def test_the_blank_of_a_reader_is_a_remark() -> None:
    task = parse_task("ctc:blank=0")
    assert task.parameters["blank"] == 0
    assert not remarks.is_fact("class 9 is 95% of the characters read with ctc:blank=0: if it is the blank, give 9")


def test_a_runtime_that_is_not_installed_is_offered_once(outcome: Outcome) -> None:
    reason = "needs OpenVINO: pip install 'taglio[openvino]'"

    def out(name: str, runtime: str, why: str) -> Point:
        return Point(name, runtime, {}, None, None, None, judged=False, holds=False, reason=why)

    places = [out(name, "openvino", reason) for name in ("float32", "plan 1")]
    absent = replace(outcome, points=(*places, out("int8", "openvino", "slower")))
    assert remarks.ranked(absent) == (f"openvino: {reason}",)
