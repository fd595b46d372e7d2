"""`make test-backends` lends OpenVINO from the environment that it built, behind the core's own packages."""

import os
import sys

from tests.end_to_end.command import ROOT

if "openvino" in os.environ.get("TAGLIO_TEST_BACKENDS", "").split():
    sys.path += map(str, (ROOT / ".backends" / "openvino" / "lib").glob("python*/site-packages"))
