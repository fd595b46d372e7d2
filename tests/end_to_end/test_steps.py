"""A model with state by the command line: suggested, planned, run step by step, on one machine and two."""

from pathlib import Path

from tests.conftest import TWO_DEVICES
from tests.end_to_end.command import SCHEME, Case, refused, taglio
from tests.stateful import STATES, written

CLUSTER = TWO_DEVICES.replace("[device.server]", "[device.server]\nmemory_mb = 0.02")
SETTINGS = ("--scheme", SCHEME, "--runtime", "onnxruntime", "--effort", 0.01)


def profiled(case: Case, out: Path, *state: str) -> None:
    named = [word for each in state for word in ("--state", each)]
    taglio("profile", *case.arguments(), *named, *SETTINGS, "-o", out, "--json").json()
    taglio("error", out, "--effort", 0.01, "--json").json()


def test_a_session_of_steps_by_the_command_line(tmp_path: Path) -> None:
    case, out, cluster = written(tmp_path), tmp_path / "out", tmp_path / "cluster.toml"
    assert taglio("inspect", case.model, "--json").json()["states"] == list(STATES)
    assert f"--state {STATES[0]} --state {STATES[1]}" in taglio("inspect", case.model).out
    profiled(case, out, *STATES)
    taglio("plan", out, "--max-error", "90%", "--effort", 0.01, "--json").json()
    taglio("build", out, "--json").json()
    ran = taglio("run", out, "--steps", 30, "--json").json()
    assert ran["steps"] == 30 and ran["error"] < 0.9 and ran["plan"]["runs"] == 30
    assert "steps per second" in taglio("run", out, "--steps", 3).out
    cluster.write_text(CLUSTER)
    asked = ("plan", out, "--cluster", cluster, "--max-error", "90%", "--time-limit", 0.5)
    # The cache grows by 64 bytes a step: 1,000 fit no server of 20 kB.
    pin = ("--pin", "server=cache")
    assert taglio(*asked, *pin, "--max-steps", 100, "--json").json()["plans"][0]["limits"]["max_steps"] == 100
    refused(taglio(*asked, *pin, "--max-steps", 1000), "the memory of server (0.02 MB)", code=3)


def test_steps_of_a_model_without_state_are_refused(tmp_path: Path, tiny: Case) -> None:
    refused(taglio("profile", *tiny.arguments(), "--state", "y=z", *SETTINGS, "-o", tmp_path / "out"), "OUTPUT=INPUT")
