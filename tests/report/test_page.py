"""The page of a made-up profile of the embedded model: whole, safe, and honest about what is missing."""

import json
import re
import shutil
import subprocess
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from taglio import artifact
from taglio.cli import main
from taglio.embedded import digits_data
from taglio.error.loss import RELATIVE, Bound, Metric
from taglio.error.model import ErrorModel
from taglio.error.tally import RUINED, OtherLoss, PartLoss
from taglio.errors import BadArtifact
from taglio.flow.curve import Level
from taglio.flow.front import Point
from taglio.flow.outcome import Outcome, Variant, drift_since
from taglio.flow.unseen import Unseen
from taglio.model.graph import build
from taglio.model.load import Model, load
from taglio.plan.result import Interval, Plan
from taglio.profile.result import Profile
from taglio.report import by_input, page, placement, summary, terminal, units
from taglio.report.material import Absent, gather
from taglio.report.parts import Chart, NamedValues, Table, Text
from taglio.report.written import offer
from tests.models import digits_model
from tests.report.made_up import FORMS, fill, made_up_plan, wall
from tests.report.seen import Seen, seen

HOSTILE = '<script>alert("&")</script>'
SECTIONS = ["network", "time", "latency", "error", "trade-off", "blocks", "components", "configuration"]


@pytest.fixture(scope="module")
def model() -> Model:
    return load(digits_model())


@pytest.fixture(scope="module")
def complete(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("complete")
    fill(folder, model)
    return folder


@pytest.fixture(scope="module")
def whole(complete: Path) -> Seen:
    """The page of the complete workspace."""
    return seen(page.write(complete))


@pytest.fixture
def copy(complete: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(complete, tmp_path / "copy"))


@pytest.mark.parametrize(
    ("metric", "error", "bound", "answered", "axis"),
    [
        (Metric("sqnr", True), "41.94\u00a0dB", "limit 40.00\u00a0dB", "({})", "noise ÷ signal, %"),
        (Metric("top1", True), "99.20%\u00a0agree", "limit 99.00%\u00a0agree", "({})", "answers that change, %"),
        (Metric("mine:accuracy", True, 0.97), "0.962", "limit 0.96", "({})", "mine:accuracy, worse than float by"),
        (Metric("l2-per-size"), "0.008", "limit 0.01", "of 0.01 allowed", "l2-per-size, root mean square"),
        (Metric("ctc", True, 0.95, labelled=True), "0.80%", "limit 1.00%", "of 1.00% allowed", "ctc, worse than float"),
        (Metric("detection:iou=0.6", True), "99.20%\u00a0agree", "limit 99.00%\u00a0agree", "({})", "worse than float"),
    ],
)
def test_the_page_speaks_the_metric(
    complete: Path, tmp_path: Path, metric: Metric, error: str, bound: str, answered: str, axis: str
) -> None:
    folder = tmp_path / "other"
    shutil.copytree(complete, folder)
    plan = artifact.load(folder / "plan.json", "plan", Plan)
    plan = replace(plan, limits=replace(plan.limits, metric=metric))
    outcome = artifact.load(folder / "outcome.json", "outcome", Outcome)
    outcome = replace(outcome, metric=metric, plan_sha256=plan.fingerprint())
    known = artifact.load(folder / "error.json", "error", ErrorModel)
    known = replace(known, metric=metric, steps=() if metric.smooth else ((0.0, 0.0), (1.0, 1.0)))
    for kind, value in (("error", known), ("outcome", outcome), ("plan", plan)):
        artifact.save(folder / f"{kind}.json", kind, plan.model_sha256, value)
    page.write(folder)
    found, text = seen(folder / "report.html"), (folder / "report.html").read_text()
    assert f"{metric.title} {error} {answered.format(bound)}" in found.sections["header"]
    assert bound in found.sections["trade-off"] and error in found.sections["trade-off"]
    assert axis in text
    assert "0.800\u00a0%" not in text and "error, %" not in found.sections["trade-off"]


def test_further_bounds_and_values_on_labels_have_their_rows(
    complete: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    folder = tmp_path / "other"
    shutil.copytree(complete, folder)
    outcome = artifact.load(folder / "outcome.json", "outcome", Outcome)
    ctc, agreed = Metric("ctc", True, 0.95, labelled=True), Metric("tokens", True)

    def scored(variant: Variant, reached: float, loss: float) -> Variant:
        return replace(variant, accuracy=reached, others=(OtherLoss(agreed, loss, 1.0 - loss),))

    outcome = replace(
        outcome,
        metric=ctc,
        also=(Bound(agreed, 0.02),),
        float32=scored(outcome.float32, 0.95, 0.0),
        int8=scored(outcome.int8, 0.927, 0.03),
        plan=replace(scored(outcome.plan, 0.942, 0.015), int8_blocks=1),
    )
    plan = artifact.load(folder / "plan.json", "plan", Plan)
    plan = replace(plan, limits=replace(plan.limits, metric=ctc))
    for kind, value in (("outcome", outcome), ("plan", plan)):
        artifact.save(folder / f"{kind}.json", kind, outcome.model_sha256, value)
    page.write(folder)
    header = seen(folder / "report.html").sections["header"]
    assert "ctc loss 0.80% of 1.00% allowed, tokens 98.50%\u00a0agree (limit 98.00%\u00a0agree)" in header
    assert re.search(r"ctc on labels\s*95.00%\s*92.70%\s*94.20%", header)
    terminal.outcome(folder, gather(folder), verbose=True)
    out = " ".join(capsys.readouterr().out.split())
    assert "ctc on labels 95.00% 92.70% 94.20%" in out
    assert "tokens (limit 98.00% agree) 100.00% agree 97.00% agree (beyond the limit) 98.50% agree" in out
    assert "ctc loss 0.80% of 1.00% allowed, tokens 98.50% agree (limit 98.00% agree)" in out
    told = terminal.outcome_object(folder, outcome)
    assert told["also"] == [{"name": "tokens", "bound": 0.98, "max_error": 0.02}]
    assert told["plan"]["also"] == {"tokens": {"value": 0.985, "error": 0.015}} and told["plan"]["accuracy"] == 0.942


def test_the_page_of_a_whole_optimisation(complete: Path, model: Model) -> None:
    path = page.write(complete)
    found = seen(path)
    assert path == complete / "report.html"
    assert (
        "about 2.0 × as fast as float32, not confirmed; error 0.800\u00a0% of 1\u00a0% allowed"
        in found.sections["header"]
    )
    assert list(found.sections)[-len(SECTIONS) :] == SECTIONS
    assert "To make it" not in path.read_text()
    assert "128 for calibration, 272 held out" in found.sections["header"]
    assert "4 plans tried, 2 within the error limit 1\u00a0%" in found.sections["trade-off"]
    assert "1 subset without error cannot be drawn" in found.sections["error"]
    assert "0-camera.onnx" in found.sections["components"]
    assert model.sha256 in found.sections["configuration"]


def test_a_model_without_int8_forms_is_not_compared_with_all_int8(
    complete: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = artifact.load(complete / "outcome.json", "outcome", Outcome)
    terminal.outcome(
        complete, replace(gather(complete), outcome=replace(made, int8=replace(made.int8, int8_blocks=0))), verbose=True
    )
    told = capsys.readouterr().out
    assert "No block computes in int8" in told
    assert "as fast as all-int8" not in told
    assert "float32 plan runs in" in " ".join(told.split())


def test_a_float_plan_is_no_failure_of_int8_to_keep_the_limit(
    complete: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = artifact.load(complete / "outcome.json", "outcome", Outcome)
    for speed_up, gains in ((1.0, False), (1.4, True)):
        curve, int8 = (Level(0.03, speed_up, 0),), replace(made.int8, latency=made.float32.latency)
        slow = replace(made, plan=replace(made.plan, int8_blocks=0), int8=int8, curve=curve)
        terminal.outcome(complete, replace(gather(complete), outcome=slow), verbose=True)
        told = " ".join(capsys.readouterr().out.split())
        # A plan with a lower median may be listed: it did not win in enough rounds.
        assert "float32 stays: no form that keeps 1 % is faster" in told
        assert ("predicted to give about 1.4 × at" in told) is gains and "fastest" not in told


def test_answers_that_are_not_finite_are_not_called_an_error_of_100000_percent() -> None:
    assert [units.shown(RELATIVE, loss) for loss in (RUINED, inf)] == ["NaN\u00a0or\u00a0∞"] * 2
    assert units.shown(RELATIVE, 0.999 * RUINED).endswith("%")


def test_a_larger_limit_gains_what_is_more_than_the_plan_has(
    complete: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = artifact.load(complete / "outcome.json", "outcome", Outcome)
    twice = replace(made.plan, latency=made.float32.latency.times(0.5), int8_blocks=3)
    levels = Level(0.03, 1.5, 4), Level(0.1, 2.5, 5)
    for curve, gains in ((levels[:1], False), (levels, True)):
        terminal.outcome(
            complete, replace(gather(complete), outcome=replace(made, plan=twice, curve=curve)), verbose=True
        )
        assert ("is predicted to give about 2.5 × at 10.0" in " ".join(capsys.readouterr().out.split())) is gains


def test_a_larger_limit_is_not_said_to_gain_nothing_where_all_int8_is_faster(
    complete: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = artifact.load(complete / "outcome.json", "outcome", Outcome)
    plan = replace(made.plan, latency=made.float32.latency.times(0.9), int8_blocks=3)
    int8 = replace(made.int8, latency=made.float32.latency.times(0.7), error=2.0 * made.max_error)
    known = replace(made, plan=plan, int8=int8, curve=(Level(0.1, 1.0, 5),))
    terminal.outcome(complete, replace(gather(complete), outcome=known), verbose=True)
    assert "larger limit" not in capsys.readouterr().out


@pytest.mark.parametrize("speed_up", [1.0, 1.31])
def test_a_larger_limit_is_not_mentioned_where_all_int8_holds_the_limit(
    speed_up: float, complete: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = artifact.load(complete / "outcome.json", "outcome", Outcome)
    int8 = replace(made.int8, latency=made.float32.latency.times(1.2), error=0.5 * made.max_error)
    float_plan = replace(made.plan, latency=made.float32.latency, int8_blocks=0)
    known = replace(made, plan=float_plan, int8=int8, curve=(Level(0.09, speed_up, 5),))
    terminal.outcome(complete, replace(gather(complete), outcome=known), verbose=True)
    assert "larger limit" not in " ".join(capsys.readouterr().out.split())


def test_a_larger_limit_gains_over_all_int8_over_smaller_limits_and_over_another_runtime(
    complete: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = artifact.load(complete / "outcome.json", "outcome", Outcome)
    base = made.float32.latency
    moved = replace(made.plan, latency=base.times(0.5), int8_blocks=0, runtime="openvino")
    int8 = replace(made.int8, latency=base.times(0.4), error=0.06)
    curve = Level(0.03, 2.2, 1), Level(0.05, 2.2, 1), Level(0.1, 2.4, 3)
    told = []
    for levels in (curve, (Level(0.03, 1.5, 1),)):
        known = replace(made, plan=moved, int8=int8, curve=levels)
        terminal.outcome(complete, replace(gather(complete), outcome=known), verbose=True)
        told.append(" ".join(capsys.readouterr().out.split()))
    assert (
        "a larger limit is predicted to give about 2.2 × at 3.00 %, not confirmed; " in told[0]
        and "larger limit" not in told[1]
    )


def test_all_int8_that_loses_information_is_not_said_to_be_beyond_the_limit(
    complete: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = artifact.load(complete / "outcome.json", "outcome", Outcome)
    parts = (PartLoss("output", 0.5 * made.max_error, "is 5.5 everywhere"),)
    int8 = replace(made.int8, error=0.5 * made.max_error, parts=parts)
    terminal.outcome(complete, replace(gather(complete), outcome=replace(made, int8=int8)), verbose=True)
    told = " ".join(capsys.readouterr().out.split())
    assert "(an output loses its information)" in told and "beyond the limit" not in told


def test_tags_close_in_order(whole: Seen) -> None:
    assert (whole.wrong, whole.open) == ([], [])


def test_nothing_is_loaded_from_elsewhere(whole: Seen) -> None:
    for tag, attributes in whole.elements:
        assert tag not in ("link", "img", "iframe", "object", "embed", "image", "use", "base")
        assert not {"src", "srcset", "xlink:href", "action", "background"} & set(attributes)
        assert (attributes.get("href") or "#").startswith("#")
        assert not any("url(" in (value or "").replace("url(#", "") for value in attributes.values())
    assert not any(word in whole.raw["style"] for word in ("@import", "http://", "https://", "url(."))
    policy = [attributes["content"] or "" for tag, attributes in whole.elements if "http-equiv" in attributes]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"]


def test_every_block_is_drawn_and_listed(whole: Seen, model: Model) -> None:
    blocks = build(model).blocks
    (drawn,) = [chart for chart in whole.charts if chart["label"] == "time and form of every block"]
    assert [mark["text"].partition("\n")[0] for mark in drawn["marks"]] == [block.name for block in blocks]
    assert all(block.name in whole.sections["blocks"] for block in blocks)


def test_names_are_shown_as_text(model: Model, tmp_path: Path) -> None:
    proto = type(model.proto)()
    proto.CopyFrom(model.proto)
    proto.graph.node[0].name = HOSTILE
    fill(tmp_path, replace(model, proto=proto))
    outcome = artifact.load(tmp_path / "outcome.json", "outcome", Outcome)
    artifact.save(tmp_path / "outcome.json", "outcome", model.sha256, replace(outcome, model=HOSTILE))
    found = seen(page.write(tmp_path))
    scripts = [attributes.get("type") for tag, attributes in found.elements if tag == "script"]
    assert scripts.count(None) == 3  # Plot, what it stands on, and ours
    assert set(scripts) == {None, "application/json"}
    assert 'alert("' not in found.raw["script"]
    assert HOSTILE in found.sections["header"]
    assert any(HOSTILE in mark["text"] for chart in found.charts for mark in chart["marks"])
    assert HOSTILE in found.sections["blocks"]
    assert not found.wrong


@pytest.mark.parametrize(
    ("missing", "section", "command"),
    [
        ("plan.json", "time", "taglio plan {} --max-error E"),
        ("error.json", "error", "taglio error {}"),
        ("outcome.json", "trade-off", "taglio optimize MODEL --data DATA --max-error E -o {}"),
        ("components/manifest.json", "components", "taglio build {}"),
        ("run.json", "components", "taglio run {}"),
    ],
)
def test_what_is_missing_says_which_stage_makes_it(copy: Path, missing: str, section: str, command: str) -> None:
    for name in missing.split():
        (copy / name).unlink()
    found = seen(page.write(copy))
    assert command.format(copy) in found.sections[section]
    assert not found.wrong
    assert list(found.sections)[-len(SECTIONS) :] == SECTIONS


def test_a_profile_is_enough(copy: Path) -> None:
    made = (copy / "profile.json", copy / "graph.json")
    for path in [*copy.glob("*.json"), *copy.glob("*.onnx"), *copy.glob("components/*")]:
        if path not in made:
            path.unlink()
    found = seen(page.write(copy))
    assert "All int8 is about 1.8 × as fast as float, not confirmed" in found.sections["header"]
    assert "4 whole-model runs" in found.sections["latency"]
    assert "/classify/Gemm" in found.sections["blocks"]


def test_a_plan_that_was_not_timed_is_called_predicted(copy: Path) -> None:
    (copy / "outcome.json").unlink()
    assert "Predicted to be about 1.7 × as fast as float, not confirmed" in seen(page.write(copy)).sections["header"]


def test_a_change_of_the_machines_speed_is_said_on_the_page_the_terminal_and_in_the_json(
    copy: Path, model: Model, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = artifact.load(copy / "outcome.json", "outcome", Outcome)
    slower = [
        replace(each, latency=wall(2 * each.latency.median_s)) for each in (outcome.float32, outcome.int8, outcome.plan)
    ]
    points = tuple(replace(point, latency=point.latency and point.latency.times(2.0)) for point in outcome.points)
    drifted = replace(outcome, float32=slower[0], int8=slower[1], plan=slower[2], points=points)
    drifted = replace(drifted, drift=drift_since(gather(copy).profile, drifted))
    artifact.save(copy / "outcome.json", "outcome", model.sha256, drifted)
    line = (
        "the machine was 100\u00a0% slower than during profiling, judged by the float model: "
        "predicted ÷ measured is 0.500 for the plan, 1.000 corrected for that"
    )
    assert line in seen(page.write(copy)).sections["header"]
    terminal.outcome(copy, gather(copy), verbose=True)
    assert line.split(":", maxsplit=1)[0].split()[:6] == capsys.readouterr().out.split("Note: ")[1].split()[:6]
    made = terminal.outcome_object(copy, drifted)
    assert made["drift"] == pytest.approx(2.0) and line in made["notes"]
    assert (made["plan"]["ratio"], made["plan"]["steady_ratio"]) == pytest.approx((0.5, 1.0))
    assert not any("profiling" in each for each in terminal.outcome_object(copy, outcome)["notes"])


def test_the_runtimes_of_the_profile_and_of_the_plan_are_told_apart(copy: Path) -> None:
    material = gather(copy)
    assert material.outcome is not None
    (facts,) = summary.conditions(material)
    assert isinstance(facts, NamedValues) and "runtime" in dict(facts.items) and "plan runs in" not in dict(facts.items)
    moved = replace(material.outcome, plan=replace(material.outcome.plan, runtime="elsewhere"))
    (facts,) = summary.conditions(replace(material, outcome=moved))
    assert isinstance(facts, NamedValues) and "runtime" not in dict(facts.items)
    told = dict(facts.items)
    assert told["profiled in"].startswith("onnxruntime ") and told["plan runs in"] == "elsewhere"


def test_a_plan_chosen_by_timing_says_what_the_tables_predicted(copy: Path) -> None:
    material = gather(copy)
    assert material.outcome is not None
    predicted = "the tables predicted it 31 % slower than the solver's own plan"
    for gap, end in ((0.0, "is clearly faster"), (0.31, predicted)):
        chosen = replace(material, outcome=replace(material.outcome, status="measured", gap=gap))
        (text,) = (part.text for part in summary.lede(chosen) if isinstance(part, Text) and "timed" in part.text)
        assert "of the plans that were timed, none within the limit is clearly faster" in text and end in text


def test_an_interval_is_shown_only_if_it_differs_from_its_value(copy: Path) -> None:
    plan = gather(copy).plan
    assert plan is not None
    sharp = replace(plan, predicted_latency_s=Interval(15.4e-3, 15.4e-3, 15.4e-3, 0.9))
    for chosen, latency in ((sharp, "15.4 ms"), (plan, "4.50 ms (4.00 ms … 5.00 ms)")):
        facts = next(part for part in placement.decisions(chosen) if isinstance(part, NamedValues))
        assert dict(facts.items)["latency"].replace("\u00a0", " ") == latency


def test_no_ratio_is_said_of_a_plan_that_the_profile_does_not_predict(copy: Path) -> None:
    outcome = artifact.load(copy / "outcome.json", "outcome", Outcome)
    elsewhere = replace(outcome, drift=0.8, plan=replace(outcome.plan, runtime="elsewhere"))
    (line,) = (each for each in elsewhere.noted() if "profiling" in each)
    assert line == "the machine was 20\u00a0% faster than during profiling, judged by the float model"
    assert terminal.outcome_object(copy, elsewhere)["plan"]["ratio"] is None


def test_drift_is_judged_where_the_profile_was_taken(copy: Path) -> None:
    outcome, profile = artifact.load(copy / "outcome.json", "outcome", Outcome), gather(copy).profile
    elsewhere = replace(outcome.float32, runtime="openvino", latency=wall(9 * outcome.float32.latency.median_s))
    assert drift_since(profile, replace(outcome, float32=elsewhere, points=())) == 1.0
    known = gather(copy).profiled("float32")
    assert known is not None
    slower = known.wall.times(1.5)
    row = Point("float32", outcome.conditions.runtime, {}, None, slower, 0.0, judged=True, holds=True)
    assert drift_since(profile, replace(outcome, float32=elsewhere, points=(row,))) == pytest.approx(1.5)


def test_artifacts_of_another_model_and_changed_components_are_refused(copy: Path) -> None:
    (copy / "components" / "0-camera.onnx").write_bytes(b"changed")
    with pytest.raises(BadArtifact, match="was changed"):
        page.write(copy)
    error = artifact.load(copy / "error.json", "error", ErrorModel)
    artifact.save(copy / "error.json", "error", "f" * 64, error)
    with pytest.raises(BadArtifact, match="belongs to another model"):
        page.write(copy)


def test_what_was_run_before_the_present_plan_is_not_shown(copy: Path, model: Model) -> None:
    assert "belongs to another plan" not in page.write(copy).read_text()
    graph = build(model)
    newer = made_up_plan(model, graph, {graph.candidates()[5].name: FORMS[1]})
    artifact.save(copy / "plan.json", "plan", model.sha256, newer)
    text = page.write(copy).read_text()
    assert "run.json belongs to another plan than plan.json" in text
    assert "about 2.0 × as fast as float" not in text


def test_no_profile_is_refused(copy: Path) -> None:
    (copy / "report.html").unlink(missing_ok=True)
    for name in ("graph.json", "profile.json"):
        (copy / name).unlink()
        with pytest.raises(BadArtifact, match=f"{name}: no such file: run `taglio profile` first"):
            page.write(copy)
    assert not (copy / "report.html").exists()


def slower(profile: Profile, factor: float) -> Profile:
    """The profile of a machine on which every form but float takes `factor` times as long as it did."""
    blocks = [
        each if each.precision == "float32" else replace(each, seconds=each.seconds * factor) for each in profile.blocks
    ]
    return replace(profile, blocks=tuple(blocks))


@pytest.mark.parametrize("factor", [0.0, 8.0, 1e9, float("inf"), float("nan")])
def test_odd_times_are_drawn(copy: Path, factor: float) -> None:
    profile = slower(artifact.load(copy / "profile.json", "profile", Profile), factor)
    text = page.render(replace(gather(copy), profile=profile))
    found = Seen()
    found.feed(text)
    assert len(found.charts) == 5
    for chart in found.charts:  # JSON has no NaN: what is not finite became null, and is counted
        assert all(mark["text"] for mark in chart["marks"])


def test_a_page_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    assert offer(lambda: page.write(tmp_path)).startswith("the page was not written: BadArtifact: ")


def test_optimize_keeps_its_result_where_the_page_fails(
    copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no page today")

    table = artifact.load(copy / "outcome.json", "outcome", Outcome)
    monkeypatch.setattr("taglio.flow.stages.optimize", lambda *_, **__: (SimpleNamespace(table=table), None, None))
    monkeypatch.setattr("taglio.report.page.gather", fail)
    command = ["optimize", str(digits_model()), "--data", str(digits_data()), "--max-error", "0.01", "-o", str(copy)]
    assert main([*command, "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["plan"]["max_error"] == 0.01
    assert err == "taglio: the page was not written: RuntimeError: no page today\n"


def test_report_prints_the_tables(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copy / "error.json").unlink()
    assert main(["report", str(copy)]) == 0
    out = capsys.readouterr().out
    assert [line for line in out.splitlines() if line in ("Profile", "Error", "Plan", "Run", "Result")] == [
        "Profile", "Plan", "Run", "Result",
    ]  # fmt: skip
    assert "/classify/Gemm" in out
    assert "missing: error.json is not in this folder: optimize omits it if no plan could be faster than float." in out
    assert f"To make it: taglio error {copy}" in out
    assert "pareto" not in out  # nobody asked for a cluster
    assert f"wrote {copy / 'report.html'}" in out


def odd(text: str, **changes: Any) -> Any:
    return pytest.param(changes, id=text)


@pytest.mark.parametrize(
    "changes",
    [
        odd("no block", blocks=()),
        odd("one block", blocks=1),
        odd("no latency", predicted_s=0.0),
        odd("huge", predicted_s=1e300, error=1e300),
        odd("infinite", predicted_s=inf, error=inf),
        odd("not a number", predicted_s=nan, error=nan),
        odd("no limit to speak of", max_error=0.0),
        odd("no plan tried", points=()),
    ],
)
def test_every_section_renders_for_odd_outcomes(copy: Path, changes: dict[str, Any]) -> None:
    known = gather(copy)
    assert known.outcome is not None
    outcome, graph, profile = known.outcome, known.graph, known.profile
    if "blocks" in changes:
        count = changes["blocks"] or 0
        graph = replace(graph, blocks=graph.blocks[:count], tensors=())
        profile = replace(profile, blocks=tuple(e for e in profile.blocks if e.block in {b.name for b in graph.blocks}))
        known = replace(known, plan=None, error=None, outcome=None, graph=graph, profile=profile)
        known.absent.update({name: Absent("It is not there.", "taglio") for name in ("plan", "error", "outcome")})
    else:
        changed = {name: value for name, value in changes.items() if name in ("predicted_s", "error")}
        points = tuple(replace(point, **changed) for point in outcome.points)
        outer = {name: value for name, value in changes.items() if name in ("points", "max_error")}
        known = replace(known, outcome=replace(outcome, **{"points": points, **outer}))
    text = page.render(known)
    found = Seen()
    found.feed(text)
    assert not found.wrong
    assert list(found.sections)[-len(SECTIONS) :] == SECTIONS


def test_parts_and_doubts_of_the_outcome_are_shown(copy: Path) -> None:
    known = gather(copy)
    assert known.outcome is not None
    parts = (PartLoss("boxes", 0.004), PartLoss("scores <b>", 0.8, "is constant"))
    plan = replace(known.outcome.plan, parts=parts, error_upper=0.02, worst_input=0.03)
    text = page.render(replace(known, outcome=replace(known.outcome, plan=plan, doubt="busy", notes=("few & far",))))
    found = Seen()
    found.feed(text)
    for words in (
        "scores <b>",
        "is constant",
        "busy",
        "few & far",
        "upper end (95\u00a0%)",
        "2.00\u00a0%",
        "3.00\u00a0%",
    ):
        assert words in found.sections["header"]


def test_errors_by_input_are_drawn_beside_the_limit(copy: Path) -> None:
    known = gather(copy)
    assert known.outcome is not None
    assert by_input.by_input(known) == []
    errors = (*[0.004] * 16, 0.02, *[0.006] * 7)
    plan = replace(known.outcome.plan, error_upper=0.0095, worst_input=0.02)
    outcome = replace(known.outcome, plan=plan, input_errors=errors, unseen=Unseen(8, 0.009, 0.02, 0.25, 1))
    text = page.render(replace(known, outcome=outcome))
    found = Seen()
    found.feed(text)
    for words in (
        "Error by input",
        "upper end 0.950\u00a0%",
        "worst of 8 unseen inputs 2.00%",
        "at most 25% of new ones",
    ):
        assert words in found.sections["error"]
    chart = by_input.by_input(replace(known, outcome=outcome))[-1]
    assert isinstance(chart, Chart) and chart.limit is not None
    assert [mark.y for mark in chart.marks][:2] == [2.0, pytest.approx(0.6)]
    assert [mark.hollow for mark in chart.marks] == [False] * 8 + [True] * 16
    assert chart.limit[0] == pytest.approx(1.0)
    told = terminal.outcome_object(copy, outcome)
    assert told["unseen"] == {"inputs": 8, "error": 0.009, "worst": 0.02, "share_worse": 0.25, "candidates": 1}
    assert (told["plan"]["error_upper"], told["plan"]["worst_input"]) == (0.0095, 0.02)
    assert terminal.outcome_object(copy, known.outcome)["unseen"] is None


def test_the_terminal_says_that_the_machine_was_busy(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known = gather(copy)
    assert known.outcome is not None
    busy = "the machine was busy: times may be off by up to 240%"
    terminal.outcome(copy, replace(known, outcome=replace(known.outcome, doubt=busy)), verbose=True)
    assert busy in capsys.readouterr().out


def test_the_upper_end_and_the_worst_input_are_in_the_unit_of_the_metric(copy: Path) -> None:
    known = gather(copy)
    assert known.outcome is not None
    plan = replace(known.outcome.plan, error_upper=0.05, worst_input=0.06)
    outcome = replace(known.outcome, metric=Metric("ctc", larger_is_better=True), plan=plan)
    text = page.render(replace(known, outcome=outcome))
    assert "95.00%\u00a0agree" in text and "94.00%\u00a0agree" in text


def test_a_browser_draws_every_chart(complete: Path, tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no browser is installed")
    path = page.write(complete)
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=3000", f"--user-data-dir={tmp_path}"]
    command = [browser, *flags, "--dump-dom", path.as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120).stdout
    assert dom.count('aria-label="y-axis label"') == dom.count('<div class="chart"') == 5


def test_a_prediction_from_few_inputs_says_so(copy: Path) -> None:
    outcome = artifact.load(copy / "outcome.json", "outcome", Outcome)
    for few, told in ((1, f"error predicted from 1 of {outcome.held_out_samples} inputs"), (0, "error predicted")):
        artifact.save(copy / "outcome.json", "outcome", outcome.model_sha256, replace(outcome, search_samples=few))
        table = summary.side_by_side(gather(copy))[0]
        assert isinstance(table, Table)
        assert told in [row[0] for row in table.rows]
