"""A plan on emulated devices: they come up in their namespaces, and requests go over the shaped links. Where links are
cut for good under a served plan, requests are answered by a plan without them, and by the first plan again once the
links have held."""

import contextlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from taglio.cluster.emulate import emulation
from taglio.cluster.emulate.emulation import Emulation, start_devices
from taglio.embedded import digits_data
from tests.cluster.emulate import clients
from tests.cluster.engine.devices import made_up_times, needs_ray, running_taglio, until
from tests.conftest import Staged
from tests.end_to_end.command import ENVIRONMENT, taglio
from tests.support.sockets import addresses

pytestmark = [
    needs_ray,
    pytest.mark.whole,
    pytest.mark.skipif(emulation.missing() is not None, reason=f"cannot emulate here: {emulation.missing()}"),
]

PORT = 8000
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
    with Emulation(file) as made:
        start_devices(made)
        yield made


@pytest.fixture
def out(made: Emulation, digits_staged: Staged, tmp_path: Path) -> Path:
    folder = Path(shutil.copytree(digits_staged.folder, tmp_path / "out"))
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


@contextmanager
def served(made: Emulation, out: Path) -> Iterator[Path]:
    """A server on the camera, which is ready, and its log."""
    words = ["serve", f"digits={out}", "--cluster", str(made.file), "--http-port", str(PORT)]
    log = out.parent / "serve.log"
    with log.open("w") as file:
        process = made.start("camera", [*running_taglio(HURRIED), *words], ENVIRONMENT, stdout=file, stderr=file)
    try:
        until(lambda: process.poll() is not None or "REST" in log.read_text(), 60.0, "a server")
        assert process.poll() is None, log.read_text()
        yield log
    finally:
        process.terminate()
        process.wait(60.0)


Row = tuple[float, float, int]


@contextmanager
def asking(made: Emulation) -> Iterator[list[Row]]:
    """Clients on the camera meanwhile: in the end, when each request was sent, how long it took, and its status. None
    is answered wrong, or refused for its client's sake."""
    words = [sys.executable, clients.__file__, str(PORT), str(digits_data())]
    rows = list[Row]()
    with made.start("camera", words, ENVIRONMENT, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield rows
        finally:
            process.terminate()
            told = process.communicate(timeout=60.0)[0]
    with np.load(digits_data()) as data:
        labels = data["label"]
    for line in told.splitlines():
        number, sent_s, took_s, status, said = json.loads(line)
        assert (status == 200 and int(said) == labels[number]) or status == 503, (status, said)
        rows.append((sent_s, took_s, status))


def test_devices_listen_on_their_own_addresses(made: Emulation) -> None:
    for name in NAMES:
        mark = f"TAGLIO_DEVICE={name}\0".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if mark in path.read_bytes():
                    found.append(int(path.parent.name))
        inside = [each for each in found if made.addresses[name] in addresses([each])]
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
    with served(made, out) as log:
        with asking(made) as rows:
            time.sleep(1.0)
            left = tuple(each for each in made.cluster.links if (each.source, each.target) != ("gateway", "server"))
            made.become(replace(made.cluster, links=left))
            until(lambda: "sent again" in log.read_text(), 30.0, "another plan")
            time.sleep(2.0)
            again_s = time.time()
            time.sleep(4.0)
        later = [(took_s, status) for sent_s, took_s, status in rows if sent_s > again_s]
        assert later and all(status == 200 and took_s < 2.0 for took_s, status in later), log.read_text()
        with asking(made) as rows:
            made.become(made.cluster)
            until(lambda: "links are back" in log.read_text(), 90.0, "the first plan")
            time.sleep(2.0)
        assert all(status == 200 for _, _, status in rows), log.read_text()
        assert log.read_text().count("links are back") == log.read_text().count("sent again") == 1
