"""A device's components and their weights, one file per content hash. Checks the hash of everything that arrives; never
holds a whole file in memory."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from taglio import weights
from taglio.errors import BadArtifact

CHUNK_BYTES = 4 * 2**20
_LOG = logging.getLogger(__name__)


class Store:
    """The folder of a device's files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

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
            _LOG.warning("refused: a component has the hash %s, announced was %s", actual[:12], sha256[:12])
            raise BadArtifact(f"a component has the hash {actual[:12]}, announced was {sha256[:12]}")
        part.replace(path)
