"""A plan on emulated devices: they come up in their namespaces, and requests go over the shaped links."""

import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from taglio.cluster.emulate import emulation
from taglio.cluster.emulate.emulation import Emulation, start_devices
from tests.cluster.engine.devices import CLUSTER, needs_ray, planned
from tests.conftest import Staged
from tests.support.sockets import addresses

pytestmark = [
    needs_ray,
    pytest.mark.whole,
    pytest.mark.skipif(emulation.missing() is not None, reason=f"cannot emulate here: {emulation.missing()}"),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulation]:
    file = tmp_path_factory.mktemp("emulated") / "cluster.toml"
    file.write_text(CLUSTER.replace("latency_ms = 0.5", "latency_ms = 20").replace("= 4\n", "= 4\ncpus = 1\n"))
    with Emulation(file) as made:
        start_devices(made)
        yield made


def test_devices_listen_on_their_own_addresses(made: Emulation) -> None:
    for name in ("camera", "server"):
        mark = f"TAGLIO_DEVICE={name}\0".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if mark in path.read_bytes():
                    found.append(int(path.parent.name))
        inside = [each for each in found if made.addresses[name] in addresses([each])]
        assert inside
        assert addresses(inside) <= {made.addresses[name], "127.0.0.1"}


def test_requests_take_what_the_links_take(made: Emulation, digits_staged: Staged, tmp_path: Path) -> None:
    out, file = Path(shutil.copytree(digits_staged.folder, tmp_path / "out")), made.file
    planned(out, file)
    words = [sys.executable, "-m", "taglio", "run", str(out), "--cluster", str(file), "--runs", "10", "--json"]
    with made.start("camera", words, stdout=subprocess.PIPE, text=True) as process:
        ran = json.loads(process.communicate(timeout=120)[0])
    assert (ran["requests"], ran["identical"]) == (10, 10)
    assert ran["latency"]["median_s"] >= 0.040  # there and back
    assert {each["device"] for each in ran["loaded"]} == {"camera", "server"}
    for each in ran["crossings"]:  # clocks are read over the same links, so a share may go to the other direction
        if each["source"] != each["target"]:
            assert each["measured"]["median_s"] >= 0.020 - each["uncertain_s"]
