"""Devices of this machine are found by their keepers, and stopped together."""

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from taglio.cluster.engine import local
from taglio.cluster.engine.local import LocalDevice

# Ends when both were told to.
KEEPER = """
import signal, sys, time
from pathlib import Path

def end(*_):
    (Path(sys.argv[2]) / sys.argv[3]).touch()
    while len(list(Path(sys.argv[2]).iterdir())) < 2:
        time.sleep(0.01)
    sys.exit()

signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
time.sleep(60)
"""


def test_all_devices_are_told_to_end_before_one_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAGLIO_DEVICES", str(tmp_path / "d"))
    monkeypatch.setattr(local, "_LONGEST", 200)  # there are no sockets in it
    monkeypatch.setattr(local, "_PATIENCE_S", 10.0)
    told = tmp_path / "told"
    told.mkdir()
    with ExitStack() as running:
        for name in ("camera", "server"):
            (local.home() / name / local.MEMORY).mkdir(parents=True)
            words = [sys.executable, "-c", KEEPER, "taglio.cluster.engine.keeper", str(told), name]
            keeper = running.enter_context(subprocess.Popen(words, stdout=subprocess.PIPE))
            assert keeper.stdout is not None and keeper.stdout.readline() == b"ready\n"
            device = LocalDevice(name, "127.0.0.1", "127.0.0.1:1", name == "camera", 1, "token", None)
            local.remember(device, keeper.pid)
        devices = local.running()
        assert [each.name for each in devices] == ["camera", "server"]
        local.stop(devices)
    assert local.running() == [] and [*tmp_path.glob("d/*/*")] == []
