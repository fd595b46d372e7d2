"""How much memory this process may use and does use; lists of arrays that spill to a file when memory is short.

The memory of sessions is not modelled: it is measured once a session is open, and the next one is assumed to need as
much.
"""

import ctypes
import gc
import os
import resource
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np

from taglio.scratch import lasting

# Shares of the limit: outputs kept for comparison, samples, events of a profiler.
OUTPUTS, SAMPLES, EVENTS = 0.125, 0.25, 0.125
# Share of the limit above which freed memory is returned to the system before a large step; below it, collecting is not
# worth the time.
_LEAST_TAKEN = 0.25
# glibc's mallopt(3): options and bytes. By default a process requests new pages for every large copy, which takes 0.5
# to 2 ms per megabyte.
_MALLOPT = {-3: 32 * 2**20, -1: 128 * 2**20}  # M_MMAP_THRESHOLD (the most it takes), M_TRIM_THRESHOLD
_CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def machine_bytes() -> int:
    """The machine's physical memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def free_bytes() -> int:
    """Memory that a process could allocate now without swapping: the machine's, or less if a container limits it."""
    free = machine_bytes()
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) * 1024
    for limit_file, usage_file in _CGROUPS:
        limit, used = "".join(_lines(limit_file)), "".join(_lines(usage_file))
        if limit.isdigit() and used.isdigit():
            free = min(free, max(0, int(limit) - int(used)))
    return free


def used_bytes() -> int:
    """Memory of this process now, without pages of mapped files: the system takes these back when memory is short."""
    return _status_bytes(os.getpid(), "RssAnon:", "RssShmem:") or peak_bytes()


def resident_bytes(pid: int) -> int | None:
    """Memory of a process now, with pages of mapped files; None if it has ended, or this system does not say."""
    return _status_bytes(pid, "VmRSS:")


def _status_bytes(pid: int, *fields: str) -> int | None:
    """The sum of fields of a process's status; None if it has none of them."""
    sizes = [int(line.split()[1]) * 1024 for line in _lines(f"/proc/{pid}/status") if line.startswith(fields)]
    return sum(sizes) if sizes else None


def peak_bytes() -> int:
    """The largest memory that this process has used, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def size_text(count: float) -> str:
    """Bytes in words: "1.5 GB" or "300 MB"."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def keep_memory() -> None:
    """Let this process reuse freed memory for later messages, until `trim` is called. Does nothing if the C library
    cannot."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, size in _MALLOPT.items():
            mallopt(option, size)


def trim() -> None:
    """Return freed memory, which the C library keeps for reuse, to the system."""
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)


def make_room(limit_bytes: float | None) -> None:
    """Collect garbage and `trim`, if this process uses a good part of `limit_bytes` (None: no limit)."""
    if limit_bytes is not None and used_bytes() > _LEAST_TAKEN * limit_bytes:
        gc.collect()
        trim()


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


class Shelf(Sequence[list[Any]]):
    """Lists of arrays: in memory up to `room_bytes` (None: all), beyond that in a file."""

    def __init__(self, items: Iterable[Sequence[Any]] = (), room_bytes: float | None = None) -> None:
        self._room = room_bytes
        self._held: list[list[Any] | tuple[int, list[np.ndarray]]] = []
        self._file: Path | None = None
        for arrays in items:
            self.append(arrays)

    def append(self, arrays: Sequence[Any]) -> None:
        """Append a list of arrays."""
        size = sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))
        plain = all(isinstance(array, np.ndarray) and array.dtype.kind in "fiub" for array in arrays)
        if self._room is None or not plain or size <= self._room:
            self._room = None if self._room is None else self._room - size
            self._held.append(list(arrays))
            return
        if self._file is None:
            self._file = lasting(self) / "arrays.bin"
        with self._file.open("ab") as file:
            start = file.tell()
            for array in arrays:
                file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        # For each array in the file, a broadcast array of one value keeps the shape and type.
        self._held.append((start, [np.broadcast_to(np.zeros((), array.dtype), array.shape) for array in arrays]))

    def shapes(self, index: int) -> list[tuple[int, ...]]:
        """The shapes of one list of arrays, without reading it."""
        entry = self._held[index]
        return [array.shape for array in (entry if isinstance(entry, list) else entry[1])]

    def __len__(self) -> int:
        return len(self._held)

    @overload
    def __getitem__(self, index: int) -> list[Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[list[Any]]: ...
    def __getitem__(self, index: int | slice) -> list[Any] | list[list[Any]]:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        entry = self._held[index]
        if isinstance(entry, list):
            return entry
        assert self._file is not None
        start, templates = entry
        arrays = []
        for template in templates:
            arrays.append(np.fromfile(self._file, template.dtype, template.size, offset=start).reshape(template.shape))
            start += template.nbytes
        return arrays
