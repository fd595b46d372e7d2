"""Ray, loaded when a command for several machines needs it and never on one machine. Starts nothing."""

import importlib
import logging
import os
from typing import Any

from taglio.errors import BadOption

# The version that this was built against; others of the same minor version speak to each other.
TESTED = "2.60"
_QUIET = {
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_DEDUP_LOGS": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_USAGE_STATS_PROMPT_ENABLED": "0",
    # Compiled graphs wait for as long as they are told to; how long is decided in pipeline.py.
    "RAY_CGRAPH_submit_timeout": "600",
    "RAY_CGRAPH_get_timeout": "600",
    "RAY_CGRAPH_teardown_timeout": "5",
}


def ray() -> Any:
    """The library. Raises BadOption with the fix where it is missing."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        found = importlib.import_module("ray")
    except ImportError:
        raise BadOption(
            "several machines need Ray, which is not installed here: pip install 'taglio[cluster]'"
        ) from None
    # What fails is told in one line by whoever asked; Ray would print pages.
    logging.getLogger("ray").setLevel(logging.CRITICAL)
    return found


def part(name: str) -> Any:
    """A module of the library, such as ray.dag."""
    ray()
    found = importlib.import_module(name)
    logging.getLogger(name).setLevel(logging.CRITICAL)
    return found
