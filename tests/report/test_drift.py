"""The machine's speed changed since the profile was taken: told on the page, the terminal and in the JSON object."""

from dataclasses import replace
from pathlib import Path

import pytest

from taglio.flow.outcome import Outcome, drift_since
from taglio.report import page, terminal
from taglio.report.material import Material
from taglio.search.front import Point
from tests.report.made_up import wall
from tests.report.seen import read


def test_a_change_of_the_machines_speed_is_said_on_the_page_the_terminal_and_in_the_json(
    material: Material, outcome: Outcome, capsys: pytest.CaptureFixture[str]
) -> None:
    float32, int8, plan = (
        replace(variant, latency=wall(2 * variant.latency.median_s))
        for variant in (outcome.float32, outcome.int8, outcome.plan)
    )
    points = tuple(replace(point, latency=point.latency and point.latency.times(2.0)) for point in outcome.points)
    slower = replace(outcome, float32=float32, int8=int8, plan=plan, points=points)
    drifted = replace(slower, drift=drift_since(material.profile, slower))
    line = (
        "the machine was 100\u00a0% slower than during profiling, judged by the float model: "
        "predicted ÷ measured is 0.500 for the plan, 1.000 corrected for that"
    )
    material = replace(material, outcome=drifted)
    assert line in read(page.render(material)).sections["header"]
    terminal.outcome(Path("out"), material, verbose=True)
    assert line.split(":", maxsplit=1)[0].split()[:6] == capsys.readouterr().out.split("Note: ")[1].split()[:6]
    printed = terminal.outcome_object(Path("out"), drifted)
    assert printed["drift"] == pytest.approx(2.0) and line in printed["notes"]
    assert (printed["plan"]["ratio"], printed["plan"]["steady_ratio"]) == pytest.approx((0.5, 1.0))
    assert not any("profiling" in note for note in terminal.outcome_object(Path("out"), outcome)["notes"])


def test_no_ratio_is_said_of_a_plan_that_the_profile_does_not_predict(outcome: Outcome) -> None:
    elsewhere = replace(outcome, drift=0.8, plan=replace(outcome.plan, runtime="elsewhere"))
    (line,) = (note.text for note in elsewhere.noted() if "profiling" in note.text)
    assert line == "the machine was 20\u00a0% faster than during profiling, judged by the float model"
    assert terminal.outcome_object(Path("out"), elsewhere)["plan"]["ratio"] is None


def test_drift_is_judged_where_the_profile_was_taken(material: Material, outcome: Outcome) -> None:
    profile, run = material.profile, material.profiled("float32")
    elsewhere = replace(outcome.float32, runtime="openvino", latency=wall(9 * outcome.float32.latency.median_s))
    assert drift_since(profile, replace(outcome, float32=elsewhere, points=())) == 1.0
    assert run is not None
    row = Point("float32", outcome.conditions.runtime, {}, None, run.wall.times(1.5), 0.0, judged=True, holds=True)
    assert drift_since(profile, replace(outcome, float32=elsewhere, points=(row,))) == pytest.approx(1.5)
