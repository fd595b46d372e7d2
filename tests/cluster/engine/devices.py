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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from taglio import artifact
from taglio.flow.workspace import PROFILE
from taglio.profile.result import Profile
from tests import stateful
from tests.end_to_end.command import ENVIRONMENT, SCHEME, Ran, begun, taglio

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
# Ports that Ray would set aside for its dashboard, its client protocol, workers, and its dashboard's agent: heads of
# these tests take them.
DASHBOARD, CLIENT, WORKER, AGENT = 8265, 10001, 15151, 52365
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

    def command(
        self,
        *arguments: object,
        wait_s: float = 300.0,
        devices: Path | None = None,
        hurried: Mapping[str, float] | None = None,
    ) -> Ran:
        """Run a command in a process of its own, with the devices of another place if given, and constants of taglio
        `hurried`: "module.NAME" -> seconds that would be more."""
        environment = {} if devices is None else {"TAGLIO_DEVICES": str(devices)}
        done = subprocess.run(
            [*running_taglio(hurried or {}), *(str(each) for each in arguments)],
            env={**self.environment, **environment}, capture_output=True, text=True, timeout=wait_s, check=False,
        )  # fmt: skip
        return Ran(done.returncode, done.stdout, done.stderr)

    def begin(self, *arguments: object) -> "subprocess.Popen[str]":
        """Start a command and do not wait."""
        return begun(*arguments, env=self.environment)

    def start(self, name: str, *options: object) -> Ran:
        """Start a device with one thread."""
        place = ("--head", "--port", self.port) if name == self.head else ("--address", self.address)
        locked = () if self.tls is None else ("--tls", self.tls)
        return self.command("cluster", "start", "--name", name, "--threads", 1, *place, *locked, *options, "--json")

    def stop(self) -> None:
        """End all devices, by kill -9, for Ray takes seconds to stop, and remove their files."""
        for each in self.folder.glob("d/*"):
            if self.processes(each.name):
                self.kill(each.name)
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
        (self.folder / "d" / name / "pid").unlink(missing_ok=True)
        pids = self.processes(name)
        assert pids, f"no process of {name}"
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue


def running_taglio(hurried: Mapping[str, float]) -> list[str]:
    """The words that run taglio, with some of its constants changed."""
    if not hurried:
        return [sys.executable, "-m", "taglio"]
    lines = ["import importlib"]
    for name, seconds in hurried.items():
        module, _, constant = name.rpartition(".")
        lines.append(f"module = importlib.import_module('taglio.{module}')")
        lines += [f"assert module.{constant} > {seconds}", f"module.{constant} = {seconds}"]
    return [sys.executable, "-c", "\n".join([*lines, "from taglio.cli import entry", "entry()"])]


def bench(port: int, tls: Path | None = None, head: str = "camera") -> Bench:
    """A place below /tmp with this port, or where it is taken a free one."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    return Bench(Path(tempfile.mkdtemp(prefix="tg", dir="/tmp")), port, tls, head)


def made_up_times(out: Path) -> None:
    """Replace the times of a profile: 20 µs for a float block and 10 µs in other forms, nothing between blocks."""
    known = artifact.load(out / "profile.json", PROFILE, Profile)
    made_up = replace(
        known,
        blocks=tuple(replace(each, seconds=2e-5 if each.precision == "float32" else 1e-5) for each in known.blocks),
        glue=tuple(each.times(0.0) for each in known.glue),
        overhead_s=2e-5,
        conditions=replace(known.conditions, waking_s=5e-5),
    )
    artifact.save(out / "profile.json", PROFILE, known.model_sha256, made_up)


def planned(out: Path, cluster: Path, *options: object) -> dict[str, Any]:
    """Plan with PINS, and build, in this process, for no device is asked; the plan."""
    pins = [word for pin in PINS for word in ("--pin", pin)]
    asked = ("--cluster", cluster, "--max-error", "5%", "--time-limit", 1, *pins, *options)
    found: dict[str, Any] = taglio("plan", out, *asked, "--json").json()["plans"][0]
    taglio("build", out, "--json").json()
    return found


def planned_with_states(folder: Path, cluster: Path) -> None:
    """A workspace `out` of the model with states, its cache on the server and its head on the camera."""
    case, out = stateful.written(folder), folder / "out"
    state = [word for each in stateful.STATES for word in ("--state", each)]
    quick = ("--scheme", SCHEME, "--runtime", "onnxruntime", "--effort", 0.01)
    taglio("profile", *case.arguments(), *state, *quick, "-o", out, "--json").json()
    taglio("error", out, "--effort", 0.01, "--json").json()
    asked = ("--cluster", cluster, "--max-error", 0, "--pin", "server=cache", "--pin", "camera=head", "--time-limit", 1)
    found = taglio("plan", out, *asked, "--json").json()["plans"][0]
    assert {"camera", "server"} == {each["device"] for each in found["placements"]}
    taglio("build", out, "--json").json()


def until(true: Any, patience_s: float, what: str) -> None:
    """Wait for something."""
    end = time.monotonic() + patience_s
    while not true():
        assert time.monotonic() < end, f"not within {patience_s} s: {what}"
        time.sleep(0.1)


@contextlib.contextmanager
def two_devices(port: int, head: str = "camera") -> Iterator[Bench]:
    """A bench on which the devices camera and server run."""
    here = bench(port, head=head)
    try:
        for name in sorted(("camera", "server"), key=lambda each: each != head):
            told = here.start(name).json()
            assert (told["name"], told["address"]) == (name, here.address)
        yield here
    finally:
        here.stop()


def answering(pids: Iterable[int]) -> bool:
    """Whether one of these processes is a host that has answered about a hundred requests: its threads have waited more
    often than it takes to load its components and warm up, which is 800 times; a request is 25."""
    return any(_waits(pid) > 3000 for pid in pids)


def _waits(pid: int) -> int:
    """Of a host; 0 for another process."""
    waits = 0
    with contextlib.suppress(OSError):  # it, or a thread of it, ended meanwhile
        if "ray::Host" in Path(f"/proc/{pid}/stat").read_text():
            for path in Path(f"/proc/{pid}/task").glob("*/status"):
                waits += int(path.read_text().partition("\nvoluntary_ctxt_switches:")[2].split()[0])
    return waits


def last_json(text: str) -> Any:
    """The object on the last line."""
    return json.loads(text.splitlines()[-1])
