"""The row that opens or runs, in a file mapped by two processes: writing it costs nothing while rows are timed."""

import mmap
import struct
from pathlib import Path

_FORM = struct.Struct("<qq")


class Marker:
    """A row's index and an increasing count; the index is -1 until the first row opens."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(_FORM.pack(-1, 0))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _FORM.size)

    def set(self, index: int) -> None:
        """Record that row `index` is about to open or to run."""
        _, count = self.read()
        self._map[:] = _FORM.pack(index, count + 1)

    def read(self) -> tuple[int, int]:
        """The index and the count."""
        index, count = _FORM.unpack(self._map[:])
        return int(index), int(count)
