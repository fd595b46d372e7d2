"""From an ONNX file and data to a faster model that keeps its answers: in one command, and a stage at a time."""

from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from taglio import artifact
from taglio.data.spec import InputSpec
from taglio.flow.outcome import Outcome
from taglio.model import load as model
from tests.conftest import Optimized, Staged
from tests.end_to_end.command import Case, Ran, quick, refused, taglio
from tests.end_to_end.independent import DIGITS, SAME, difference, held_out
from tests.models import saved, softmax_sandwich

VARIANT = {"latency_s": float, "error": float, "size_bytes": int}
PLAN = VARIANT | {
    "predicted_latency_s": float,
    "predicted_error": float,
    "max_error": float,
    "status": str,
    "gap": float,
    "int8_blocks": int,
    "bfloat16_blocks": int,
    "blocks": int,
}
ARTIFACTS = ("model", "deploy", "plan", "profile", "error_model", "report")


def typed(found: dict[str, Any], wanted: dict[str, type]) -> None:
    for key, kind in wanted.items():
        assert type(found[key]) is kind, (key, found[key])


def precision_of(plan: dict[str, Any]) -> dict[str, str]:
    return {each["block"]: each["precision"] for each in plan["placements"]}


# --- the whole flow ---------------------------------------------------------------------------------------------------


def test_optimize_prints_what_scripts_rely_on(optimized: Optimized) -> None:
    printed = optimized.printed
    for name, wanted in (("float32", VARIANT), ("int8", VARIANT), ("plan", PLAN)):
        typed(printed[name], wanted)
    assert set(printed["artifacts"]) == set(ARTIFACTS)
    assert all(type(path) is str for path in printed["artifacts"].values())


def test_what_optimize_prints_is_plausible(optimized: Optimized) -> None:
    full, int8, plan = (optimized.printed[name] for name in ("float32", "int8", "plan"))
    assert plan["max_error"] == optimized.max_error
    assert 0.0 <= plan["error"] <= plan["max_error"]
    assert plan["status"] in ("optimal", "time limit", "measured")
    assert 0.0 <= plan["gap"] < inf  # of a plan by a rule, how far the tables put it behind: they are rough here
    assert 0 <= plan["int8_blocks"] <= plan["blocks"]
    assert full["error"] == 0.0
    assert 0.001 < int8["error"] < 0.5
    assert int8["size_bytes"] < 0.5 * full["size_bytes"]
    # Weightless blocks in float save their scales: a plan may be a little smaller than all int8.
    assert 0.95 * int8["size_bytes"] <= plan["size_bytes"] <= 1.1 * full["size_bytes"]
    for each in (full, int8, plan):
        assert 1e-5 < each["latency_s"] < 1.0
    assert 1e-5 < plan["predicted_latency_s"] < 1.0  # how good a prediction is the benchmarks say, on a quiet machine


def test_the_model_alone_shows_the_reported_error(optimized: Optimized, few_digits: Case) -> None:
    said = artifact.load(optimized.folder / "outcome.json", "outcome", Outcome).held_out_samples
    samples = held_out(few_digits, DIGITS).held_out.samples[:said]
    made = Path(optimized.printed["artifacts"]["model"])
    found = difference(few_digits.model, made, samples)
    assert found == pytest.approx(optimized.printed["plan"]["error"], abs=SAME)
    assert found <= optimized.max_error
    assert made.stat().st_size == optimized.printed["plan"]["size_bytes"]


# What the Concat at the end of the tiny model joins.
JOINED = (np.s_[:, :, :4], np.s_[:, :, 4:])


@pytest.fixture(scope="module")
def many(tiny: Case, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """The tiny model with more samples than a search looks at, large and small ones."""
    path = tmp_path_factory.mktemp("many") / "samples.npy"
    rng = np.random.default_rng(0)
    np.save(path, (rng.standard_normal((200, 3, 8, 8)) * rng.uniform(0.2, 2.0, (200, 1, 1, 1))).astype(np.float32))
    return Case(tiny.model, path)


def best_reachable(ran: Ran) -> float:
    return float(refused(ran, "Infeasible", code=3).split("the best has ")[1].split("%")[0]) / 100


def test_errors_are_of_every_held_out_sample_and_a_bound_on_the_brink_holds_or_is_refused(
    many: Case, tmp_path: Path
) -> None:
    out, pins = tmp_path / "out", ("--force-int8", "conv*", "--json")
    samples = held_out(many, (InputSpec("x", (1, 3, 8, 8), "float32"),)).held_out.samples

    def planned(bound: float) -> Ran:
        return taglio("plan", out, "--max-error", bound, "--effort", 0.01, *pins)

    optimized = quick(many, out, "--max-error", 0.5, *pins).json()
    error = difference(many.model, out / "components" / "model.onnx", samples, JOINED)
    assert optimized["plan"]["error"] == pytest.approx(error, abs=SAME)
    plan = planned(0.5).json()
    taglio("build", out, "--json").json()
    error = difference(many.model, out / "components" / "model.onnx", samples, JOINED)
    assert plan["measured_error"] == pytest.approx(error, abs=SAME)
    brink = best_reachable(planned(1e-9))
    for share in (0.97, 1.0005):
        ran = planned(share * brink)
        if ran.code:
            assert best_reachable(ran) > share * brink - 1e-6
        else:
            assert ran.json()["measured_error"] <= share * brink


# --- a stage at a time ------------------------------------------------------------------------------------------------


def test_each_stage_reads_the_one_before(digits_staged: Staged) -> None:
    printed = digits_staged.printed
    blocks = {each["block"] for each in printed["profile"]["blocks"]}
    plan = printed["plan"]
    assert blocks == set(precision_of(plan))
    assert plan["measured_error"] <= digits_staged.max_error
    assert plan["predicted_latency_s"]["low"] <= plan["predicted_latency_s"]["value"]
    assert printed["error"]["scheme"] == plan["scheme"] == printed["profile"]["scheme"]
    assert printed["build"]["proof"]["distance"] <= printed["build"]["proof"]["tolerance"]
    assert [piece["file"] for piece in printed["build"]["manifest"]["pieces"]] == ["model.onnx"]
    assert printed["run"]["plan"]["runs"] == printed["run"]["float32"]["runs"] == 20
    assert printed["run"]["predicted_s"] == plan["predicted_latency_s"]["value"]
    measured_s = printed["run"]["plan"]["steady_s"]
    assert printed["run"]["ratio"] == pytest.approx(printed["run"]["predicted_s"] / measured_s)
    assert Path(printed["report"]["report"]).stat().st_size > 0


# --- inspect and quickstart -------------------------------------------------------------------------------------------


def test_inspect_in_words(digits: Case, tmp_path: Path) -> None:
    ran = taglio("inspect", digits.model)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("digits: 38 blocks, 38 can be int8, ")
    command = f"taglio optimize {digits.model} --data DATA --metric top1"
    for word in ("23 Conv", "weights", "input  image 1x1x32x32 float32", "output logits 1x10", "expect about", command):
        assert word in ran.out
    assert "MFLOPs" not in ran.out and "MFLOPs" in taglio("inspect", digits.model, "--blocks").out
    softmax = saved(softmax_sandwich(), tmp_path)
    assert "blocks that stay float: 1 (ONNX Runtime's int8 Softmax" in taglio("inspect", softmax).out
    assert "no: ONNX Runtime's int8 Softmax" in taglio("inspect", softmax, "--blocks").out


def test_inspect_as_json(digits: Case) -> None:
    printed = taglio("inspect", digits.model, "--json").json()
    loaded = model.load(digits.model)
    assert printed["model"] == "digits"
    assert printed["sha256"] == loaded.sha256
    graph = printed["graph"]
    assert sum(len(block["operators"]) for block in graph["blocks"]) == len(loaded.proto.graph.node)
    assert sum(block["flops"] for block in graph["blocks"]) > 1e8
    assert printed["summary"]["int8_blocks"] == 38 and printed["summary"]["int8_share"] == pytest.approx(1.0)
    assert printed["command"].startswith(f"taglio optimize {digits.model} --data DATA ")
    assert [tensor["shape"] for tensor in graph["tensors"] if tensor["name"] == "logits"] == [[1, 10]]


@pytest.mark.slow
def test_quickstart(tmp_path: Path) -> None:
    printed = taglio("quickstart", "-o", tmp_path / "out", "--json").json()
    typed(printed["plan"], PLAN)
    plan, full = printed["plan"], printed["float32"]
    assert plan["error"] <= plan["max_error"] == 0.01
    assert plan["accuracy"] >= full["accuracy"] - 0.01 >= printed["int8"]["accuracy"]
    for path in printed["artifacts"].values():
        assert Path(path).is_relative_to(tmp_path)
        assert Path(path).exists()
