"""Convert ONNX to a TensorFlow SavedModel by onnx2tf, in a separate environment: its pins conflict with LiteRT's."""

from pathlib import Path

import numpy as np
import onnx2tf

from taglio.compare.request import Request
from taglio.compare.workers.contract import Refused
from taglio.errors import with_kind

# onnx2tf downloads this file to check its own work; providing one avoids network access.
_SAMPLE = Path("calibration_image_sample_data_20x128x128x3_float32.npy")


def convert(request: Request) -> dict[str, str]:
    """Write the SavedModel of `request.onnx` below the folder. Raises Refused with the name of the operator."""
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
        except SystemExit as end:  # how onnx2tf fails, after printing the operator
            raise Refused(f"onnx2tf failed with exit code {end.code}: see {request.folder}/log.txt", "failed") from None
        except Exception as error:
            if not (name := getattr(error, "onnx_op_name", "")):
                raise
            raise Refused(_complaint(name, error), "failed") from error
    return {"path": str(target), "tool": f"onnx2tf {onnx2tf.__version__}"}


def _complaint(name: str, error: Exception) -> str:
    """The node that cannot be converted; for an unknown operator onnx2tf fails to import a module."""
    if isinstance(error, ModuleNotFoundError) and error.name and error.name.startswith("onnx2tf.ops."):
        return f"it has no conversion for {error.name.rpartition('.')[2]}, node {name}"
    return f"node {name}: {with_kind(error)}"
