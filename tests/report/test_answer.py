"""The first line of `taglio optimize`, its small table, and how a speed reads that no race confirmed."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from taglio.confirm.speedup import Speedup
from taglio.error.loss import Bound, Metric
from taglio.flow.outcome import Outcome
from taglio.flow.stopping import STOPPED
from taglio.flow.workspace import DEPLOY
from taglio.model.load import Model
from taglio.notes import Kind, Note
from taglio.report import answer, page, terminal
from taglio.report.material import Material
from taglio.report.parts import Table
from taglio.search.front import Point
from tests.report.conftest import Printed
from tests.report.made_up import fill, wall
from tests.report.seen import read

CONFIRMED = Speedup(1.53, 1.47, 1.60, 1.43, 8, 9e-3, 5.9e-3)


@pytest.fixture(scope="module")
def complete(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The workspace, from which a plan was delivered."""
    folder = tmp_path_factory.mktemp("answer")
    fill(folder, model)
    (folder / DEPLOY).mkdir()
    return folder


def kept_float(outcome: Outcome) -> Outcome:
    """The outcome of a search that found nothing faster than float."""
    return replace(outcome, plan=replace(outcome.float32, name="plan"))


def test_a_confirmed_speed_up_is_the_first_line(outcome: Outcome, printed: Printed) -> None:
    faster = replace(outcome, speedup=CONFIRMED, plan=replace(outcome.plan, runtime="openvino"))
    lines = printed(faster)
    assert lines[0] == ("1.53 × (1.47 to 1.60) as fast as float32, error 0.800 % (limit 1 %): out/deploy/ for OpenVINO")
    assert "not confirmed" not in " ".join(line for line in lines if line.startswith(("1.53", "plan")))
    assert lines[-1] == "wrote out/components/model.onnx and out/report.html"


def test_float_that_is_faster_than_the_source_is_an_answer(outcome: Outcome, printed: Printed) -> None:
    """The float model is delivered without what slows the source down."""
    lines = printed(replace(kept_float(outcome), speedup=CONFIRMED, simplified=1.5))
    assert lines[0] == "1.53 × (1.47 to 1.60) as fast as float32, error 0 % (limit 1 %): out/deploy/ for ONNX Runtime"
    assert [line for line in lines if line.startswith("plan ") and "1.53 × (1.47 to 1.60)" in line]


def test_predictions_are_beside_the_source(outcome: Outcome) -> None:
    """As confirmed speed-ups are, of which a part may come from simplifying the graph."""
    alone, whole = outcome.predicted_ratio(outcome.plan), replace(outcome, simplified=1.5).predicted_ratio(outcome.plan)
    assert alone is not None and whole == pytest.approx(1.5 * alone)


def test_a_speed_up_that_was_not_confirmed_says_so(outcome: Outcome, printed: Printed) -> None:
    lines = printed(outcome)
    assert lines[0] == (
        "about 2.0 × as fast as float32, not confirmed; error 0.800 % (limit 1 %): out/deploy/ for ONNX Runtime"
    )
    assert [line for line in lines if line.startswith("plan ") and "about 2.0 ×, not confirmed" in line]
    told = terminal.outcome_object(Path("out"), outcome)
    assert (told["speedup"], told["speedup_low"], told["speedup_high"]) == (None, None, None)


def test_float_that_stays_says_why_in_the_same_line(outcome: Outcome, printed: Printed) -> None:
    lines = printed(kept_float(outcome))
    assert lines[0] == "float32 stays: no form that keeps 1 % is faster: out/deploy/ for ONNX Runtime"
    assert not [line for line in lines if line.startswith("plan ")]
    both = replace(kept_float(outcome), also=(Bound(Metric("ctc", True, labelled=True, float_value=0.9), 0.02),))
    assert "that keeps 1 %, ctc loss 2.00% is" in answer.sentence(both, "out").replace("\u00a0", " ")


def test_a_point_that_the_race_puts_at_float_is_no_other_limit(outcome: Outcome) -> None:
    """Float in OpenVINO was listed for a smaller limit as about 0.83 × as fast as float."""
    slow = Point("float32", "openvino", {}, None, outcome.float32.latency.times(0.9), 1e-6, judged=False, holds=True)
    assert slow in replace(outcome, points=(slow,)).front
    assert replace(outcome, points=(slow,), speedup=CONFIRMED).front == ()
    # Nor is float itself, where the race puts it above the runs that selected the plan.
    float32 = replace(slow, runtime=outcome.float32.runtime, latency=outcome.float32.latency)
    assert replace(outcome, points=(float32,), speedup=replace(CONFIRMED, ratio=3.0)).front == ()


def test_all_int8_never_has_a_confirmed_speed(outcome: Outcome, material: Material, printed: Printed) -> None:
    faster = replace(outcome, speedup=CONFIRMED)
    (row,) = [line for line in printed(faster) if line.startswith("all int8")]
    # 1.8 × in the runs that showed 2 × for the plan, which the race puts at 1.53.
    assert "about 1.4 ×, not confirmed" in row and "2.30 % (beyond the limit)" in row
    words = read(page.render(replace(material, outcome=faster))).sections["header"].replace("\u00a0", " ")
    assert "1.53 × (1.47 to 1.60) as fast as float32, error 0.800 % (limit 1 %): deploy/ for ONNX Runtime" in words
    # Every other speed is marked, but the predicted ratios in their own row.
    measured, predicted, after = words.partition("\npredicted")
    assert predicted
    others = re.findall(r"(?<!about )\b\d+\.\d+ ?×(?! \()", measured + after.partition("p95")[2])
    assert others == []


def test_the_rest_is_printed_under_verbose_alone(outcome: Outcome, printed: Printed) -> None:
    details = ("scheme ", "p95 in the search", "threads: ", "took ", "The plan has")
    brief, verbose = (" ".join(printed(outcome, verbose=how)) for how in (False, True))
    assert [detail for detail in details if detail in brief] == []
    assert [detail for detail in details if detail not in verbose] == []


def test_latencies_are_those_of_the_race_where_there_was_one(outcome: Outcome, material: Material) -> None:
    raced = replace(outcome, speedup=replace(CONFIRMED, float_s=8e-3, plan_s=5e-3))
    for made, latencies in ((outcome, ["9.00", "5.00", "4.50"]), (raced, ["8.00", "–", "5.00"])):
        (table,) = answer.tables(made)
        assert isinstance(table, Table)
        column = [*table.head].index("latency")
        assert [str(row[column]).removesuffix("\u00a0ms") for row in table.rows] == latencies
    text = page.render(replace(material, outcome=raced))
    assert "5.00\u00a0ms" in text and "8.00\u00a0ms" in text


def test_a_search_that_was_stopped_does_not_say_that_nothing_is_faster(outcome: Outcome) -> None:
    same = replace(outcome.plan, int8_blocks=0, runtime=outcome.float32.runtime)
    stopped = replace(outcome, plan=same, speedup=None, notes=(STOPPED,))
    assert answer.sentence(stopped, "out/deploy").startswith(
        "float32 so far: the search was stopped before a faster form"
    )
    assert answer.sentence(replace(stopped, notes=()), "out/deploy").startswith("float32 stays: no form that keeps")
    # A race that shows no gain shows no loss either.
    note = Note(Kind.UNPROVEN_GAIN, "the fastest plan within the limit is 1.10 × (0.90 to 1.35) as fast as float32")
    assert "1\u00a0% was shown to be faster" in answer.sentence(replace(stopped, notes=(note,)), "out/deploy")


def with_front(outcome: Outcome) -> Outcome:
    """The same with a faster plan beyond the limit."""
    fast = replace(outcome.points[0], name="plan 2", latency=wall(3e-3), error=0.023, holds=False)
    return replace(outcome, points=(*outcome.points, fast))


def test_plans_that_other_limits_would_bring_are_listed_with_their_option(outcome: Outcome, printed: Printed) -> None:
    lines = printed(with_front(outcome))
    (row,) = (line for line in lines if "--max-error" in line)
    assert row.split() == [
        "--max-error", "2.5%", "ONNX", "Runtime", "about", "3.0", "×,", "not", "confirmed", "2.30", "%", "16"
    ]  # fmt: skip
    assert "Other limits; taglio build out LIMIT builds and confirms the plan for one:" in lines
    assert not any("Other limits" in line for line in printed(outcome))
    (point,) = terminal.outcome_object(Path("out"), with_front(outcome))["front"]
    assert (point["limit"], point["about_speedup"]) == ("--max-error 2.5%", pytest.approx(3.0))


@pytest.mark.parametrize(
    ("metric", "loss", "option"),
    [
        (Metric(), 0.0101, "--max-error 1.1%"),
        (Metric(), 0.000023, "--max-error 0.0025%"),
        (Metric("cosine"), 0.1, "--max-error 0.0056"),
        (Metric("top1", larger_is_better=True), 0.0257, "--min-score 97.3%"),
        (Metric("top1", larger_is_better=True, float_value=0.9, labelled=True), 0.0257, "--max-drop 2.7%"),
    ],
)
def test_the_option_for_a_plan_allows_a_little_more_than_its_error(metric: Metric, loss: float, option: str) -> None:
    assert answer.limit_option(metric, loss) == option
    flag, text = option.removeprefix("--").split()
    value = float(text.rstrip("%")) / (100.0 if text.endswith("%") else 1.0)
    assert loss <= metric.bound(metric.argument, value) <= 1.2 * loss + 1e-9, flag
