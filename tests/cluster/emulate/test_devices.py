"""A plan on emulated devices: they come up in their namespaces, and requests go over the shaped links. Where links are
cut for good under a plan, requests are answered by a plan without them, and by the first plan again once the links have
held."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from taglio.cluster.emulate import emulation
from taglio.cluster.emulate.emulation import Emulation, emulated, start_devices
from tests.cluster.engine.devices import answering, made_up_times, needs_ray, running_taglio, until
from tests.end_to_end.command import ENVIRONMENT, taglio
from tests.support.sockets import addresses

pytestmark = [
    needs_ray,
    pytest.mark.whole,
    pytest.mark.skipif(emulation.missing() is not None, reason=f"cannot emulate here: {emulation.missing()}"),
]

NAMES = ("camera", "gateway", "server")
# The first half on the gateway, the second on the server; the camera could do all of it, forty times as slowly.
CLUSTER = """
start = "camera"
[device.server]
never = ["/stem*", "/fine*", "/middle*"]
profile = "profile.json"
[device.gateway]
never = ["/coarse*"]
scale = { of = "server", factor = 1.0 }
[device.camera]
scale = { of = "server", factor = 40.0 }
""" + "".join(
    f'[[link]]\nfrom = "{one}"\nto = "{other}"\nboth = true\nbandwidth_mbit_s = 1000\nlatency_ms = 0.3\n'
    for one, other in (("camera", "gateway"), ("gateway", "server"), ("camera", "server"))
)
# Seconds for an answer, and for a link to hold.
HURRIED = {"cluster.engine.run._PATIENCE_S": 4.0, "cluster.engine.links._HOLD_S": 8.0}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulation]:
    file = tmp_path_factory.mktemp("emulated") / "cluster.toml"
    file.write_text(CLUSTER)
    with emulated(file) as made:
        start_devices(made)
        yield made


@pytest.fixture
def out(made: Emulation, digits_workspace: Path) -> Path:
    folder = digits_workspace
    made_up_times(folder)
    (plan,) = taglio("plan", folder, "--cluster", made.file, "--max-error", 0, "--time-limit", 1, "--json").json()[
        "plans"
    ]
    assert ("gateway", "server") in ends(plan)
    taglio("build", folder, "--json").json()
    return folder


def ends(plan: dict[str, Any]) -> set[tuple[str, str]]:
    """The links that a plan uses."""
    return {(each["source"], each["target"]) for each in plan["crossings"]}


def processes(device: str) -> list[int]:
    """Those of an emulated device."""
    mark, pids = f"TAGLIO_DEVICE={device}\0".encode(), list[int]()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark in path.read_bytes():
                pids.append(int(path.parent.name))
    return pids


def test_devices_listen_on_their_own_addresses(made: Emulation) -> None:
    for name in NAMES:
        inside = [pid for pid in processes(name) if made.addresses[name] in addresses([pid])]
        assert inside
        assert addresses(inside) <= {made.addresses[name], "127.0.0.1"}


def test_requests_take_what_the_links_take(made: Emulation, out: Path) -> None:
    """From the camera to the gateway, on to the server, and back: 20 ms each."""
    slow = tuple(replace(link, latency_s=0.020) for link in made.cluster.links)
    made.become(replace(made.cluster, links=slow))
    words = [sys.executable, "-m", "taglio", "run", str(out), "--cluster", str(made.file), "--runs", "10", "--json"]
    with made.start("camera", words, stdout=subprocess.PIPE, text=True) as process:
        ran = json.loads(process.communicate(timeout=120)[0])
    made.become(made.cluster)
    assert (ran["requests"], ran["identical"]) == (10, 10)
    assert ran["latency"]["median_s"] >= 0.060
    assert {each["device"] for each in ran["components"]} >= {"gateway", "server"}
    for each in ran["crossings"]:  # clocks are read over the same links, so a share may go to the other direction
        if each["source"] != each["target"]:
            assert each["measured"]["median_s"] >= 0.020 - each["uncertain_s"]


def test_what_is_cut_for_good_is_planned_around(made: Emulation, out: Path) -> None:
    """A wrong answer would end the run."""
    words = [*running_taglio(HURRIED), "run", str(out), "--cluster", str(made.file), "--runs", "1000000"]
    log = out.parent / "run.log"
    with log.open("w") as file, made.start("camera", words, ENVIRONMENT, stdout=file, stderr=file) as process:

        def told(line: str) -> bool:
            assert process.poll() is None, log.read_text()
            return line in log.read_text()

        try:
            until(lambda: told("") and answering(processes("server")), 60.0, "requests under way")
            left = tuple(each for each in made.cluster.links if (each.source, each.target) != ("gateway", "server"))
            made.become(replace(made.cluster, links=left))
            until(lambda: told("sent again"), 30.0, "another plan")
            made.become(made.cluster)
            until(lambda: told("links are back"), 90.0, "the first plan")
        finally:
            made.become(made.cluster)
            process.kill()
    assert log.read_text().count("links are back") == log.read_text().count("sent again") == 1
