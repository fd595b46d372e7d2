"""Base of everything that runs on a device: facts about the device, and a store of files by content hash."""

import os
import uuid
from dataclasses import dataclass, replace
from pathlib import Path

from taglio import artifact
from taglio.cluster.engine.device import DEVICE, STORE, THREADS
from taglio.cluster.engine.store import Store
from taglio.memory import keep_memory
from taglio.profile.machine import Machine, describe
from taglio.runtimes.places import here


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """Facts about a device. `clock` is equal on devices that share a monotonic clock (one kernel, since its boot)."""

    device: str
    machine: Machine
    versions: dict[str, str]
    runtimes: tuple[str, ...]
    threads: int
    clock: str


class Resident(Store):
    """Something that runs on a device: an actor there, or a plain object if this process is on the device."""

    def __init__(self, device: str = "", threads: int = 0, store: Path | None = None) -> None:
        """An actor takes its settings from its process, which the device started."""
        self.device = device or os.environ.get(DEVICE, "")
        self._threads = threads or int(os.environ.get(THREADS, "1"))
        super().__init__(store or Path(os.environ[STORE]))
        keep_memory()

    def facts(self) -> DeviceFacts:
        """Facts about this device."""
        return replace(facts(), device=self.device, threads=self._threads)


def facts() -> DeviceFacts:
    """Facts about the device of this process."""
    runtimes = here()
    return DeviceFacts(
        os.environ.get(DEVICE, ""),
        describe(),
        {**artifact.tools(), "ray": artifact.version_of("ray"), "openvino": artifact.version_of("openvino")},
        runtimes,
        int(os.environ.get(THREADS, "1")),
        clock_name(),
    )


def clock_name() -> str:
    """An identifier of this machine's monotonic clock."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"{uuid.getnode():x}"
