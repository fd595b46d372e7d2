"""`make test-backends` lends OpenVINO from the environment that it built, behind the core's own packages.

Where it was asked for and is not there, nothing is skipped: the run ends.
"""

import os
import sys
from importlib.util import find_spec

import pytest

from tests.end_to_end.command import ROOT

if "openvino" in os.environ.get("TAGLIO_TEST_BACKENDS", "").split():
    sys.path += map(str, (ROOT / ".backends" / "openvino" / "lib").glob("python*/site-packages"))
    if find_spec("openvino") is None:
        raise pytest.UsageError(f"TAGLIO_TEST_BACKENDS asks for openvino, not in {ROOT / '.backends'}: make backends")
