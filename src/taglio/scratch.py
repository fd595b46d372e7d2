"""Temporary folders that do not outlive the processes that made them by much. Holds no artifact."""

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

# What the names of temporary folders begin with.
PREFIX = "taglio-scratch-"
# One that was made a moment ago may not be locked yet.
_YOUNG_S = 60.0


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A temporary folder, removed at the end; what processes that were killed left is removed first."""
    folder, place = _made()
    try:
        yield folder
    finally:
        _remove(folder, place)


def lasting(owner: object) -> Path:
    """A temporary folder that goes with `owner`, at the latest when the process ends."""
    folder, place = _made()
    weakref.finalize(owner, _remove, folder, place)
    return folder


def _made() -> tuple[Path, int]:
    _sweep(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    with contextlib.suppress(OSError):  # a file system without locks: then nobody sweeps either
        fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return folder, place


def _remove(folder: Path, place: int) -> None:
    os.close(place)
    shutil.rmtree(folder, ignore_errors=True)


def _sweep(parent: Path) -> None:
    for folder in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # another user's, in use, or gone meanwhile
            if time.time() - folder.stat().st_mtime < _YOUNG_S:
                continue
            place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(place).st_uid == os.getuid():
                    fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(place)
