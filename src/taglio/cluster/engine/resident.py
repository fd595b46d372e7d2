"""What all that we run on a device offers: what the device is, and a store to send files to by content hash."""

import os
import resource
import uuid
from dataclasses import dataclass, replace
from pathlib import Path

from taglio import artifact
from taglio.cluster.engine.device import DEVICE, STORE, THREADS
from taglio.cluster.engine.parcel import keep_memory
from taglio.cluster.engine.store import Store
from taglio.profile.machine import Machine, describe
from taglio.runtimes.onnxruntime import sums_saturate
from taglio.runtimes.places import here


@dataclass(frozen=True, slots=True)
class Facts:
    """What a device says of itself. `clock` is the same where the monotonic clock is (one kernel, since it started);
    `saturates` as sums_saturate() says."""

    device: str
    machine: Machine
    versions: dict[str, str]
    runtimes: tuple[str, ...]
    threads: int
    pid: int
    memory_bytes: int
    clock: str
    saturates: bool


class Resident:
    """What lives on a device: an actor there, or an object of ours where we are on it ourselves."""

    def __init__(self, device: str = "", threads: int = 0, store: Path | None = None) -> None:
        """An actor learns who it is from its process, which the device started."""
        self.device = device or os.environ.get(DEVICE, "")
        self._threads = threads or int(os.environ.get(THREADS, "1"))
        self.store = Store(store or Path(os.environ[STORE]))
        keep_memory()

    def facts(self) -> Facts:
        """What this device is."""
        return replace(facts(), device=self.device, threads=self._threads)

    def missing(self, wanted: list[str]) -> list[str]:
        """Hashes of files that must be sent."""
        return self.store.missing(wanted)

    def begin(self, sha256: str, size_bytes: int) -> None:
        """A file is about to arrive."""
        self.store.begin(sha256, size_bytes)

    def append(self, sha256: str, chunk: bytes) -> None:
        """Some of its bytes."""
        self.store.append(sha256, chunk)

    def finish(self, sha256: str) -> None:
        """All have been sent."""
        self.store.finish(sha256)


def facts() -> Facts:
    """What the device of this process is."""
    runtimes = here()
    return Facts(
        os.environ.get(DEVICE, ""),
        describe(),
        {**artifact.tools(), "ray": artifact.version_of("ray"), "openvino": artifact.version_of("openvino")},
        runtimes,
        int(os.environ.get(THREADS, "1")),
        os.getpid(),
        resident_bytes(),
        clock_name(),
        sums_saturate(),
    )


def clock_name() -> str:
    """What tells this machine's monotonic clock from another's."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"{uuid.getnode():x}"


def resident_bytes() -> int:
    """Memory that this process holds; where the system does not tell, the most that it ever held."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return pages * resource.getpagesize()
