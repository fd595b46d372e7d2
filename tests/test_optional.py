"""Packages that only some users have."""

import subprocess
import sys

import pytest

from taglio.errors import BadOption
from taglio.optional import optional
from tests.end_to_end.command import ENVIRONMENT

# In a process of its own: a signal reaches whatever runs in the main thread.
STOPPED = """
import importlib, signal
from contextlib import suppress
from taglio.optional import optional

def stopped(name):
    with suppress(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    raise ImportError("initialization failed")

importlib.import_module = stopped
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    optional("openvino", "pip install openvino")
except KeyboardInterrupt:
    print("stopped", signal.getsignal(signal.SIGINT) is signal.default_int_handler)
"""


def test_a_missing_package_is_said() -> None:
    with pytest.raises(BadOption, match="pip install nothing"):
        optional("no_such_package", "pip install nothing")


def test_ctrl_c_while_a_package_is_loaded_is_neither_dropped_nor_a_missing_package() -> None:
    """OpenVINO's modules made an ImportError of it, and the command went on without OpenVINO."""
    ran = subprocess.run([sys.executable, "-c", STOPPED], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert ran.stdout == "stopped True\n"
