"""Records on disk of what each emulation created on this machine, for joining and removing it. Creates none of it."""

import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from taglio import artifact
from taglio.cluster.emulate import namespaces, quota

FOLDER = Path("/run/taglio-emulate")  # cleared at boot, like everything that it describes


@dataclass(frozen=True, slots=True)
class Place:
    """A device's namespace, address and control group."""

    device: str
    namespace: str
    address: str
    group: Path


@dataclass(frozen=True, slots=True)
class EmulationRecord:
    """An emulation of the process `owner`."""

    owner: int
    folder: Path
    cluster_file: str
    cluster_text: str
    group: Path
    places: tuple[Place, ...]

    @property
    def control(self) -> Path:
        """The control socket of the links."""
        return self.folder / "control"

    def place(self, device: str) -> Place:
        """The place of a device."""
        return next(place for place in self.places if place.device == device)


def save(record: EmulationRecord) -> None:
    """Write the record into its folder atomically."""
    artifact.write_bytes(record.folder / "record.json", msgspec.json.encode(record, enc_hook=str))


def load(folder: Path) -> EmulationRecord:
    """The record in a folder. Raises OSError or msgspec.MsgspecError."""
    return msgspec.json.decode(
        (folder / "record.json").read_bytes(), type=EmulationRecord, dec_hook=lambda kind, text: kind(text)
    )


def running() -> list[EmulationRecord]:
    """Emulations whose owner is alive."""
    records = []
    for folder in sorted(FOLDER.glob("*")):
        with suppress(OSError, msgspec.MsgspecError):  # another process is creating or removing it
            record = load(folder)
            if Path(f"/proc/{record.owner}").exists():
                records.append(record)
    return records


def remove(record: EmulationRecord) -> None:
    """Kill everything that runs in an emulation and remove all that it created. Missing parts are no error."""
    quota.destroy(record.group)
    for place in record.places:
        namespaces.delete(place.namespace)
    shutil.rmtree(record.folder, ignore_errors=True)
