"""The part of a host that knows no component: facts about its device, and the files of models by content hash.

Checks the hash of everything that arrives; never holds a whole file in memory.
"""

import logging
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from taglio import artifact, weights
from taglio.cluster.engine.device import DEVICE, STORE, THREADS
from taglio.errors import BadArtifact
from taglio.memory import keep_memory
from taglio.profile.machine import Machine, describe
from taglio.runtimes.places import here

CHUNK_BYTES = 4 * 2**20
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """Facts about a device. `clock` is equal on devices that share a monotonic clock (one kernel, since its boot)."""

    machine: Machine
    versions: dict[str, str]
    runtimes: tuple[str, ...]
    threads: int
    clock: str


class Resident:
    """Something that runs on a device: an actor there, or a plain object if this process is on the device."""

    def __init__(self, device: str = "", threads: int = 0, store: Path | None = None) -> None:
        """An actor takes its settings from its process, which the device started."""
        self.device = device or os.environ.get(DEVICE, "")
        self._threads = threads or int(os.environ.get(THREADS, "1"))
        self._folder = store or Path(os.environ[STORE])
        keep_memory()

    def facts(self) -> DeviceFacts:
        """Facts about this device."""
        return facts(self._threads)

    def missing(self, files: Mapping[str, str]) -> list[str]:
        """The names of those of a model's `files` (hash by name) that are not here; a changed one is logged and counts
        as missing."""
        missing = []
        for name, sha256 in files.items():
            path = self._path(files, name)
            if not path.exists():
                missing.append(name)
            elif (actual := weights.sha256(path)) != sha256:
                _LOG.warning("refused: %s: the component was changed (%.12s, expected %.12s)", path, actual, sha256)
                missing.append(name)
        return missing

    def verified(self, files: Mapping[str, str]) -> Path:
        """The path of the first of a model's `files`, which names the others, after the hashes of all were checked
        again. Raises BadArtifact for a missing or changed file."""
        for name in self.missing(files):
            raise BadArtifact(f"{self._path(files, name)}: the component is missing or was changed")
        return self._path(files, next(iter(files)))

    def receive(self, files: Mapping[str, str], name: str, size_bytes: int, offset: int, chunk: bytes) -> None:
        """Write the next bytes of one of a model's `files`, which is kept once `size_bytes` are here. Raises
        BadArtifact if its hash is another, and OSError if the disk is full."""
        path = self._path(files, name)
        part = path.with_name(f"{path.name}.part")
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with part.open("ab" if offset else "wb") as file:
            file.write(chunk)
        if offset + len(chunk) < size_bytes:
            return
        actual = weights.sha256(part)
        if actual != files[name]:
            part.unlink()
            raise BadArtifact(f"{name} has the hash {actual[:12]}, announced was {files[name][:12]}")
        part.replace(path)

    def _path(self, files: Mapping[str, str], name: str) -> Path:
        """Where one of a model's `files` is: beside the others, in a folder of their own."""
        folder = self._folder / "-".join(sha256[:32] for sha256 in files.values())
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise BadArtifact(f"component file {name} lies outside its directory")
        return path


def facts(threads: int = 0) -> DeviceFacts:
    """Facts about the device of this process, with `threads` (0: those that it was started with)."""
    versions = {**artifact.tools(), "ray": artifact.version_of("ray"), "openvino": artifact.version_of("openvino")}
    threads = threads or int(os.environ.get(THREADS, "1"))
    return DeviceFacts(describe(), versions, here(), threads, clock_name())


def clock_name() -> str:
    """An identifier of this machine's monotonic clock."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"{uuid.getnode():x}"
