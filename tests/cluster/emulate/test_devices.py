"""A plan on emulated devices: they come up in their namespaces, and requests go over the shaped links."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from taglio.cluster.emulate import needs
from taglio.cluster.emulate.devices import start_devices
from taglio.cluster.emulate.emulation import Emulation
from tests.cluster.engine.devices import CLUSTER, needs_ray, planned
from tests.conftest import Staged

pytestmark = [
    needs_ray,
    pytest.mark.whole,
    pytest.mark.skipif(needs.missing() is not None, reason=f"cannot emulate here: {needs.missing()}"),
]


def test_requests_take_what_the_links_take(digits_staged: Staged, tmp_path: Path) -> None:
    out, file = tmp_path / "out", tmp_path / "cluster.toml"
    shutil.copytree(digits_staged.folder, out)
    file.write_text(CLUSTER.replace("latency_ms = 0.5", "latency_ms = 20").replace("= 4\n", "= 4\ncpus = 1\n"))
    planned(out, file)
    with Emulation(file) as made:
        start_devices(made)
        words = [sys.executable, "-m", "taglio", "run", str(out), "--cluster", str(file), "--runs", "10", "--json"]
        with made.start("camera", words, stdout=subprocess.PIPE, text=True) as process:
            ran = json.loads(process.communicate(timeout=120)[0])
    assert (ran["requests"], ran["identical"]) == (10, 10)
    assert ran["latency"]["median_s"] >= 0.040  # there and back
    assert 0.0 < ran["machine_busy"] <= 1.0
    assert {each["device"] for each in ran["loaded"]} == {"camera", "server"}
    for each in ran["crossings"]:  # clocks are read over the same links, so a share may go to the other direction
        if each["source"] != each["target"]:
            assert each["measured"]["median_s"] >= 0.020 - each["uncertain_s"]
