"""The points of an outcome: every plan that was tried, and the places that are out."""

from dataclasses import replace
from math import inf

from taglio.flow.outcome_of import points
from taglio.plan.result import Placement
from taglio.runtimes.openvino import NAME
from taglio.search.ledger import Answers, Measurement, Places
from tests.search.test_finalists import ORT, ledger, timed, tried


def test_every_place_says_what_became_of_it() -> None:
    entries = ledger(
        timed("float32", ORT, 2.0),
        replace(timed("int8", ORT, 1.0, 0.04, holds=False), answers=Answers(0.05, 0.05, None)),
        timed("float32", NAME, 3.0),
    )
    places = (
        Measurement(ORT, "float32", 1.0, 1.0, 0.0, 1.0),
        Measurement(NAME, "float32", 2.0, 2.0, 0.0, 2.0),
        Measurement("another", "float32", refused="not installed"),
    )
    rows = points(entries, Places(places))
    assert [(row.name, row.runtime) for row in rows] == [
        ("int8", ORT), ("float32", ORT), ("float32", NAME), ("float32", "another")
    ]  # fmt: skip
    assert (rows[0].error, rows[0].judged, rows[0].holds) == (0.05, True, False)
    assert (rows[0].predicted_s, rows[2].predicted_s) == (1.0, None)
    assert rows[3].reason == "not installed"


def test_plans_that_were_not_timed_are_points_with_their_forms() -> None:
    last, refused = (
        replace(entry, plan=replace(entry.plan, placements=(Placement(block, "local", "int8"),)))
        for entry, block in ((tried("tried 3", error=0.02), "conv"), (tried("plan 1"), "other"))
    )
    refused = replace(refused, refused="OpenVINO cannot load it")
    entries = ledger(timed("float32", ORT, 2.0), timed("int8", ORT, 1.0, 0.04, holds=False), last, refused)
    *_, row, out = points(entries, Places(()))
    assert (row.name, row.latency, row.error, row.forms) == ("tried 3", None, 0.02, {"conv": "int8"})
    assert (out.latency, out.reason) == (None, "OpenVINO cannot load it")


def test_an_error_that_is_not_finite_is_not_shown_as_one() -> None:
    (row,) = points(ledger(timed("int8", ORT, 1.0, inf, holds=False)), Places(()))
    assert (row.error, row.reason) == (None, "an output would lose its information")
