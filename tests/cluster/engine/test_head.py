"""The head, which keeps the members of a cluster: killed and back, killed and gone. Here it is not the start device."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.engine.devices import WORKER, Bench, answering, last_json, needs_ray, two_devices, until
from tests.end_to_end.command import refused

pytestmark = [needs_ray, pytest.mark.whole, pytest.mark.slow]  # two devices more, and a head takes seconds to come back


@pytest.fixture(scope="module")
def running() -> Iterator[Bench]:
    with two_devices(WORKER, head="server") as here:
        yield here


def test_a_head_whose_process_ends_costs_no_request_and_comes_back(running: Bench, placed: Path, cluster: Path) -> None:
    """What only the head can do, starting a component's process anew, is asked of the one that came back."""
    with running.begin("run", placed, "--cluster", cluster, "--runs", 3000, "--json") as process:
        try:
            until(lambda: process.poll() is not None or answering(running), 60.0, "requests under way")
            (head,) = running.named("server", "gcs_server")
            os.kill(head, signal.SIGKILL)
            until(lambda: {head} != set(running.named("server", "gcs_server")) != set(), 60.0, "a new head")
            (host,) = running.named("server", "ray::Host")
            os.kill(host, signal.SIGKILL)
            said, error = process.communicate(timeout=240.0)
        finally:
            process.kill()
    assert process.returncode == 0, error
    ran = last_json(said)
    assert ran["requests"] == 3000 and ran["resent"] >= 1
    (interruption,) = ran["interruptions"]
    assert interruption["recovery_s"] < 60.0
    assert {each["device"] for each in ran["loaded"]} == {"camera", "server"}
    assert running.command("cluster", "status", "--json").json()["alive"] == {"camera": True, "server": True}


def test_a_head_that_is_killed_and_started_again_costs_no_request(running: Bench, placed: Path, cluster: Path) -> None:
    """It goes on with what it knew, where a head that was stopped would begin another cluster."""
    with running.begin("run", placed, "--cluster", cluster, "--runs", 600, "--json") as process:
        try:
            until(lambda: process.poll() is not None or answering(running), 60.0, "requests under way")
            running.kill("server")
            assert running.start("server").json()["name"] == "server"
            said, error = process.communicate(timeout=240.0)
        finally:
            process.kill()
    assert process.returncode == 0, error
    ran = last_json(said)
    assert ran["requests"] == 600 and ran["resent"] >= 1 and ran["interruptions"]
    assert running.command("cluster", "status", "--json").json()["alive"] == {"camera": True, "server": True}


def test_without_a_head_nothing_is_asked_and_one_line_says_so(running: Bench, cluster: Path) -> None:
    running.command("cluster", "stop", "--name", "server")
    assert not (running.folder / "d" / "server" / "memory").exists()
    refused(running.command("cluster", "status", wait_s=30.0), running.address, "cluster start --head", code=4)
    refused(running.command("cluster", "probe", cluster, wait_s=30.0), running.address, code=4)
