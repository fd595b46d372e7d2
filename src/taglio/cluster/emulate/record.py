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
class EmulationRecord:
    """An emulation of the process `owner`; its `devices` are in the order of their addresses."""

    owner: int
    devices: tuple[str, ...]

    @property
    def group(self) -> Path:
        """The control group with one of each device."""
        hierarchy = quota.hierarchy()
        assert hierarchy is not None, "without one nothing is emulated"
        return hierarchy / f"taglio-{self.owner}"

    @property
    def folder(self) -> Path:
        """The folder of the record."""
        return FOLDER / str(self.owner)

    @property
    def links(self) -> Path:
        """The file of its links, as they are now."""
        return self.folder / "links.json"

    def namespace(self, device: str) -> str:
        """The name of a device's network namespace."""
        return f"taglio-{self.owner}-{device}"


def save(record: EmulationRecord) -> None:
    """Write the record into its folder atomically."""
    artifact.write_bytes(record.folder / "record.json", msgspec.json.encode(record))


def load(folder: Path) -> EmulationRecord:
    """The record in a folder. Raises OSError or msgspec.MsgspecError."""
    return msgspec.json.decode((folder / "record.json").read_bytes(), type=EmulationRecord)


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
    for device in record.devices:
        namespaces.delete(record.namespace(device))
    shutil.rmtree(record.folder, ignore_errors=True)
