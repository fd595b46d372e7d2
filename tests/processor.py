"""What this machine can show, and marks for tests that need more. Decides nothing for taglio itself."""

from importlib.util import find_spec

import pytest

from taglio.runtimes.places import bfloat16_refusal
from taglio.runtimes.processor import listed, sums_saturate

SATURATES = sums_saturate(listed())
"""Whether sums of u8×s8 products saturate in ONNX Runtime here. It knows no cap on its instruction sets."""

needs_bfloat16 = pytest.mark.skipif(
    bool(bfloat16_refusal()), reason=f"only a processor with bfloat16 can show it: {bfloat16_refusal()}"
)
needs_wide_sums = pytest.mark.skipif(
    SATURATES, reason="only a processor with VNNI can show it: sums of u8×s8 products saturate here"
)
needs_openvino = pytest.mark.skipif(
    find_spec("openvino") is None, reason="needs openvino: pip install 'taglio[openvino]'"
)
