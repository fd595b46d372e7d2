"""Temporary folders, removed soon after the process that made them ends. Holds no artifact."""

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

# Prefix of the names of temporary folders.
PREFIX = "taglio-scratch-"
# A folder made a moment ago may not be locked yet.
_YOUNG_S = 60.0


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A temporary folder, removed at the end; folders left by killed processes are removed first."""
    folder, place = _made()
    try:
        yield folder
    finally:
        _remove(folder, place)


def lasting(owner: object) -> Path:
    """A temporary folder that is removed with `owner`, or at the latest when the process ends."""
    folder, place = _made()
    weakref.finalize(owner, _remove, folder, place)
    return folder


def _made() -> tuple[Path, int]:
    _sweep(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    with contextlib.suppress(OSError):  # a file system without locks: then no process sweeps either
        fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return folder, place


def _remove(folder: Path, place: int) -> None:
    os.close(place)
    shutil.rmtree(folder, ignore_errors=True)


def _sweep(parent: Path) -> None:
    for folder in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # another user's, in use, or gone meanwhile
            if abs(time.time() - folder.stat().st_mtime) < _YOUNG_S:  # the clock may have been set back
                continue
            place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(place).st_uid == os.getuid():
                    fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(place)
