"""Import Ray, only when a command for several machines needs it. Starts nothing."""

import importlib
import importlib.util
import logging
import os
from typing import Any

from taglio.errors import BadOption

# Of devices and of programs that use them.
SETTINGS = {
    # Messages of any size are sent inside the call: otherwise the receiver would fetch them, which takes another round
    # trip over the link.
    "RAY_max_direct_call_object_size": str(2**28),
    "RAY_task_rpc_inlined_bytes_limit": str(2**29),
    # Ray's records of each message are not used.
    "RAY_task_events_report_interval_ms": "0",
}
_PROGRAM = {
    **SETTINGS,
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_USAGE_STATS_PROMPT_ENABLED": "0",
}


def installed() -> None:
    """Raise BadOption with the fix if Ray is not installed. Does not import it, which takes a third of a second."""
    if importlib.util.find_spec("ray") is None:
        raise BadOption("several machines need Ray, which is not installed here: pip install 'taglio[cluster]'")


def ray() -> Any:
    """The Ray module. Raises BadOption if it is not installed."""
    installed()
    for name, value in _PROGRAM.items():
        os.environ.setdefault(name, value)
    module = importlib.import_module("ray")
    # Callers report failures in one line; Ray would print pages.
    logging.getLogger("ray").setLevel(logging.CRITICAL)
    return module
