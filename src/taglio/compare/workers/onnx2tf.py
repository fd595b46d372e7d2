"""ONNX → TensorFlow SavedModel by onnx2tf, in an environment of its own: its pins conflict with LiteRT's tools."""

from pathlib import Path

import numpy as np
import onnx2tf

from taglio.compare.request import Request
from taglio.compare.workers.contract import Data, Refused

# onnx2tf fetches this file from the network to check its own work; one of ours in its place keeps it at home.
_SAMPLE = Path("calibration_image_sample_data_20x128x128x3_float32.npy")


def versions() -> dict[str, str]:
    """Of the tool."""
    return {"onnx2tf": str(onnx2tf.__version__)}


def make(_: Request, __: Data) -> None:
    """A converter runs nothing."""
    raise Refused("onnx2tf converts and runs nothing")


def convert(request: Request) -> dict[str, str]:
    """Write the SavedModel of `request.onnx` below the folder. Raises Refused, which names the operator."""
    target = Path(request.folder) / "saved_model"
    with np.errstate(all="ignore"):
        np.save(Path.cwd() / _SAMPLE, np.random.default_rng(0).random((20, 128, 128, 3), dtype=np.float32))
        try:
            onnx2tf.convert(
                input_onnx_file_path=request.onnx,
                output_folder_path=str(target),
                output_signaturedefs=True,
                not_use_onnxsim=True,
                non_verbose=True,
                verbosity="error",
            )
        except SystemExit as end:  # how onnx2tf gives up, after printing the operator
            raise Refused(
                f"onnx2tf gave up with exit code {end.code}: see {request.folder}/log.txt", "failed"
            ) from None
        except Exception as error:
            if not (name := getattr(error, "onnx_op_name", "")):
                raise
            raise Refused(_complaint(name, error), "failed") from error
    return {"path": str(target), "tool": f"onnx2tf {onnx2tf.__version__}"}


def _complaint(name: str, error: Exception) -> str:
    """Which node it does not convert; an operator that it does not know is a module that it does not have."""
    if isinstance(error, ModuleNotFoundError) and error.name and error.name.startswith("onnx2tf.ops."):
        return f"it has no conversion for {error.name.rpartition('.')[2]}, node {name}"
    return f"node {name}: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
