"""The head, which keeps the members of a cluster: started again, and gone. Here it is not the start device."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.engine.devices import WORKER, Bench, needs_ray, two_devices, until
from tests.end_to_end.command import refused

pytestmark = [needs_ray, pytest.mark.whole, pytest.mark.slow]  # two devices more, and a head takes seconds to come back


@pytest.fixture(scope="module")
def running() -> Iterator[Bench]:
    with two_devices(WORKER, head="server") as here:
        yield here


def test_devices_join_the_head_that_was_started_again(running: Bench) -> None:
    (head,) = running.named("server", "gcs_server")
    os.kill(head, signal.SIGKILL)

    def back() -> bool:
        status = running.command("cluster", "status", "--json")
        return status.code == 0 and status.json()["alive"] == {"camera": True, "server": True}

    until(lambda: {head} != set(running.named("server", "gcs_server")) != set(), 60.0, "a new head")
    until(back, 180.0, "both devices")


def test_without_a_head_nothing_is_asked_and_one_line_says_so(running: Bench, cluster: Path) -> None:
    running.command("cluster", "stop", "--name", "server")
    refused(running.command("cluster", "status", wait_s=30.0), running.address, "cluster start --head", code=4)
    refused(running.command("cluster", "probe", cluster, wait_s=30.0), running.address, code=4)
