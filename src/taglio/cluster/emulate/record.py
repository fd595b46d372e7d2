"""What one emulation has made on this machine, on file, so that it can be joined and removed. Makes none of it."""

import os
import shutil
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from taglio.cluster.devices import EMULATION
from taglio.cluster.emulate import namespaces, quota

FOLDER = Path("/run/taglio-emulate")  # gone at the next boot, as is all that it describes
ENVIRONMENT = EMULATION
_START_TIME_FIELD = 19  # of /proc/PID/stat, counted after the name


@dataclass(frozen=True, slots=True)
class Place:
    """A device: its namespace, its address there and its control group."""

    device: str
    namespace: str
    address: str
    group: Path


@dataclass(frozen=True, slots=True)
class Record:
    """An emulation. `owner_started` tells the owner from a later process of the same id (clock ticks since boot)."""

    owner: int
    owner_started: int
    folder: Path
    cluster_file: str
    cluster_text: str
    scenario: str | None
    group: Path
    places: tuple[Place, ...]
    line: int = 0

    @property
    def control(self) -> Path:
        """The socket that takes orders for the links."""
        return self.folder / "control"

    def place(self, device: str) -> Place:
        """Where a device is."""
        return next(each for each in self.places if each.device == device)


def started(pid: int) -> int | None:
    """When a process was started, in clock ticks since boot; None where there is none."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[_START_TIME_FIELD])
    except (OSError, IndexError):
        return None


def save(record: Record) -> None:
    """Write it into its folder, whole."""
    part = record.folder / "record.part"
    part.write_bytes(msgspec.json.encode(record, enc_hook=str))
    part.rename(record.folder / "record.json")


def load(folder: Path) -> Record:
    """The record in a folder. Raises OSError or msgspec.MsgspecError."""
    return msgspec.json.decode(
        (folder / "record.json").read_bytes(), type=Record, dec_hook=lambda kind, text: kind(text)
    )


def running() -> list[Record]:
    """Emulations whose owner is alive."""
    return [each for each in _all() if started(each.owner) == each.owner_started]


def remove_leftovers() -> list[Record]:
    """Remove what emulations left whose owner was killed; returns them."""
    gone = [each for each in _all() if started(each.owner) != each.owner_started]
    for each in gone:
        remove(each)
    return gone


def remove(record: Record) -> None:
    """Kill what runs in an emulation and remove all that it made. What is gone already is no error."""
    quota.destroy(record.group)
    if record.line:
        with suppress(ProcessLookupError):
            os.kill(record.line, signal.SIGTERM)
    for place in record.places:
        namespaces.delete(place.namespace)
    shutil.rmtree(record.folder, ignore_errors=True)


def _all() -> list[Record]:
    found = []
    for folder in sorted(FOLDER.glob("*")) if FOLDER.exists() else []:
        try:
            found.append(load(folder))
        except (OSError, msgspec.MsgspecError):  # another is being made or removed
            if time.time() - folder.stat().st_mtime > quota.PATIENCE_S:
                shutil.rmtree(folder, ignore_errors=True)
    return found
