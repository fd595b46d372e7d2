"""Find, by trying, which places (runtimes) work on this machine, and whether bfloat16 does. Times nothing.

A place is named after its runtime: `onnxruntime` and `openvino`. Each place is tried on a small network once per
process: it must open the network and answer as ONNX Runtime does in float32, apart from rounding. So are bfloat16 in
OpenVINO and the places on a GPU: `onnxruntime-cuda`, `onnxruntime-cuda-tf32` and `onnxruntime-cuda-f16`.
"""

from functools import cache
from math import isinf

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.parser import parse_model

from taglio.errors import BadOption, TaglioError, one_line
from taglio.runtimes import cuda, onnxruntime, openvino
from taglio.runtimes.difference import difference
from taglio.runtimes.onnxruntime import SessionOptions, open_session, run_session
from taglio.runtimes.openvino_marks import note_precision
from taglio.runtimes.session import RUNTIMES, WHOLE, Session, opener, runtime_version, why_failed
from taglio.scratch import scratch

AUTO = "auto"
# The relative L2 distance from float32 that rounding explains: bfloat16 has 8 significant bits, the others 11.
_BFLOAT16_ROUNDING, _ROUNDING = 0.02, {cuda.TF32: 0.003, cuda.F16: 0.003}
_LEAST_ROUNDING = 1e-4


def here() -> tuple[str, ...]:
    """The places of this machine that can be profiled for any model, ONNX Runtime first."""
    return tuple(name for name in RUNTIMES if name not in WHOLE and not refusal(name))


@cache
def refusal(place: str) -> str:
    """Why `place` does not work on this machine, or "" if it does."""
    if place == onnxruntime.NAME:
        return ""
    if place in cuda.PLACES and (reason := cuda.refusal()):
        return reason
    try:
        _, answer, wanted = _tried(place, _trial())
    except TaglioError as error:
        return one_line(error)
    except Exception as error:  # another version of a runtime may fail in any way
        return f"{place} {runtime_version(place)} failed on a small network: {why_failed(error, 200)}"
    return misfit(place, answer, wanted, _ROUNDING.get(place, _LEAST_ROUNDING))


@cache
def bfloat16_refusal() -> str:
    """Why OpenVINO does not compute in bfloat16 on this machine, or "" if it does."""
    if reason := refusal(openvino.NAME):
        return reason
    if "BF16" not in openvino.capabilities():
        return f"OpenVINO {openvino.version()} has no bfloat16 on this processor, only {_precisions()}"
    low = _trial()
    note_precision(low, ())
    try:
        session, answer, wanted = _tried(openvino.NAME, low)
    except Exception as error:  # another version of OpenVINO may fail in any way
        return f"openvino {openvino.version()} failed on a small network in bfloat16: {why_failed(error, 200)}"
    if isinstance(session, openvino.OpenVinoSession) and session.precision != "bf16":
        return f"OpenVINO {openvino.version()} computes in {session.precision} here although bf16 was requested"
    return misfit("bfloat16 in openvino", answer, wanted, _BFLOAT16_ROUNDING)


def _tried(place: str, proto: onnx.ModelProto) -> tuple[Session, np.ndarray, np.ndarray]:
    """A session of `proto` in a place, its answer, and that of ONNX Runtime."""
    feed = {"x": np.random.default_rng(1).standard_normal((1, 4, 12, 12)).astype(np.float32)}
    with scratch() as folder:
        path = folder / "trial.onnx"
        onnx.save(proto, path)
        session = opener(place)(path, SessionOptions(1))
        (answer,) = session.run(["y"], feed)
    (wanted,) = run_session(open_session(proto, SessionOptions(1)), ["y"], feed, "a trial")
    return session, answer, wanted


def require_here(place: str, what: str) -> None:
    """Raises BadOption, naming `what`, if `place` does not work on this machine."""
    opener(place)
    reason = refusal(place)
    if reason:
        raise BadOption(f"{what} runs in {place}: {reason}")


def misfit(place: str, answer: np.ndarray, wanted: np.ndarray, rounding: float) -> str:
    """What is wrong with the `answer` of `place`, if float32 answers `wanted`; "" if a relative L2 distance of
    `rounding` explains it."""
    distance = difference(wanted, answer)
    if distance <= rounding:
        return ""
    if isinf(distance):
        return f"{place} computes wrongly here: a small network gives {answer.shape} instead of {wanted.shape}, or NaN"
    return f"{place} computes wrongly here: a small network is {distance:.1%} off"


def _precisions() -> str:
    precisions = [precision for precision in openvino.capabilities() if precision not in ("BIN", "EXPORT_IMPORT")]
    return " and ".join(precisions)


def _trial() -> onnx.ModelProto:
    """A network of a convolution, an activation and a matrix product, on which networks spend most of their time."""
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((8, 4, 3, 3)) / 6.0,
        "v": rng.standard_normal((144, 16)) / 12.0,
    }
    network = parse_model(
        """<ir_version: 8, opset_import: ["" : 13]>
        trial (float[1, 4, 12, 12] x) => (float[8, 16] y) <int64[2] shape = {8, 144}> {
            [conv] c = Conv <pads = [1, 1, 1, 1]> (x, w)
            [relu] r = Relu (c)
            [flat] flat = Reshape (r, shape)
            [product] y = MatMul (flat, v)
        }"""
    )
    arrays = (numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items())
    network.graph.initializer.extend(arrays)
    return network
