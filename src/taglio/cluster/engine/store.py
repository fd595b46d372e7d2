"""A device's components, one file per content hash. Checks the size and hash of everything that arrives; never holds a
whole file in memory."""

import logging
from collections.abc import Sequence
from pathlib import Path

from taglio import weights
from taglio.errors import BadArtifact

# ONNX files are protocol buffers, at most 2 GiB.
LARGEST_BYTES = 2**31
CHUNK_BYTES = 4 * 2**20
_LOG = logging.getLogger(__name__)


class Store:
    """The folder of a device's components."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._arriving: dict[str, tuple[Path, int]] = {}

    def path(self, sha256: str) -> Path:
        """The path of the component with that hash. Raises BadArtifact for an invalid hash."""
        if len(sha256) != 64 or set(sha256) - set("0123456789abcdef"):
            raise BadArtifact(f"{sha256[:80]!r} is not a SHA-256 hash")
        return self._folder / f"{sha256}.onnx"

    def missing(self, wanted: Sequence[str]) -> list[str]:
        """Those of `wanted` that are not here; a changed file is logged, removed, and counts as missing."""
        found = []
        for sha256 in wanted:
            try:
                self.verified(sha256)
            except FileNotFoundError:
                found.append(sha256)
            except BadArtifact as error:
                _LOG.warning("refused: %s", error)
                self.path(sha256).unlink(missing_ok=True)
                found.append(sha256)
        return found

    def verified(self, sha256: str) -> Path:
        """The component's path, with the hash of its bytes checked again. Raises BadArtifact for a changed file."""
        path = self.path(sha256)
        actual = weights.sha256(path)
        if actual != sha256:
            raise BadArtifact(f"{path}: the component was changed ({actual[:12]}, expected {sha256[:12]})")
        return path

    def begin(self, sha256: str, size_bytes: int) -> None:
        """Expect a component. Raises BadArtifact for an impossible size."""
        if not 0 < size_bytes <= LARGEST_BYTES:
            raise BadArtifact(f"component {sha256[:12]} would be {size_bytes} bytes, the limit is {LARGEST_BYTES}")
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        part = self.path(sha256).with_suffix(".part")
        part.write_bytes(b"")
        self._arriving[sha256] = (part, size_bytes)

    def append(self, sha256: str, chunk: bytes) -> None:
        """Add the next bytes. Raises BadArtifact for more bytes than announced."""
        part, size_bytes = self._arriving[sha256]
        if part.stat().st_size + len(chunk) > size_bytes:
            part.unlink()
            raise BadArtifact(f"component {sha256[:12]} is longer than the {size_bytes} bytes announced")
        with part.open("ab") as file:
            file.write(chunk)

    def finish(self, sha256: str) -> None:
        """Keep the component. Raises BadArtifact if its size or hash is not as announced."""
        part, _ = self._arriving.pop(sha256)
        actual = weights.sha256(part)
        if actual != sha256:
            part.unlink()
            _LOG.warning("refused: a component arrived as %s, announced as %s", actual[:12], sha256[:12])
            raise BadArtifact(f"a component arrived as {actual[:12]}, announced as {sha256[:12]}")
        part.replace(self.path(sha256))
