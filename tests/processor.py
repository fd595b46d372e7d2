"""What this machine's processor can show, and marks for tests that need more. Decides nothing for taglio itself."""

import pytest

from taglio.runtimes.openvino import BF16
from taglio.runtimes.places import refusal
from taglio.runtimes.processor import listed, sums_saturate

SATURATES = sums_saturate(listed())
"""Whether sums of u8×s8 products saturate in ONNX Runtime here. It knows no cap on its instruction sets."""

needs_bfloat16 = pytest.mark.skipif(
    bool(refusal(BF16)), reason=f"only a processor with bfloat16 can show it: {refusal(BF16)}"
)
needs_wide_sums = pytest.mark.skipif(
    SATURATES, reason="only a processor with VNNI can show it: sums of u8×s8 products saturate here"
)
