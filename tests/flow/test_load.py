"""`taglio run --load` on real workspaces: what is printed, what is left out, and what is refused."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from taglio import artifact
from taglio.flow.load import LoadReport, load
from taglio.flow.outcome import Outcome
from taglio.report.load import load_report
from taglio.report.parts import Table
from taglio.runtimes.way import Way
from taglio.ways.demand import Demand
from taglio.ways.result import Figure, Load, Rate
from tests.conftest import Optimized, Staged
from tests.end_to_end.command import refused, taglio

RATE = Rate(
    model="float32",
    runtime="onnxruntime",
    way=Way(1, 2),
    capacity_per_s=Figure(900.0, 880.0, 920.0),
    over_one=Figure(2.0, 1.9, 2.1),
    over_many=Figure(1.5, 1.4, 1.6),
    callers=2,
    openings=8,
    memory_bytes=1_000_000,
    max_latency_s=0.05,
    rate_per_s=Figure(700.0, 690.0, 710.0),
    p95_s=0.04,
    base_rate_per_s=400.0,
    loads=(Load(0.8, 720.0, 5000, 0.002, 0.005, 0.009),),
)


def shown(report: LoadReport) -> dict[str, list[str]]:
    """The cells of the table behind each name."""
    table = next(part for part in load_report(report) if isinstance(part, Table))
    return {str(row[0]): [str(cell).replace("\u00a0", " ") for cell in row[1:]] for row in table.rows}


@pytest.fixture(autouse=True)
def brief_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three seconds instead of a minute."""
    monkeypatch.setattr("taglio.flow.load._SECONDS", 3.0)
    monkeypatch.setattr("taglio.flow.load._BURST_S", 0.1)


def test_a_share_of_the_capacity(digits_staged: Staged) -> None:
    report = load(digits_staged.folder, Demand(0.5, is_share=True))
    assert report.load.share == 0.5
    assert report.load.per_s == pytest.approx(0.5 * report.capacity_per_s)
    assert 1 <= len(report.bursts_per_s) <= 5
    assert min(report.bursts_per_s) <= report.capacity_per_s <= max(report.bursts_per_s)
    assert report.promised is None
    assert (report.load.p95_s is None) == (report.load.requests < 1000)
    assert report.load.p50_s > 0.1 / report.capacity_per_s  # a single run at a time, on a machine of any load
    assert [*shown(report)][:3] == ["capacity", "requests at random", "p50"]


def test_few_requests_leave_percentiles_out_and_say_so(digits_staged: Staged) -> None:
    ran = taglio("run", digits_staged.folder, "--load", "20/s")
    assert ran.code == 0, ran.err
    assert "p50" in ran.out
    assert "Note: left out: p95 (needs 1,000 requests), p99 (needs 5,000 requests)" in ran.out
    assert "1 run at a time" in ran.out


def test_a_rate_above_the_capacity_is_run_and_said_to_be_one(digits_staged: Staged) -> None:
    printed = taglio("run", digits_staged.folder, "--load", "1000000/s", "--json").json()
    assert printed["load"]["share"] > 1.0
    assert 5 <= printed["load"]["requests"] <= 5000
    assert "times the capacity: the queue grows as long as they come" in printed["notes"][0]


def test_promised_figures_stand_beside_those_of_the_same_load(optimized: Optimized, tmp_path: Path) -> None:
    out = Path(shutil.copytree(optimized.folder, tmp_path / "out"))
    outcome = artifact.load(out / "outcome.json", "outcome", Outcome)
    artifact.save(out / "outcome.json", "outcome", outcome.model_sha256, replace(outcome, rate=RATE))
    shutil.rmtree(out / "deploy" / "samples")  # held-out inputs of the workspace stand in
    report = load(out, Demand(0.8, is_share=True))
    assert report.promised == RATE
    assert shown(report)["capacity"][1] == "900/s (880 to 920)"
    assert shown(report)["p50"][1] == "2.00 ms"
    assert shown(report)["p95"][1] == "5.00 ms"


def test_up_to_the_promised_rate_the_limit_on_latency_is_shown() -> None:
    load = Load(0.5, 450.0, 1000, 0.002, 0.004, None)
    report = LoadReport("onnxruntime", Way(1, 2), 900.0, (900.0,), load, RATE, ())
    assert shown(report)["p95"] == ["4.00 ms", "at most 90 % of 50.0 ms"]
    assert shown(report)["requests at random"][1] == "up to 700/s (690 to 710)"
    above = replace(report, load=replace(load, share=0.9, per_s=810.0))
    assert shown(above)["p95"] == ["4.00 ms", ""]


@pytest.mark.parametrize("text", ["80", "0%", "-5/s", "nan%", "inf/s", "80/m", "%", "/s", "fast"])
def test_what_is_no_load_is_one_line(tmp_path: Path, text: str) -> None:
    refused(
        taglio("run", tmp_path, "--load", text), text, "a share of the capacity such as 80%, or a rate such as 200/s"
    )


def test_a_changed_file_is_refused(digits_workspace: Path) -> None:
    with (digits_workspace / "deploy" / "model.onnx").open("ab") as file:
        file.write(b"\0")
    refused(taglio("run", digits_workspace, "--load", "80%"), "model.onnx: changed since it was delivered")
