"""Limit the threads of NumPy's linear algebra, which reads its limit when NumPy is imported. Imports nothing heavy."""

import argparse
import contextlib
import json
import os
import sys
from pathlib import Path

# OpenBLAS is in NumPy's own packages, MKL in Anaconda's, Accelerate in those for macOS.
_VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


def limit_threads(options: argparse.Namespace) -> None:
    """Let fits use as many threads as sessions do: `--threads`, or those of the workspace. What the environment says
    has precedence."""
    threads = getattr(options, "threads", None) or _of_workspace(getattr(options, "folder", None))
    if threads and "numpy" not in sys.modules:
        for name in _VARIABLES:
            os.environ.setdefault(name, str(threads))


def _of_workspace(folder: Path | None) -> int | None:
    """The threads that a workspace was profiled with; None if it does not say."""
    if folder is not None:
        with contextlib.suppress(Exception):  # of a damaged file, which the command names
            return int(json.loads((folder / "setup.json").read_bytes())["body"]["threads"])
    return None
