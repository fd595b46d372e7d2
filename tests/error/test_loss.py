"""Metrics by hand, in their own unit and as losses; a user's function that misbehaves is refused in one line."""

import sys
from math import inf, sqrt
from pathlib import Path

import numpy as np
import pytest

from taglio.error.judge import TaskJudge, UserJudge
from taglio.error.loss import COSINE, RELATIVE_L2, SQNR, Argument, Bound, Metric, parse_metric
from taglio.error.measure import anchored
from taglio.error.tally import Measure, Tally
from taglio.error.tasks.task import TOP1, parse_task
from taglio.errors import BadData, BadOption

Y = [np.array([[3.0, 0.0, 4.0]], np.float32), np.array([[0.0, 2.0, 0.0]], np.float32)]
Z = [np.array([[3.0, 0.0, 4.5]], np.float32), np.array([[0.0, 1.0, 1.5]], np.float32)]


def tally(name: str, outputs: tuple[str, ...] = ("scores",)) -> Tally:
    result = Tally(outputs, parse_metric(name))
    for y, z in zip(Y, Z, strict=True):
        result.add([y], [z])
    return result


def test_smooth_metrics_by_hand() -> None:
    difference, reference = 0.25 + 1.0 + 2.25, 25.0 + 4.0
    l2 = sqrt(difference / reference)
    assert tally(RELATIVE_L2).losses()[0] == pytest.approx(l2)
    assert parse_metric(SQNR).value(tally(SQNR).losses()[0]) == pytest.approx(10 * np.log10(reference / difference))
    product, changed = 9.0 + 18.0 + 2.0, 9.0 + 20.25 + 1.0 + 2.25
    distance = 1 - product / sqrt(reference * changed)
    assert parse_metric(COSINE).value(tally(COSINE).losses()[0]) == pytest.approx(distance, rel=1e-5)


def test_top1_counts_inputs_whose_best_class_stays() -> None:
    assert tally(TOP1).losses()[0] == pytest.approx(0.5)
    assert parse_metric(TOP1).text(0.5) == "50.00% agree"
    with pytest.raises(BadData, match=r"output boxes has shape \[1, 4, 2\], not \[inputs, classes\]: use relative-l2"):
        Tally(["boxes"], parse_metric(TOP1)).add([np.zeros((1, 4, 2))], [np.zeros((1, 4, 2))])


@pytest.mark.parametrize("name", [RELATIVE_L2, SQNR, COSINE, TOP1])
def test_no_change_is_no_loss_and_units_go_both_ways(name: str) -> None:
    metric = parse_metric(name)
    same = Tally(["scores"], metric)
    same.add([Y[0]], [Y[0]])
    assert same.losses()[0] == pytest.approx(0.0, abs=1e-6)
    for loss in (0.01, 0.2):
        assert metric.loss(metric.value(loss)) == pytest.approx(loss)
        assert metric.bound(metric.argument, metric.value(loss)) == pytest.approx(loss)
    assert Metric(SQNR).value(0.0) == inf


@pytest.mark.parametrize(
    ("name", "argument", "value", "fix"),
    [
        (RELATIVE_L2, "max_error", 5.0, "for 5 % give 0.05"),
        (RELATIVE_L2, "min_score", 0.99, "smaller is better): give `max_error`"),
        (RELATIVE_L2, "max_drop", 0.01, "give `max_error` 0.01"),
        (COSINE, "max_error", 0.999, "a similarity of at least 0.999 give 0.001"),
        (SQNR, "max_error", 30.0, "give `min_score` 30 for the least decibels"),
        (TOP1, "max_error", 0.99, "top1 is a score, not an error: give `min_score` 0.99"),
        (TOP1, "min_score", 0.01, "give `max_drop` 0.01 if it is how much worse"),
        (TOP1, "max_drop", 0.99, "`min_score` 0.99 for the worst value"),
    ],
)
def test_a_limit_that_does_not_suit_its_metric_is_refused_with_the_right_spelling(
    name: str, argument: Argument, value: float, fix: str
) -> None:
    with pytest.raises(BadOption, match=f"^`{argument}` ") as refusal:
        parse_metric(name).bound(argument, value)
    assert fix in str(refusal.value)


@pytest.fixture
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = "made_up_metrics"
    (tmp_path / f"{name}.py").write_text(
        "import numpy as np\n"
        "def accuracy(outputs, labels):\n    return (outputs['scores'].argmax(1) == labels).mean()\n"
        "def loss(outputs, labels):\n    return float(np.abs(outputs['scores']).sum())\n"
        "loss.smaller_is_better = True\n"
        "def raises(outputs, labels):\n    raise ValueError('no labels\\nat all')\n"
        "def nonsense(outputs, labels):\n    return 'good'\n"
        "def nan(outputs, labels):\n    return float('nan')\n"
        "number = 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop(name, None)
    return name


def test_a_users_function_sees_all_outputs_and_labels(functions: str) -> None:
    labels = np.array([2, 1])
    accuracy = Metric(f"{functions}:accuracy", larger_is_better=True, float_value=1.0)
    half = Tally(["scores"], Measure(accuracy, UserJudge(accuracy.name, ["scores"], labels)))
    for y, z in zip(Y, Z, strict=True):
        half.add([y], [z])
    assert half.losses()[0] == pytest.approx(0.5)
    assert accuracy.bound("min_score", 0.75) == pytest.approx(0.25) == accuracy.bound("max_drop", 0.25)
    with pytest.raises(BadOption, match=r"the float model itself has .* = 1: give a bound that is below that"):
        accuracy.bound("min_score", 1.1)
    with pytest.raises(BadOption, match=r"is a score, not an error: give `min_score` 0.75 for the worst value"):
        accuracy.bound("max_error", 0.75)
    with pytest.raises(BadOption, match="`max_drop` is -1"):
        accuracy.bound("max_drop", -1.0)
    worse = Metric(f"{functions}:loss", larger_is_better=False, float_value=2.0)
    assert worse.bound("max_error", 2.5) == pytest.approx(0.5) == worse.bound("max_drop", 0.5)
    assert parse_metric(f"{functions}:accuracy").larger_is_better
    assert not parse_metric(f"{functions}:loss").larger_is_better


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("raises", "raised ValueError: no labels at all"),
        ("nonsense", "returned str 'good', not a number"),
        ("nan", "returned nan: it must be finite"),
    ],
)
def test_a_function_that_misbehaves_is_refused(functions: str, name: str, message: str) -> None:
    bad = Tally(["scores"], Metric(f"{functions}:{name}", True, 1.0))
    bad.add([Y[0]], [Z[0]])
    with pytest.raises(BadData, match=f"`metric` {functions}:{name}: {message}"):
        bad.losses()


def test_with_labels_a_task_is_held_against_what_the_float_model_reaches() -> None:
    """Float is right on three of four; the changed model on one of these and on the fourth."""
    float_scores = [np.eye(3, dtype=np.float32)[[best]] for best in (0, 1, 2, 0)]
    changed = [np.eye(3, dtype=np.float32)[[best]] for best in (0, 0, 0, 1)]
    judge = TaskJudge(parse_task("tokens"), ["y"], labels=np.array([0, 1, 2, 1]))
    measure = anchored(Measure(parse_metric("tokens"), judge), lambda: [[best] for best in float_scores])
    metric = measure.metric
    assert metric.labelled and metric.float_value == pytest.approx(0.75)
    tally = Tally(["y"], measure)
    for y, z in zip(float_scores, changed, strict=True):
        tally.add([y], [z])
    assert tally.value() == pytest.approx(0.25) and tally.score() == pytest.approx(0.5)
    assert (metric.title, metric.text(0.25), metric.limit(0.25)) == ("tokens loss", "25.00%", "at most 25.00%")
    assert metric.value(0.25) == pytest.approx(0.5) and metric.bound("min_score", 0.7) == pytest.approx(0.05)
    with pytest.raises(BadOption, match=r"the float model itself has tokens = 0.75: give a bound that is below"):
        metric.bound("min_score", 0.8)
    assert tally.end(range(4), 0.95) is None and tally.by_input() is None


def test_perplexity_is_worse_by_a_share_of_the_float_models() -> None:
    metric = Metric("perplexity", False, 20.0, labelled=True)
    assert metric.loss(21.0) == pytest.approx(0.05) == metric.bound("max_error", 21.0)
    assert metric.bound("max_drop", 0.01) == 0.01 and metric.value(0.01) == pytest.approx(20.2)
    assert metric.loss(19.0) == 0.0 and metric.score_text(20.2) == "20.2"


def test_no_number_is_the_worst_loss() -> None:
    assert parse_metric("r2").loss(float("nan")) == inf


def test_a_further_bound_that_is_broken_breaks_the_first_as_far() -> None:
    def tally(also: float) -> Tally:
        others = ((Bound(parse_metric("top1"), also), TaskJudge(parse_task("top1"), ["scores"])),)
        result = Tally(["scores"], Measure(parse_metric(RELATIVE_L2), None, others))
        for y, z in zip(Y, Z, strict=True):
            result.add([y], [z])
        return result

    l2 = tally(0.5).value()
    assert [further.loss for further in tally(0.5).others()] == [pytest.approx(0.5)]
    assert tally(0.5).judged(1.0) == pytest.approx(l2)  # both hold
    assert tally(0.25).judged(1.0) == pytest.approx(2.0)  # top1 breaks its bound twofold
    assert tally(0.0).judged(1.0) == inf
