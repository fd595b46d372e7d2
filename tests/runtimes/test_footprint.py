"""What a session is expected to take."""

import numpy as np

from taglio.runtimes.footprint import session_bytes
from taglio.runtimes.onnxruntime import NAME
from taglio.runtimes.openvino import NAME as OPENVINO
from tests.models import parsed


def test_openvino_unpacks_weights_that_are_quantised_by_blocks() -> None:
    """A model of 314 MB took 724 MB there with its weights in int4, and 693 MB in float."""
    product = "y = com.microsoft.MatMulNBits <K = 64, N = 64, bits = 4, block_size = 32> (x, w, s)"
    constants = {"w": np.zeros((64, 2, 16), np.uint8), "s": np.ones(128)}
    proto = parsed(f"(float[1, 64] x) => (float[1, 64] y) {{ {product} }}", constants)
    assert session_bytes(proto, OPENVINO) > 2.0 * 4 * 64 * 64 > session_bytes(proto, NAME)
