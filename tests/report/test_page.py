"""The page of a made-up profile of the embedded model: whole, safe, and honest about what is missing."""

import shutil
import subprocess
from dataclasses import replace
from math import nan
from pathlib import Path
from typing import Any

import pytest

from taglio import artifact
from taglio.error.loss import Metric
from taglio.error.tally import PartLoss
from taglio.flow.outcome import Outcome
from taglio.model.graph import build
from taglio.model.load import Model
from taglio.notes import Kind, Note
from taglio.report import by_input, page, terminal
from taglio.report.material import Material, gather
from taglio.report.parts import Chart
from taglio.search.unseen import Unseen
from tests.report.made_up import FORMS, fill, made_up_plan
from tests.report.seen import Seen, read, seen

HOSTILE = '<script>alert("&")</script>'
SECTIONS = ["network", "latency", "error", "trade-off", "blocks", "components", "configuration"]


@pytest.fixture(scope="module")
def whole(complete: Path) -> Seen:
    """The page of the complete workspace."""
    return read(page.render(gather(complete)))


@pytest.mark.parametrize(
    ("metric", "error", "bound", "axis"),
    [
        (Metric("top1", True), "99.20%\u00a0agree", "limit 99.00%\u00a0agree", "answers that change, %"),
        (Metric("mine:accuracy", True, 0.97), "0.962", "limit 0.96", "mine:accuracy, worse than float by"),
        (Metric("ctc", True, 0.95, labelled=True), "0.80%", "limit 1.00%", "ctc, worse than float"),
    ],
)
def test_the_page_speaks_the_metric(
    metric: Metric, error: str, bound: str, axis: str, material: Material, outcome: Outcome
) -> None:
    plan, model = material.plan, material.error
    assert plan is not None and model is not None
    plan = replace(plan, limits=replace(plan.limits, metric=metric))
    model = replace(model, metric=metric, steps=() if metric.smooth else ((0.0, 0.0), (1.0, 1.0)))
    text = page.render(replace(material, plan=plan, error=model, outcome=replace(outcome, metric=metric)))
    sections = read(text).sections
    assert f"{metric.title} {error} ({bound})" in sections["header"]
    assert bound in sections["trade-off"] and error in sections["trade-off"]
    assert axis in text
    assert "0.800\u00a0%" not in text and "error, %" not in sections["trade-off"]


def test_the_page_of_a_whole_optimisation(copy: Path, model: Model) -> None:
    path = page.write(copy)
    assert path == copy / "report.html"
    sections = seen(path).sections
    assert list(sections)[-len(SECTIONS) :] == SECTIONS
    answer = "about 2.0 × as fast as float32, not confirmed; error 0.800\u00a0% (limit 1\u00a0%)"
    for section, words in (
        ("header", answer),
        ("header", "128 for calibration, 272 held out"),
        ("trade-off", "4 plans tried, 2 within the error limit 1\u00a0%"),
        ("error", "Marks that do not fit these axes: 1."),
        ("components", "0-camera.onnx"),
        ("configuration", model.sha256),
    ):
        assert words in sections[section]


def test_nothing_is_loaded_from_elsewhere(whole: Seen) -> None:
    assert (whole.wrong, whole.open) == ([], [])
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
    shown = seen(page.write(tmp_path))
    scripts = [attributes.get("type") for tag, attributes in shown.elements if tag == "script"]
    assert scripts.count(None) == 3  # Plot, what it stands on, and ours
    assert set(scripts) == {None, "application/json"}
    assert 'alert("' not in shown.raw["script"]
    assert HOSTILE in shown.sections["header"]
    assert any(HOSTILE in mark["text"] for chart in shown.charts for mark in chart["marks"])
    assert HOSTILE in shown.sections["blocks"]
    assert not shown.wrong


def test_a_profile_is_enough(copy: Path) -> None:
    kept = (copy / "profile.json", copy / "graph.json")
    for path in [*copy.glob("*.json"), *copy.glob("*.onnx"), *copy.glob("components/*")]:
        if path not in kept:
            path.unlink()
    sections = seen(page.write(copy)).sections
    assert "was profiled" in sections["header"]
    assert "4 whole-model runs" in sections["latency"]
    assert "/classify/Gemm" in sections["blocks"]
    assert not {"error", "trade-off", "components"} & sections.keys()


def test_a_plan_that_was_not_timed_is_called_predicted(copy: Path) -> None:
    (copy / "outcome.json").unlink()
    assert "Predicted to be about 1.7 × as fast as float, not confirmed" in seen(page.write(copy)).sections["header"]


def test_what_was_run_before_the_present_plan_is_not_shown(copy: Path, model: Model) -> None:
    before = seen(page.write(copy)).sections
    assert "Timed runs" in before["components"]
    graph = build(model)
    newer = made_up_plan(model, graph, {graph.candidates()[5].name: FORMS[1]})
    artifact.save(copy / "plan.json", "plan", model.sha256, newer)
    sections = seen(page.write(copy)).sections
    assert "Timed runs" not in sections["components"] and "trade-off" not in sections
    assert "about 2.0 × as fast as float" not in sections["header"]


@pytest.mark.parametrize("seconds", [0.0, 1e9, nan])
def test_odd_times_are_drawn(seconds: float, material: Material) -> None:
    blocks = tuple(
        block if block.precision == "float32" else replace(block, seconds=seconds) for block in material.profile.blocks
    )
    charts = read(page.render(replace(material, profile=replace(material.profile, blocks=blocks)))).charts
    assert len(charts) == 4
    for chart in charts:  # JSON has no NaN: what is not finite became null, and is counted
        assert all(mark["text"] for mark in chart["marks"])


def odd(text: str, **changes: Any) -> Any:
    return pytest.param(changes, id=text)


@pytest.mark.parametrize(
    "changes",
    [
        odd("no block", blocks=()),
        odd("not a number", predicted_s=nan, error=nan),
        odd("no limit to speak of", max_error=0.0),
        odd("no plan tried", points=()),
    ],
)
def test_every_section_renders_for_odd_outcomes(changes: dict[str, Any], material: Material, outcome: Outcome) -> None:
    graph, profile = material.graph, material.profile
    if "blocks" in changes:
        count = changes["blocks"] or 0
        graph = replace(graph, blocks=graph.blocks[:count], tensors=())
        profile = replace(profile, blocks=tuple(e for e in profile.blocks if e.block in {b.name for b in graph.blocks}))
        material = replace(material, plan=None, error=None, outcome=None, graph=graph, profile=profile)
    else:
        changed = {name: value for name, value in changes.items() if name in ("predicted_s", "error")}
        points = tuple(replace(point, **changed) for point in outcome.points)
        outer = {name: value for name, value in changes.items() if name in ("points", "max_error")}
        material = replace(material, outcome=replace(outcome, **{"points": points, **outer}))
    shown = read(page.render(material))
    assert not shown.wrong
    assert set(shown.sections) >= {"network", "latency", "blocks", "components", "configuration"}


def test_parts_and_doubts_of_the_outcome_are_shown(material: Material, outcome: Outcome) -> None:
    parts = (PartLoss("boxes", 0.004), PartLoss("scores <b>", 0.8, "is constant"))
    plan = replace(outcome.plan, parts=parts, error_upper=0.02, worst_input=0.03)
    doubted = replace(outcome, plan=plan, doubt="busy", notes=(Note(Kind.FEW_INPUTS, "few & far"),))
    header = read(page.render(replace(material, outcome=doubted))).sections["header"]
    said = ("scores <b>", "is constant", "busy", "few & far", "upper end (95\u00a0%)", "2.00\u00a0%", "3.00\u00a0%")
    assert [words for words in said if words not in header] == []
    assert "error, worst input" in header
    worst = replace(doubted, metric=replace(outcome.metric, worst_input=True))
    header = read(page.render(replace(material, outcome=worst))).sections["header"]
    assert "error of the worst input" in header and "worst input, worst input" not in header


def test_errors_by_input_are_drawn_beside_the_limit(material: Material, outcome: Outcome) -> None:
    assert by_input.by_input(material) == []
    errors = (*[0.004] * 16, 0.02, *[0.006] * 7)
    plan = replace(outcome.plan, error_upper=0.0095, worst_input=0.02)
    judged = replace(outcome, plan=plan, input_errors=errors, unseen=Unseen(8, 0.009, 0.02, 0.25, 1))
    section = read(page.render(replace(material, outcome=judged))).sections["error"]
    assert "Error by input" in section and "of the worst 2.00\u00a0%" in section
    assert "worst of 8 unseen inputs 2.00%" in section and "at most 25% of new ones" in section
    chart = by_input.by_input(replace(material, outcome=judged))[-1]
    assert isinstance(chart, Chart) and chart.limit is not None
    assert [mark.y for mark in chart.marks][:2] == [2.0, pytest.approx(0.6)]
    assert [mark.hollow for mark in chart.marks] == [False] * 8 + [True] * 16
    assert chart.limit[0] == pytest.approx(1.0)
    told = terminal.outcome_object(Path("out"), judged)
    assert told["unseen"] == {"inputs": 8, "error": 0.009, "worst": 0.02, "share_worse": 0.25, "candidates": 1}
    assert (told["plan"]["error_upper"], told["plan"]["worst_input"]) == (0.0095, 0.02)
    assert terminal.outcome_object(Path("out"), outcome)["unseen"] is None


def test_a_browser_draws_every_chart(copy: Path, tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no browser is installed")
    path = page.write(copy)
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=3000", f"--user-data-dir={tmp_path}"]
    command = [browser, *flags, "--dump-dom", path.as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120).stdout
    assert dom.count('aria-label="y-axis label"') == dom.count('<div class="chart"') == 4
