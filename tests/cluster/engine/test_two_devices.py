"""Two devices on this machine's loopback: started, looked at, measured, run on, killed, and back."""

import json
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from taglio.cluster.file import parse
from tests import stateful
from tests.cluster.engine.devices import (
    CLUSTER,
    Bench,
    answering,
    last_json,
    needs_ray,
    planned,
    until,
)
from tests.end_to_end.command import SCHEME, Case, refused, taglio
from tests.support.sockets import addresses

pytestmark = [needs_ray, pytest.mark.whole]
# A probe in a hurry.
PROBE_S = {
    f"cluster.engine.probe.{name}": seconds
    for name, seconds in (("_SINGLE_S", 0.5), ("_LEAST_S", 0.7), ("_IDLE_S", 0.3))
}


def test_status_says_what_each_device_is(running: Bench) -> None:
    found = running.command("cluster", "status", "--json").json()
    assert found["alive"] == {"camera": True, "server": True}
    assert {each["threads"] for each in found["devices"].values()} == {1}
    assert len({each["versions"]["taglio"] for each in found["devices"].values()}) == 1
    for name in ("camera", "server"):
        assert addresses(running.processes(name)) == {"127.0.0.1"}


def test_requests_are_answered_as_one_process_answers(running: Bench, out: Path, cluster: Path) -> None:
    plan = planned(out, cluster)
    assert {each["device"] for each in plan["placements"]} == {"camera", "server"}
    for kept in running.folder.glob("d/*/components/*/*.onnx"):  # of a test before
        kept.unlink()
    ran = running.command("run", out, "--cluster", cluster, "--runs", 30, "--json").json()
    assert (ran["requests"], ran["identical"], ran["resent"]) == (30, 30, 0)
    pieces = last_manifest(out)
    assert {each["component"]: each["device"] for each in ran["components"]} == {
        each["name"]: each["device"] for each in pieces
    }
    assert ran["sent_bytes"] == sum(each["size_bytes"] for each in pieces)
    assert {(each["source"], each["target"]) for each in ran["crossings"]} >= {
        ("camera", "server"), ("server", "camera"),
    }  # fmt: skip
    conditions = json.loads((out / "profile.json").read_text())["body"]["conditions"]
    waited = [each["predicted_s"] for each in ran["components"] if each["device"] == "server"]
    assert waited and min(waited) >= conditions["waking_s"]
    for each in (*ran["components"], *ran["crossings"]):
        assert each["measured"]["median_s"] > 0.0 and each["predicted_s"] >= 0.0
    again = running.command("run", out, "--cluster", cluster, "--runs", 60, "--stream", "--json").json()
    assert again["sent_bytes"] == 0  # by content hash, once
    assert (again["identical"], again["resent"]) == (60, 0) and again["lanes"] >= 2
    assert any("ignores the CPU cost per message" in note for note in again["notes"])


def test_the_whole_flow_times_the_plan_on_every_device(running: Bench, tiny: Case, tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.toml"
    cluster.write_text(CLUSTER.replace('profile = "profile.json"', ""))
    # Blocks are forced: in float, as they may be fastest, no plan would be timed.
    limits = ("--max-error", "50%", "--force-int8", "*", "--objective", "throughput")
    asked = ("--cluster", cluster, *limits, "--effort", 0.02, "-o", tmp_path / "out", "--json")
    hurried = {f"cluster.engine.optimize.{each}": 0.5 for each in ("_FIRST_S", "_LAST_S", "_TIMED_S")}
    done = running.command("optimize", *tiny.arguments(), "--scheme", SCHEME, *asked, hurried=hurried | PROBE_S).json()
    plan, ran = done["plan"], done["run"]
    assert plan["measured_error"] <= 0.5 and ran["identical"] == ran["requests"] >= 30
    # The file has no cost of messages, so it was measured; a run of the plan with the same file uses it.
    costs = json.loads((tmp_path / "out" / "cluster.json").read_text())["body"]["handling"]
    assert costs.keys() == {"camera", "server"}
    assert not any("ignores the CPU cost" in note for note in (*plan["notes"], *ran["notes"]))
    for device in ("camera", "server"):
        kept = json.loads((tmp_path / "out" / "profiles" / f"{device}.json").read_text())["body"]
        assert {"near 1", "near too 1"} <= {each["name"] for each in kept["runs"]}
    own = json.loads((tmp_path / "out" / "profile.json").read_text())["body"]
    assert own == json.loads((tmp_path / "out" / "profiles" / "camera.json").read_text())["body"]


def test_a_changed_component_is_logged_and_sent_again(running: Bench, placed: Path, cluster: Path) -> None:
    out = placed
    assert "in order" in running.command("run", out, "--cluster", cluster, "--runs", 1).out
    theirs = next(each["sha256"] for each in last_manifest(out) if each["device"] == "server")
    kept = next((running.folder / "d" / "server" / "components").glob(f"{theirs[:32]}*/*.onnx"))
    kept.write_bytes(kept.read_bytes() + b"x")
    ran = running.command("run", out, "--cluster", cluster, "--runs", 1, "--json").json()
    assert ran["sent_bytes"] > 0 and ran["identical"] == 1
    logs = (running.folder / "d" / "server" / "session_latest" / "logs").glob("worker-*.err")
    assert any("refused" in path.read_text() and "was changed" in path.read_text() for path in logs)
    ours = next(out.glob("components/*server*.onnx"))
    ours.write_bytes(ours.read_bytes() + b"x")
    refused(running.command("run", out, "--cluster", cluster), "was changed", "build again")


def test_links_are_measured_in_the_form_of_a_cluster_file(running: Bench, cluster: Path, tmp_path: Path) -> None:
    path = tmp_path / "measured.toml"
    found = running.command("cluster", "probe", cluster, "--write", path, "--json", hurried=PROBE_S).json()
    ends = {(each["source"], each["target"]) for each in found["links"]}
    assert ends == {("camera", "server"), ("server", "camera")}
    measured = parse(path.read_text())
    link = measured.link("camera", "server")
    assert link is not None and 1e-5 < link.latency_s < 0.1 and link.bandwidth_bytes_per_s > 1e7
    assert link.joules_per_byte == pytest.approx(5e-7)
    assert set(found["devices"]) == {"camera", "server"}
    for device in measured.devices:
        taken = found["devices"][device.name]
        for key in ("send_s", "receive_s", "send_byte_s", "receive_byte_s"):
            assert getattr(device, key) == pytest.approx(taken[key], rel=1e-4)
        assert 1e-5 < device.send_s + device.receive_s < 0.1
        assert 1e-11 < device.send_byte_s + device.receive_byte_s < 1e-6


def test_wrong_commands_are_refused_in_one_line(
    running: Bench, few_digits: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused(running.start("server"), "runs on this machine already", "cluster stop", code=4)
    elsewhere = running.folder / "e"
    taken = ("cluster", "start", "--name", "server", "--address", running.address)
    refused(running.command(*taken, devices=elsewhere), 'has a device "server" already', code=4)
    nobody = ("cluster", "start", "--name", "x", "--address", "127.0.0.1:9")
    refused(running.command(*nobody), "nothing answers at 127.0.0.1:9", code=4)
    assert not (running.folder / "d" / "x").exists()
    refused(running.command("cluster", "start", "--name", "x", "--address", "here"), "HOST:PORT")
    # What is refused before the engine is needed runs in this process.
    monkeypatch.setenv("TAGLIO_DEVICES", running.environment["TAGLIO_DEVICES"])
    refused(taglio("cluster", "start", "--name", "x"), "--head")
    refused(taglio("cluster", "stop", "--name", "servr"), 'did you mean "server"', code=4)
    cluster = tmp_path / "cluster.toml"
    scaled = CLUSTER.replace('profile = "profile.json"', 'scale = { of = "profile.json", factor = 2.0 }')
    cluster.write_text(scaled)
    asked = ("optimize", *few_digits.arguments(), "--cluster", cluster, "--max-error", "5%", "-o", tmp_path / "out")
    refused(taglio(*asked), "none would profile the model", "remove scale")
    monkeypatch.setenv("TAGLIO_DEVICES", str(elsewhere))
    refused(taglio("cluster", "status"), "no device runs on this machine", code=4)
    cluster.write_text(CLUSTER.replace("server", "cloud"))
    refused(running.command("cluster", "probe", cluster), 'device "cloud" is not in the cluster', code=4)


def test_a_stream_that_is_ended_says_so(running: Bench, placed: Path, cluster: Path) -> None:
    with running.begin("run", placed, "--cluster", cluster, "--stream", "--runs", 1_000_000) as process:
        try:
            until(lambda: process.poll() is not None or answering(running.processes("server")), 60.0, "requests")
            process.terminate()
            said, error = process.communicate(timeout=60.0)
        finally:
            process.kill()
    assert (process.returncode, said) == (128 + signal.SIGTERM, "")
    assert error.splitlines()[-1].startswith("taglio: stopped")


def test_a_killed_device_comes_back(running: Bench, placed: Path, cluster: Path) -> None:
    with _killed(running, "run", placed, "--cluster", cluster, "--runs", 1_000_000) as process:
        said = _read(process)
        until(lambda: "sent again after" in "".join(said), 60.0, "a plan without the server")
        assert running.start("server").json()["name"] == "server"
        until(lambda: "its devices and links are back" in "".join(said), 120.0, "the plan of both devices again")
        shown = running.command("cluster", "status")
        assert "2 of 2 devices alive" in shown.out and shown.err == ""
        process.send_signal(signal.SIGINT)
        assert process.wait(60.0) == 130


def test_two_that_are_alike_take_turns(running: Bench, out: Path, tmp_path: Path) -> None:
    """Two servers have all of the model, since the camera is said to be slow."""
    cluster = tmp_path / "cluster.toml"
    slow = CLUSTER.replace('profile = "profile.json"', 'scale = { of = "profile.json", factor = 50.0 }', 1)
    cluster.write_text(f'{slow}[device.second]\nlike = "server"\n')
    asked = ("--cluster", cluster, "--max-error", "5%", "--objective", "throughput")
    assert "server, second" in taglio("plan", out, *asked).out
    plan = json.loads((out / "plan.json").read_text())["body"]
    replicas = {use["device"]: use["replicas"] for use in plan["usage"]}
    assert replicas["server"] == ["server", "second"]
    taglio("build", out, "--json").json()
    assert running.start("second").json()["name"] == "second"
    try:
        ran = running.command("run", out, "--cluster", cluster, "--stream", "--runs", 60, "--json").json()
    finally:
        running.command("cluster", "stop", "--name", "second")
    assert (ran["requests"], ran["identical"], ran["resent"]) == (60, 60, 0)
    both = [(running.folder / "d" / name / "components").iterdir() for name in ("server", "second")]
    first, second = ({path.name for path in paths} for paths in both)
    assert second and second <= first


@contextmanager
def _killed(running: Bench, *command: object) -> Iterator["subprocess.Popen[str]"]:
    """The command, begun, with its server killed while requests are under way."""
    with running.begin(*command) as process:
        try:
            until(lambda: len(running.processes("server")) > 3, 60.0, "a host on the server")
            until(lambda: process.poll() is not None or answering(running.processes("server")), 60.0, "requests")
            running.kill("server")
            yield process
        finally:
            process.kill()


def _read(process: "subprocess.Popen[str]") -> list[str]:
    """The lines that a process writes to standard error, as they come."""
    said: list[str] = []
    threading.Thread(target=lambda: said.extend(process.stderr or ()), daemon=True).start()
    return said


def last_manifest(out: Path) -> list[dict[str, Any]]:

    found: list[dict[str, Any]] = json.loads((out / "components" / "manifest.json").read_text())["body"]["pieces"]
    return found


def test_a_session_is_run_again_where_a_device_took_its_state_along(
    running: Bench, with_states: Path, cluster: Path
) -> None:
    ran = running.command("run", with_states, "--cluster", cluster, "--steps", 30, "--json").json()
    assert (ran["requests"], ran["identical"], ran["steps"]) == (30, 30, True)
    sent = {name for each in ran["crossings"] for name in each["tensors"]}
    assert sent and not sent & {each.partition("=")[2] for each in stateful.STATES}
    with _killed(running, "run", with_states, "--cluster", cluster, "--steps", 1500, "--json") as process:
        said, error = process.communicate(timeout=240.0)
    assert process.returncode == 0, error
    ran = last_json(said)
    assert (ran["requests"], ran["steps"]) == (1500, True) and ran["resent"] >= 1
    assert [set(plan["devices"]) for plan in ran["plans"]][:2] == [{"camera", "server"}, {"camera"}]
    assert sum(plan["requests"] for plan in ran["plans"]) == 1500
    assert running.start("server").json()["name"] == "server"
