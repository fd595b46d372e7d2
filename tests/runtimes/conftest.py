"""`make test-backends` lends OpenVINO from the environment that it built, behind the core's own packages.

Where it was asked for and is not there, nothing is skipped: the run ends.
"""

import os
import sys
from importlib.util import find_spec

import pytest

from taglio.compare.environments import folder

if "openvino" in os.environ.get("TAGLIO_TEST_BACKENDS", "").split():
    sys.path += map(str, (folder() / "openvino" / "lib").glob("python*/site-packages"))
    if find_spec("openvino") is None:
        raise pytest.UsageError(
            f"TAGLIO_TEST_BACKENDS asks for openvino, not in {folder()}: taglio backends add openvino"
        )
