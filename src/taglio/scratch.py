"""Temporary folders, removed when they are no longer needed. Holds no artifact."""

import contextlib
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path

# Prefix of the names of temporary folders.
PREFIX = "taglio-scratch-"


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A temporary folder, removed at the end."""
    with tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def lasting(owner: object) -> Path:
    """A temporary folder that is removed with `owner`, or at the latest when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    weakref.finalize(owner, shutil.rmtree, folder, ignore_errors=True)
    return folder
