"""The devices that run on this machine: their folders and keeper processes. Starts nothing."""

import os
import signal
import stat
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from taglio import artifact
from taglio.cluster.devices import nearest
from taglio.cluster.engine import lock
from taglio.errors import BadArtifact, BadDevice, BadOption

_BELOW = "/tmp/taglio-"  # noqa: S108 - `prepare` refuses a folder that others may write to
_FILE, _PID, LOG = "device.json", "pid", "log"


@dataclass(frozen=True, slots=True)
class LocalDevice:
    """A device as it was started: `host` is its listening address, `address` that of the head; its `token` file, and
    its `tls` folder of certificates, if any."""

    name: str
    host: str
    address: str
    head: bool
    threads: int
    token: str
    tls: str | None

    @property
    def folder(self) -> Path:
        """The folder of its files."""
        return home() / self.name

    def access(self) -> dict[str, str]:
        """Environment variables by which Ray gets its token and certificates. Raises BadOption."""
        return lock.environment(Path(self.token), Path(self.tls) if self.tls else None)


def home() -> Path:
    """The folder of this user's devices: TAGLIO_DEVICES or one below /tmp."""
    return Path(os.environ.get("TAGLIO_DEVICES") or f"{_BELOW}{os.getuid()}")


def prepare(name: str) -> Path:
    """Make the folder of the device called `name`, accessible only to its owner. Raises BadOption."""
    base = home()
    folder = base / name
    # A Unix socket's path has at most 107 bytes, and Ray's sockets are deep below a device's folder.
    if len(os.fsencode(folder)) > 40 + len(_BELOW):
        raise BadOption(f"{folder}: too long for the sockets in it: shorten the name or set TAGLIO_DEVICES=/short/path")
    base.mkdir(parents=True, exist_ok=True, mode=0o700)
    status = base.stat()
    if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise BadOption(
            f"{base}: other users can write there: remove it, or set TAGLIO_DEVICES to a directory of your own"
        )
    folder.mkdir(exist_ok=True, mode=0o700)
    return folder


def remember(device: LocalDevice, pid: int) -> None:
    """Record a device and its keeper process."""
    artifact.write_bytes(device.folder / _FILE, msgspec.json.encode(device))
    artifact.write_bytes(device.folder / _PID, str(pid).encode())


def running() -> list[LocalDevice]:
    """Devices that run on this machine, sorted by name."""
    devices = []
    for path in sorted(home().glob(f"*/{_FILE}")):
        if keeper(path.parent) is not None:
            try:
                devices.append(msgspec.json.decode(path.read_bytes(), type=LocalDevice))
            except (OSError, msgspec.DecodeError) as error:
                raise BadArtifact(f"{path}: damaged ({error}): taglio cluster stop --name {path.parent.name}") from None
    return devices


def one(name: str) -> LocalDevice:
    """The device called `name`. Raises BadDevice if it does not run here."""
    devices = {device.name: device for device in running()}
    if name not in devices:
        raise BadDevice(f'no device "{name}" runs on this machine{nearest(name, devices)}')
    return devices[name]


def keeper(folder: Path) -> int | None:
    """Process id of the keeper of the device in `folder`; None if it has ended."""
    try:
        pid = int((folder / _PID).read_text())
        os.kill(pid, 0)
    except (OSError, ValueError):
        return None
    try:  # the id may belong to another process by now
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return pid
    return pid if b"taglio.cluster.engine.keeper" in words else None


def stop(devices: Sequence[LocalDevice]) -> None:
    """End the processes of devices, all at once. Raises BadDevice if they do not end."""
    for device in devices:
        if (pid := keeper(device.folder)) is not None:
            os.kill(pid, signal.SIGTERM)
    end = time.monotonic() + 30.0
    for device in devices:
        while (pid := keeper(device.folder)) is not None:
            if time.monotonic() > end:
                raise BadDevice(
                    f'device "{device.name}" does not stop: kill process {pid} and see {device.folder / LOG}'
                )
            time.sleep(0.05)
        for name in (_PID, _FILE):
            (device.folder / name).unlink(missing_ok=True)
