"""Base of everything that runs on a device: facts about the device, and its files, one per content hash.

Checks the hash of everything that arrives; never holds a whole file in memory.
"""

import logging
import os
import uuid
from collections.abc import Mapping, Sequence
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

    def path(self, sha256: str) -> Path:
        """The path of the file with that hash."""
        return self._folder / f"{sha256}.onnx"

    def missing(self, wanted: Sequence[str]) -> list[str]:
        """Those of `wanted` that are not here; a changed file is logged, removed, and counts as missing."""
        missing = []
        for sha256 in wanted:
            try:
                self.verified(sha256)
            except FileNotFoundError:
                missing.append(sha256)
            except BadArtifact as error:
                _LOG.warning("refused: %s", error)
                self.path(sha256).unlink(missing_ok=True)
                missing.append(sha256)
        return missing

    def verified(self, sha256: str) -> Path:
        """The file's path, with the hash of its bytes checked again. Raises BadArtifact for a changed file."""
        path = self.path(sha256)
        actual = weights.sha256(path)
        if actual != sha256:
            raise BadArtifact(f"{path}: the component was changed ({actual[:12]}, expected {sha256[:12]})")
        return path

    def named(self, files: Mapping[str, str]) -> Path:
        """The first of `files` (hash by relative path), with the others beside it under their names: a model refers to
        its weights by name. All are checked again. Raises BadArtifact for a changed file."""
        folder = self._folder / next(iter(files.values()))
        for name, sha256 in files.items():
            path, stored = folder / name, self.verified(sha256)
            if not path.resolve().is_relative_to(folder.resolve()):
                raise BadArtifact(f"component file {name} lies outside its folder")
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            if path.exists() and not path.samefile(stored):
                path.unlink()
            weights.link(stored, path)
        return folder / next(iter(files))

    def receive(self, sha256: str, size_bytes: int, offset: int, chunk: bytes) -> None:
        """Write the next bytes of a file, which is kept once `size_bytes` are here. Raises BadArtifact if its hash is
        another, and OSError if the disk is full."""
        path = self.path(sha256)
        part = path.with_suffix(".part")
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with part.open("ab" if offset else "wb") as file:
            file.write(chunk)
        if offset + len(chunk) < size_bytes:
            return
        actual = weights.sha256(part)
        if actual != sha256:
            part.unlink()
            raise BadArtifact(f"a component has the hash {actual[:12]}, announced was {sha256[:12]}")
        part.replace(path)


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
