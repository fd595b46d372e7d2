"""What the terminal prints of a made-up optimisation, and its JSON object, where the page has no part in it."""

import json
import re
from dataclasses import replace
from math import inf
from pathlib import Path
from types import SimpleNamespace

import pytest

from taglio import artifact
from taglio.cli import main
from taglio.embedded import digits_data
from taglio.error.loss import RELATIVE, Bound, Metric
from taglio.error.tally import RUINED, OtherLoss, PartLoss
from taglio.flow.outcome import Figures, Outcome
from taglio.report import page, terminal, units
from taglio.report.material import Material
from tests.models import digits_model
from tests.report.conftest import Printed
from tests.report.seen import read, seen


def test_further_bounds_and_values_on_labels_have_their_rows(
    material: Material, outcome: Outcome, printed: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    ctc, agreed = Metric("ctc", True, 0.95, labelled=True), Metric("tokens", True)

    def scored(variant: Figures, reached: float, loss: float) -> Figures:
        return replace(variant, accuracy=reached, others=(OtherLoss(agreed, loss, 1.0 - loss),))

    limited = replace(
        outcome,
        metric=ctc,
        also=(Bound(agreed, 0.02),),
        float32=scored(outcome.float32, 0.95, 0.0),
        int8=scored(outcome.int8, 0.927, 0.03),
        plan=replace(scored(outcome.plan, 0.942, 0.015), int8_blocks=1),
    )
    assert material.plan is not None
    material = replace(material, plan=replace(material.plan, limits=replace(material.plan.limits, metric=ctc)))
    header = read(page.render(replace(material, outcome=limited))).sections["header"]
    assert "ctc loss 0.80% (limit 1.00%), tokens 98.50%\u00a0agree (limit 98.00%\u00a0agree)" in header
    assert re.search(r"ctc on labels\s*95.00%\s*92.70%\s*94.20%", header)
    out = " ".join(" ".join(printed(limited, verbose=True)).split())
    assert "ctc on labels 95.00% 92.70% 94.20%" in out
    assert "tokens (limit 98.00% agree) 100.00% agree 97.00% agree (beyond the limit) 98.50% agree" in out
    assert "ctc loss 0.80% (limit 1.00%), tokens 98.50% agree (limit 98.00% agree)" in out
    told = terminal.outcome_object(Path("out"), limited)
    assert told["also"] == [{"name": "tokens", "bound": 0.98, "max_error": 0.02}]
    assert told["plan"]["also"] == {"tokens": {"value": 0.985, "error": 0.015}} and told["plan"]["accuracy"] == 0.942


def test_a_model_without_int8_forms_is_not_compared_with_all_int8(outcome: Outcome, printed: Printed) -> None:
    lines = printed(replace(outcome, int8=replace(outcome.int8, int8_blocks=0)), verbose=True)
    told = " ".join(" ".join(lines).split())
    assert "No block computes in int8" in told
    assert "as fast as all int8" not in told
    assert "float32 plan runs in" in told


def test_answers_that_are_not_finite_are_not_called_an_error_of_100000_percent() -> None:
    assert [units.shown(RELATIVE, loss) for loss in (RUINED, inf)] == ["NaN\u00a0or\u00a0∞"] * 2
    assert units.shown(RELATIVE, 0.999 * RUINED).endswith("%")


def test_all_int8_that_loses_information_is_not_said_to_be_beyond_the_limit(outcome: Outcome, printed: Printed) -> None:
    parts = (PartLoss("output", 0.5 * outcome.max_error, "is 5.5 everywhere"),)
    int8 = replace(outcome.int8, error=0.5 * outcome.max_error, parts=parts)
    told = " ".join(printed(replace(outcome, int8=int8), verbose=True))
    assert "(an output loses its information)" in told and "beyond the limit" not in told


def test_optimize_keeps_its_result_where_the_page_fails(
    copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no page today")

    table = artifact.load(copy / "outcome.json", "outcome", Outcome)
    monkeypatch.setattr("taglio.flow.stages.optimize", lambda *_, **__: (SimpleNamespace(table=table), None))
    monkeypatch.setattr("taglio.report.page.gather", fail)
    command = ["optimize", str(digits_model()), "--data", str(digits_data()), "--max-error", "0.01", "-o", str(copy)]
    assert main([*command, "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["plan"]["max_error"] == 0.01
    assert err == "taglio: the page was not written: RuntimeError: no page today\n"


def test_report_prints_what_the_page_has(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copy / "error.json").unlink()
    assert main(["report", str(copy)]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    titles = [attributes["id"] for tag, attributes in seen(copy / "report.html").elements if tag == "section"]
    assert titles[0] == "network" and titles[-1] == "configuration"
    for title in ("The network", "Block by block", "Components", "Configuration"):
        assert title in lines
    assert "/classify/Gemm" in out and "processor" in out
    assert "Error, predicted and measured" not in lines
    assert f"wrote {copy / 'report.html'}" in out
