"""A bound on something else than relative L2: kept in its own unit, from the command line to the plan."""

import sys
from pathlib import Path

import pytest

from tests.end_to_end.command import SCHEME, Case, refused, taglio


@pytest.fixture
def profiled(few_digits: Case, tmp_path: Path) -> Path:
    out = tmp_path / "out"
    taglio("profile", *few_digits.arguments(), "--scheme", SCHEME, "--effort", 0.02, "-o", out, "--json").json()
    return out


def test_a_bound_in_decibel_is_kept(profiled: Path) -> None:
    model = taglio("error", profiled, "--metric", "sqnr", "--effort", 0.05, "--json").json()
    assert model["metric"]["name"] == "sqnr"
    ran = taglio("plan", profiled, "--max-error", 38)
    assert ran.code == 0, ran.err
    assert "at least 38.00 dB asked for" in ran.out and "%" not in ran.out.rpartition("sqnr predicted")[2]
    plan = taglio("plan", profiled, "--max-error", 38, "--json").json()
    assert plan["limits"]["metric"]["name"] == "sqnr"
    assert plan["measured_error"] <= plan["limits"]["max_error"] == pytest.approx(10 ** (-38 / 20))
    told = plan["in_unit"]
    assert told["measured"] >= told["bound"] == pytest.approx(38) and told["at_worst"] <= told["predicted"]
    damage = taglio("sensitivity", profiled, "--json").json()
    assert damage["metric"] == "sqnr" and all(row["value"] > 30 for row in damage["sensitivity"])
    assert " dB" in taglio("sensitivity", profiled).out


def test_a_users_function_bounds_the_plan(profiled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_metric.py").write_text(
        "def accuracy(outputs, labels):\n    return (outputs['logits'].argmax(1) == labels).mean()\n"
        "def broken(outputs, labels):\n    return outputs['boxes']\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("own_metric", None)
    model = taglio("error", profiled, "--metric", "own_metric:accuracy", "--effort", 0.05, "--json").json()
    assert model["metric"]["name"] == "own_metric:accuracy" and model["steps"]
    plan = taglio("plan", profiled, "--max-error", 0.5, "--json").json()
    assert plan["measured_error"] <= plan["limits"]["max_error"]
    refused(taglio("plan", profiled, "--max-error", 1.5), "the float model itself has own_metric:accuracy")
    refused(taglio("error", profiled, "--metric", "own_metric:broken"), "own_metric:broken: raised KeyError")


def test_unknown_metrics_and_other_metrics_models_are_refused(workspace: Path) -> None:
    refused(taglio("error", workspace, "--metric", "psnr"), "psnr", "relative-l2")
    refused(taglio("error", workspace, "--metric", "nowhere:f"), "nowhere:f", "cannot be imported")


def test_the_sensitivity_report_ranks_every_block(workspace: Path) -> None:
    rows = taglio("sensitivity", workspace, "--json").json()["sensitivity"]
    assert rows and all(row["damage"] is None or row["damage"] >= 0.0 for row in rows)
    for by in ("damage", "saved", "worth"):
        ran = taglio("sensitivity", workspace, "--by", by)
        assert ran.code == 0 and "leave out" in ran.out
