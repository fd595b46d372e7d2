"""Records on disk of what each emulation created on this machine, for joining and removing it. Creates none of it."""

import os
import shutil
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from taglio import artifact
from taglio.cluster.emulate import namespaces, quota

FOLDER = Path("/run/taglio-emulate")  # cleared at boot, like everything that it describes
_START_TIME_FIELD = 19  # of /proc/PID/stat, counted after the name


@dataclass(frozen=True, slots=True)
class Place:
    """A device's namespace, address and control group."""

    device: str
    namespace: str
    address: str
    group: Path


@dataclass(frozen=True, slots=True)
class Record:
    """An emulation. `owner_started` (clock ticks since boot) tells the owner from a later process with the same id."""

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
        """The control socket of the links."""
        return self.folder / "control"

    def place(self, device: str) -> Place:
        """The place of a device."""
        return next(place for place in self.places if place.device == device)


def started(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot; None if there is no such process."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[_START_TIME_FIELD])
    except (OSError, IndexError):
        return None


def save(record: Record) -> None:
    """Write the record into its folder atomically."""
    artifact.write_bytes(record.folder / "record.json", msgspec.json.encode(record, enc_hook=str))


def load(folder: Path) -> Record:
    """The record in a folder. Raises OSError or msgspec.MsgspecError."""
    return msgspec.json.decode(
        (folder / "record.json").read_bytes(), type=Record, dec_hook=lambda kind, text: kind(text)
    )


def running() -> list[Record]:
    """Emulations whose owner is alive."""
    return [record for record in _all() if started(record.owner) == record.owner_started]


def remove_leftovers() -> list[Record]:
    """Remove and return the emulations whose owner was killed."""
    gone = [record for record in _all() if started(record.owner) != record.owner_started]
    for record in gone:
        remove(record)
    return gone


def remove(record: Record) -> None:
    """Kill everything that runs in an emulation and remove all that it created. Missing parts are no error."""
    quota.destroy(record.group)
    if record.line:
        with suppress(ProcessLookupError):
            os.kill(record.line, signal.SIGTERM)
    for place in record.places:
        namespaces.delete(place.namespace)
    shutil.rmtree(record.folder, ignore_errors=True)


def _all() -> list[Record]:
    records = []
    for folder in sorted(FOLDER.glob("*")) if FOLDER.exists() else []:
        try:
            records.append(load(folder))
        except (OSError, msgspec.MsgspecError):  # another process is creating or removing it
            if time.time() - folder.stat().st_mtime > quota.PATIENCE_S:
                shutil.rmtree(folder, ignore_errors=True)
    return records
