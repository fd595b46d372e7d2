"""Plan, build and run on several devices by the command line, with devices scaled from this machine's profile."""

import json
import shutil
from pathlib import Path

import onnx
import pytest

from taglio import artifact
from taglio.cluster.file import load
from taglio.plan.result import Plan
from tests.cluster.engine.devices import CLUSTER
from tests.end_to_end.command import refused, taglio

# The camera is eight times as slow as the server, and the link ten times as slow as in tests on devices.
TEXT = CLUSTER.replace('profile = "profile.json"', 'scale = { of = "server", factor = 8.0 }', 1).replace("1000", "100")
QUICK = ("--max-error", "2%", "--time-limit", 1)


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.toml"
    path.write_text(TEXT)
    return path


def test_a_plan_on_two_devices_is_built_and_runs(digits_workspace: Path, cluster: Path) -> None:
    planned = taglio("plan", digits_workspace, "--cluster", cluster, *QUICK, "--json").json()
    plan = planned["plans"][0]
    assert {each["device"] for each in plan["usage"]} <= {each.name for each in load(cluster).devices}
    assert plan["measured_error"] <= 0.02 and plan["gap"] == pytest.approx(planned["gap"])
    assert plan["predicted_latency_s"]["value"] == pytest.approx(max(each["end_s"] for each in plan["timeline"]))
    on_camera = "camera" in {each["device"] for each in plan["usage"]}
    assert any("assumed" in note and "camera" in note for note in plan["notes"]) == on_camera
    built = taglio("build", digits_workspace, "--json").json()
    assert built["proof"]["distance"] <= built["proof"]["tolerance"]
    assert {piece["name"] for piece in built["manifest"]["pieces"]} == {each["component"] for each in plan["pieces"]}
    ran = taglio("run", digits_workspace, "--runs", 5, "--json").json()
    assert {each["component"] for each in ran["components"]} == {each["component"] for each in plan["pieces"]}
    if len(plan["pieces"]) > 1:
        onnx.checker.check_model(digits_workspace / "components" / "whole.onnx")
    page = (digits_workspace / "report.html").read_text()
    assert "One request" in page and ("assumed" in page) == on_camera


def test_two_models_share_the_devices_and_keep_their_own_bounds(digits_workspace: Path, cluster: Path) -> None:
    """The first may lose what it likes: its plan stays the same one while that of the second is searched for."""
    other = shutil.copytree(digits_workspace, digits_workspace.with_name("other"))
    asked = ("plan", digits_workspace, "--cluster", cluster, *QUICK[2:], "--max-error", "90%", "--rate", 20)
    ran = taglio(*asked, "--with-model", f"{other},rate=5,max-error=0.5%", "--json").json()
    assert [plan["limits"]["max_error"] for plan in ran["plans"]] == [0.9, 0.005]
    for plan in ran["plans"]:
        assert plan["measured_error"] <= plan["limits"]["max_error"]
    assert json.loads((other / "plan.json").read_text())["body"]["objective"] == "latency"
    assert ran["loads"] and all(0.0 < share <= 1.0 for share in ran["loads"].values())


def test_a_front_is_drawn(digits_workspace: Path, cluster: Path) -> None:
    options = ("--cluster", cluster, *QUICK)
    front = taglio("plan", digits_workspace, *options, "--axes", "latency,energy", "--json").json()
    assert front["points"] and all(point["plan"]["placements"] for point in front["points"])
    assert "Plans by latency and energy" in (digits_workspace / "report.html").read_text()
    refused(taglio("plan", digits_workspace, *options, "--axes", "error,energy"), "latency,energy")
    refused(
        taglio("plan", digits_workspace, *options, "--axes", "latency,energy", "--objective", "sum"),
        "--objective is for one plan",
    )


def test_refusals_are_one_line(workspace: Path, cluster: Path) -> None:
    refused(taglio("plan", workspace, "--max-error", "1%", "--objective", "energy"), "--cluster")
    refused(taglio("plan", workspace, "--max-error", "1%", "--gap", "0.1%"), "--gap")
    refused(taglio("plan", workspace, "--cluster", cluster, *QUICK, "--objective", "speed"), "not known")
    refused(
        taglio("plan", workspace, "--cluster", cluster, *QUICK, "--effort", 2),
        "--effort is for one machine",
        "leave --cluster out",
    )
    refused(taglio("plan", workspace, "--cluster", cluster, *QUICK, "--with-model", "x,speed=3"), "rate=5")
    refused(taglio("plan", workspace, "--cluster", cluster, *QUICK, "--max-latency", "1us"), "latency", code=3)
    cluster.write_text(TEXT.replace('profile = "profile.json"', ""))
    refused(taglio("plan", workspace, "--cluster", cluster, *QUICK), "has no profile", "scale =")


def test_a_bound_in_another_unit_holds_on_a_cluster_too(workspace: Path, cluster: Path) -> None:
    taglio("error", workspace, "--metric", "sqnr", "--effort", 0.02, "--json").json()
    ran = taglio("plan", workspace, "--cluster", cluster, "--min-score", 36, "--time-limit", 1)
    assert ran.code == 0, ran.err
    assert "limit 36.00\u00a0dB" in ran.out
    plan, limit = artifact.load(workspace / "plan.json", "plan", Plan), 10 ** (-36 / 20)
    assert plan.limits.max_error == pytest.approx(limit)
    assert plan.measured_error is not None and plan.measured_error <= limit
