"""Start taglio's devices in an emulation, with the command that starts them anywhere. Does not use the engine."""

import subprocess
import sys

from taglio.cluster.emulate.emulation import Emulation
from taglio.cluster.emulate.needs import CannotEmulate
from taglio.progress import Progress, reported

PORT = 6379
_PATIENCE_S = 180.0


def start_devices(made: Emulation, progress: Progress | None = None) -> None:
    """Start every device, the start device as head, without quotas: a start takes seconds of a whole core.

    Raises CannotEmulate with the output of a device that does not start.
    """
    names = [each.name for each in made.cluster.devices if each.name != made.cluster.start]
    with made.without_quotas():
        _wait(made.cluster.start, start_device(made, made.cluster.start))
        others = [(name, start_device(made, name)) for name in names]
        for name, process in reported(others, "starting devices", progress):
            _wait(name, process)


def start_device(made: Emulation, name: str) -> "subprocess.Popen[str]":
    """Begin to start one device; it is up when the returned process exits with 0."""
    head = made.cluster.start
    role = ["--head"] if name == head else ["--address", f"{made.addresses[head]}:{PORT}"]
    words = [
        sys.executable, "-m", "taglio", "device", "start", "--name", name, *role, "--host", made.addresses[name],
        "--threads", str(made.cluster.device(name).threads), "--token", str(made.record.folder / "token"), "--json",
    ]  # fmt: skip
    return made.start(name, words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _wait(name: str, process: "subprocess.Popen[str]") -> None:
    try:
        said = process.communicate(timeout=_PATIENCE_S)[1].strip().splitlines()
    except subprocess.TimeoutExpired:
        process.kill()
        said = [f"not started after {_PATIENCE_S:.0f} s"]
    if process.returncode != 0:
        why = said[-1] if said else f"exit code {process.returncode}"
        raise CannotEmulate(f"{name}: {why.removeprefix('taglio: ')} (--bare emulates only the network)")
