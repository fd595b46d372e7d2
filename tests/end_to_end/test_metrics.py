"""A bound on something else than relative L2: kept in its own unit, from the command line to the plan."""

import re
import sys
from math import inf
from pathlib import Path

import numpy as np
import pytest

from taglio import artifact
from taglio.flow.outcome import Outcome
from taglio.report import terminal
from tests.end_to_end.command import SCHEME, Case, quick, refused, snapshot, taglio


def test_a_bound_in_decibel_is_kept(workspace: Path) -> None:
    model = taglio("error", workspace, "--metric", "sqnr", "--effort", 0.02, "--json").json()
    assert model["metric"]["name"] == "sqnr"
    plan = taglio("plan", workspace, "--min-score", 30, "--effort", 0.01, "--json").json()
    assert plan["limits"]["metric"]["name"] == "sqnr"
    assert plan["measured_error"] <= plan["limits"]["max_error"] == pytest.approx(10 ** (-30 / 20))
    told = plan["in_unit"]
    measured = inf if told["measured"] is None else told["measured"]  # JSON has no infinity: float differs in nothing
    assert measured >= told["bound"] == pytest.approx(30)
    assert told["predicted"] is None or told["at_worst"] <= told["predicted"]
    damage = taglio("report", workspace, "--json").json()
    assert damage["metric"] == "sqnr" and all(row["value"] > 20 for row in damage["sensitivity"])
    assert "\u00a0dB" in taglio("report", workspace).out


def test_a_plan_is_bounded_and_told_in_the_users_metric(
    few_digits: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_metric.py").write_text(
        "def right(outputs, labels):\n    return 100 * (outputs['logits'].argmax(1) == labels).mean()\n"
        "def broken(outputs, labels):\n    return outputs['boxes']\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("own_metric", None)
    out = tmp_path / "out"
    ran = quick(few_digits, out, "--metric", "own_metric:right", "--min-score", 90)
    assert ran.code == 0, ran.err
    assert ran.out.count(f"own_metric:right was imported from {tmp_path / 'own_metric.py'}") == 1
    # Where int8 is not clearly faster, as without VNNI, "no form that keeps own_metric:right 90 is faster".
    assert re.search(r"own_metric:right (\d+(\.\d+)? \(limit )?90", ran.out.splitlines()[0])
    told = terminal.outcome_object(out, artifact.load(out / "outcome.json", "outcome", Outcome))  # what --json prints
    assert told["metric"] == {"name": "own_metric:right", "bound": 90.0}
    assert min(told["float32"]["value"], told["plan"]["value"]) >= 90.0  # int8 may be right where float is not
    page = (out / "report.html").read_text()
    assert "own_metric:right" in page and "limit 90" in page
    before = snapshot(out)
    refused(
        quick(few_digits, out, "--metric", "own_metric:right", "--min-score", 100.5),
        "the float model itself has own_metric:right",
    )
    refused(taglio("error", out, "--metric", "own_metric:broken"), "own_metric:broken: raised KeyError")
    assert snapshot(out) == before


def test_inputs_unlike_the_calibration_are_told_with_how_far(few_digits: Case, tmp_path: Path) -> None:
    dark = tmp_path / "dark.npz"
    with np.load(few_digits.data) as arrays:
        np.savez(dark, image=arrays["image"][:12] * 0.2, label=arrays["label"][:12])
    arguments = (*few_digits.arguments(), "--scheme", SCHEME, "--runtime", "onnxruntime", "--effort", 0.01)
    same = taglio("profile", *arguments, "--calibration", few_digits.data, "-o", tmp_path / "same")
    refused(same, "--calibration is the same as --data")
    out = tmp_path / "out"
    taglio("profile", *arguments, "--calibration", dark, "-o", out, "--json").json()
    notes = " ".join(taglio("error", out, "--effort", 0.02, "--json").json()["notes"])
    assert "held-out inputs are unlike the calibration inputs: image exceeds its calibrated range by 400%" in notes


def test_a_task_with_labels_bounds_the_plan_and_further_metrics_beside_it(digits_workspace: Path) -> None:
    model = taglio("error", digits_workspace, "--metric", "tokens", "--effort", 0.02, "--json").json()
    assert model["metric"]["labelled"] and model["steps"]
    asked = ("plan", digits_workspace, "--effort", 0.01)
    plan = taglio(*asked, "--max-drop", "2%", "--max-error", "relative-l2=5%", "--json").json()
    assert plan["measured_error"] <= plan["limits"]["max_error"] == pytest.approx(0.02)
    assert [(each["metric"]["name"], each["max_error"]) for each in plan["limits"]["also"]] == [("relative-l2", 0.05)]
    in_float = ("--keep-float", "*", "--json")  # nothing is left to search
    named = taglio(*asked, "--max-drop", "tokens=2%", "--max-drop", "top1=3%", *in_float).json()
    assert named["limits"]["max_error"] == pytest.approx(0.02)
    refused(taglio("plan", digits_workspace, "--max-drop", "top1=3%"), "--max-drop limits top1, but not tokens")
    refused(taglio("plan", digits_workspace, "--max-drop", "2%", "--min-score", "tokens=90%"), "limits a metric twice")
    refused(taglio("plan", digits_workspace, "--max-drop", "2%", "--max-drop", "3%"), "is given twice")
    refused(taglio("plan", digits_workspace, "--max-error", "2%"), "tokens is a score", "give --max-drop 0.02")
    refused(
        taglio("plan", digits_workspace, "--max-drop", "2%", "--max-error", "relative-l2=0.01%", "--force-int8", "*"),
        "tokens loss at most 2.00%, error at most 0.0100%: the best exceeds a limit by a factor of",
        code=3,
    )
    refused(
        taglio("plan", digits_workspace, "--max-drop", "2%", "--max-drop", "recall:k=5000=1%"),
        "needs at least 5001 samples",
    )
