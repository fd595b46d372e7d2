"""The points of an outcome: every finalist, the other plans that were tried, and the places that are out."""

from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import Any, cast

from taglio.flow.answers import Answers
from taglio.flow.ledger import NOT_RACED, Measurement, Variant
from taglio.flow.outcome_of import points
from taglio.flow.plan import Decision
from taglio.flow.search import Tried
from taglio.runtimes.cuda import TF32 as GPU
from taglio.runtimes.openvino import NAME
from tests.flow.test_finalists import ORT, tried, wall


def decided(
    finalists: Mapping[str, Tried], seconds: Mapping[str, float], *others: Tried, **answers: Answers
) -> Decision:
    """A decision of which only its finalists, their times and answers, and `others` that were tried matter."""
    times = {name: wall(value) for name, value in seconds.items()}
    plans = [plan for name, plan in finalists.items() if name != "float32, openvino"]
    nothing = cast("Any", None)
    return Decision(nothing, "float32", dict(finalists), times, answers, (*plans, *others), nothing, None, 8)


def test_every_place_says_what_became_of_it() -> None:
    finalists = {
        "float32": tried("float32"),
        "int8": tried("int8", ORT, 0.04, holds=False),
        "float32, openvino": tried("float32", NAME),
        "plan 1, openvino": replace(tried("", NAME), refused="OpenVINO cannot load it"),
    }
    places = [
        Measurement(Variant(ORT, "float32"), 1.0, 1.0, 0.0, 1.0),
        Measurement(Variant(NAME, "float32"), 2.0, 2.0, 0.0, 2.0),
        Measurement(Variant(GPU, "float32"), refused="no GPU"),
    ]
    seconds = {"float32": 2.0, "int8": 1.0, "float32, openvino": 3.0}
    rows = points(decided(finalists, seconds, int8=Answers(0.05, 0.05, None)), places, NOT_RACED)
    assert [(row.name, row.runtime) for row in rows] == [
        ("int8", ORT), ("float32", ORT), ("float32", NAME), ("plan 1", NAME), ("float32", GPU)
    ]  # fmt: skip
    assert (rows[0].error, rows[0].judged, rows[0].holds) == (0.05, True, False)
    assert (rows[0].predicted_s, rows[2].predicted_s) == (1.0, None)
    assert (rows[3].latency, rows[3].reason) == (None, "OpenVINO cannot load it")
    assert rows[4].reason == "no GPU"


def test_plans_that_were_not_timed_are_points_with_their_forms() -> None:
    last = tried("", error=0.02, form="conv")
    last = replace(last, plan=replace(last.plan, placements=(replace(last.plan.placements[0], precision="int8"),)))
    finalists = {"float32": tried("float32"), "int8": tried("int8", ORT, 0.04, holds=False)}
    *_, row = points(decided(finalists, {"float32": 2.0, "int8": 1.0}, last), (), NOT_RACED)
    assert (row.name, row.latency, row.error, row.forms) == ("tried 3", None, 0.02, {"conv": "int8"})


def test_an_error_that_is_not_finite_is_not_shown_as_one() -> None:
    finalists = {"int8": tried("int8", ORT, inf, holds=False)}
    (row,) = points(decided(finalists, {"int8": 1.0}), (), NOT_RACED)
    assert (row.error, row.reason) == (None, "an output would lose its information")
