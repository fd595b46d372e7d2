"""Devices that tests start on this machine's loopback, by the command line as a user would. Knows no scenario."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests import stateful
from tests.end_to_end.command import ENVIRONMENT, SCHEME, Ran, taglio

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install 'taglio[cluster]'")

CLUSTER = """
start = "camera"
[device.camera]
active_watts = 4
profile = "profile.json"
[device.server]
active_watts = 60
profile = "profile.json"
[[link]]
from = "camera"
to = "server"
both = true
bandwidth_mbit_s = 1000
latency_ms = 0.5
joules_per_mb = 0.5
"""
# To the server and back, so that every kind of message is sent.
PINS = ("camera=/stem*", "server=/fine*", "server=/middle*", "camera=/coarse*", "camera=/classify*")


@dataclass
class Bench:
    """A place for devices: their folder (short, because of the sockets in it), their token, port, and head."""

    folder: Path
    port: int
    tls: Path | None = None
    head: str = "camera"
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.environment = {
            **ENVIRONMENT,
            "TAGLIO_DEVICES": str(self.folder / "d"),
            "RAY_AUTH_TOKEN_PATH": str(self.folder / "token"),
        }

    @property
    def address(self) -> str:
        """Of the head."""
        return f"127.0.0.1:{self.port}"

    def command(self, *arguments: object, wait_s: float = 300.0, devices: Path | None = None) -> Ran:
        """Run a command in a process of its own, with the devices of another place if given."""
        environment = {} if devices is None else {"TAGLIO_DEVICES": str(devices)}
        done = subprocess.run(
            [sys.executable, "-m", "taglio", *(str(each) for each in arguments)],
            env={**self.environment, **environment}, capture_output=True, text=True, timeout=wait_s, check=False,
        )  # fmt: skip
        return Ran(done.returncode, done.stdout, done.stderr)

    def begin(self, *arguments: object) -> "subprocess.Popen[str]":
        """Start a command and do not wait."""
        return subprocess.Popen(
            [sys.executable, "-m", "taglio", *(str(each) for each in arguments)],
            env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def start(self, name: str, *options: object) -> Ran:
        """Start a device with one thread."""
        place = ("--head", "--port", self.port) if name == self.head else ("--address", self.address)
        locked = () if self.tls is None else ("--tls", self.tls)
        return self.command("device", "start", "--name", name, "--threads", 1, *place, *locked, *options, "--json")

    def stop(self) -> None:
        """Stop all devices and remove their files."""
        self.command("device", "stop")
        shutil.rmtree(self.folder, ignore_errors=True)

    def processes(self, name: str) -> list[int]:
        """All processes of a device."""
        mark = f"TAGLIO_COMPONENTS={self.folder / 'd' / name / 'components'}\0".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if mark in path.read_bytes():
                    found.append(int(path.parent.name))
            except OSError:
                continue
        return found

    def named(self, name: str, what: str) -> list[int]:
        """Those of a device's processes that bear a name, such as ray::Host."""
        found = []
        for pid in self.processes(name):
            with contextlib.suppress(OSError):  # ended meanwhile
                if what in Path(f"/proc/{pid}/stat").read_text():
                    found.append(pid)
        return found

    def kill(self, name: str) -> None:
        """kill -9 on all of a device, its keeper first, so that it stays away."""
        (self.folder / "d" / name / "pid").unlink()
        pids = self.processes(name)
        assert pids, f"no process of {name}"
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue


def bench(tls: Path | None = None, head: str = "camera") -> Bench:
    """A place below /tmp with a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    return Bench(Path(tempfile.mkdtemp(prefix="tg", dir="/tmp")), port, tls, head)


def planned(out: Path, cluster: Path, *options: object) -> dict[str, Any]:
    """Plan with PINS, and build, in this process, for no device is asked; the plan."""
    pins = [word for pin in PINS for word in ("--pin", pin)]
    asked = ("--cluster", cluster, "--max-error", "5%", "--time-limit", 1, *pins, *options)
    found: dict[str, Any] = taglio("plan", out, *asked, "--json").json()["plans"][0]
    taglio("build", out, "--json").json()
    return found


def planned_with_states(here: Bench, folder: Path, cluster: Path) -> Path:
    """A workspace of the model with states, its cache on the server and its head on the camera."""
    case, out = stateful.written(folder), folder / "out"
    state = [word for each in stateful.STATES for word in ("--state", each)]
    quick = ("--scheme", SCHEME, "--runtime", "onnxruntime", "--effort", 0.01)
    here.command("profile", *case.arguments(), *state, *quick, "-o", out, "--json").json()
    here.command("error", out, "--effort", 0.01, "--json").json()
    asked = ("--cluster", cluster, "--max-error", 0, "--pin", "server=cache", "--pin", "camera=head", "--time-limit", 1)
    found = here.command("plan", out, *asked, "--json").json()["plans"][0]
    assert {"camera", "server"} == {each["device"] for each in found["placements"]}
    here.command("build", out, "--json").json()
    return out


def until(true: Any, patience_s: float, what: str) -> None:
    """Wait for something."""
    end = time.monotonic() + patience_s
    while not true():
        assert time.monotonic() < end, f"not within {patience_s} s: {what}"
        time.sleep(0.1)


@contextlib.contextmanager
def two_devices() -> Iterator[Bench]:
    """A bench on which the devices camera and server run."""
    here = bench()
    try:
        for name in ("camera", "server"):
            assert here.start(name).json()["name"] == name
        yield here
    finally:
        here.stop()


def answering(bench: Bench) -> bool:
    """Whether the server's host has used processor time since it loaded its component."""
    return any(
        int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11]) > 300
        for pid in bench.named("server", "ray::Host")
    )


def last_json(text: str) -> Any:
    """The object on the last line."""
    return json.loads(text.splitlines()[-1])
