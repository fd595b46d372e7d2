"""Ray, loaded when a command for several machines needs it and never on one machine. Starts nothing."""

import importlib
import logging
import os
from typing import Any

from taglio.errors import BadOption

# The version that this was built against; others of the same minor version speak to each other.
TESTED = "2.60"
# A message travels in the call that brings it, whatever its size: else its receiver would have to ask for it, which
# takes two more ways over the link.
INLINE = {"RAY_max_direct_call_object_size": str(2**28), "RAY_task_rpc_inlined_bytes_limit": str(2**29)}
# What a restart of the head may take, in seconds, before devices start anew and programs end.
HEAD = {"RAY_gcs_rpc_server_reconnect_timeout_s": "120"}
_QUIET = {
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_DEDUP_LOGS": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_USAGE_STATS_PROMPT_ENABLED": "0",
    # Nobody looks at what Ray records of each message.
    "RAY_task_events_report_interval_ms": "0",
    **INLINE,
    **HEAD,
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
