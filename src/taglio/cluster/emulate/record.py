"""What an emulation creates on this machine, by name, and its removal. Creates none of it."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from taglio.cluster.emulate import namespaces, quota

FOLDER = Path("/run/taglio-emulate")  # cleared at boot, like everything else of an emulation


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
        """The folder of the devices' files."""
        return FOLDER / str(self.owner)

    def namespace(self, device: str) -> str:
        """The name of a device's network namespace."""
        return f"taglio-{self.owner}-{device}"


def remove(record: EmulationRecord) -> None:
    """Kill everything that runs in an emulation and remove all that it created. Missing parts are no error."""
    quota.destroy(record.group)
    for device in record.devices:
        namespaces.delete(record.namespace(device))
    shutil.rmtree(record.folder, ignore_errors=True)
