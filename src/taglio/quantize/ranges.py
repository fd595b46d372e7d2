"""Calibration: the range of every activation over the calibration inputs. Does not turn ranges into scales."""

import contextlib
import io
import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod
from onnxruntime.quantization.calibrate import create_calibrator

from taglio.artifact import require
from taglio.data.dataset import Dataset
from taglio.errors import BadData
from taglio.model.load import Model
from taglio.quantize.scheme import Calibration
from taglio.scratch import scratch

_METHODS = {
    "minmax": CalibrationMethod.MinMax,
    "entropy": CalibrationMethod.Entropy,
    "percentile": CalibrationMethod.Percentile,
}


@dataclass(frozen=True, slots=True)
class Ranges:
    """Lowest and highest value per tensor name, as the calibration method sees them."""

    method: Calibration
    data_sha256: str
    low_high: dict[str, tuple[float, float]]

    def check(self) -> None:
        """Raise ValueError for a range that is none."""
        require(all(low <= high for low, high in self.low_high.values()), "a range ends before it begins")


class _OneSample(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, feed: dict[str, np.ndarray]) -> None:
        self._feeds = iter([feed])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._feeds, None)


def calibrate(
    model: Model, dataset: Dataset, method: Calibration, progress: Callable[[int, int], None] | None = None
) -> Ranges:
    """Run ONNX Runtime's calibrator over `dataset`, one sample at a time so that memory does not grow with it.

    Raises BadData when an activation is NaN or infinite on one of the samples.
    """
    with scratch() as folder:
        source = folder / "model.onnx"
        onnx.save(model.proto, source)
        with _quiet():
            calibrator = create_calibrator(
                source, augmented_model_path=str(folder / "augmented.onnx"), calibrate_method=_METHODS[method]
            )
            for index, feed in enumerate(dataset.samples):
                try:
                    calibrator.collect_data(_OneSample(feed))
                except Exception as error:
                    text = " ".join(str(error).split())[:300]
                    name = dataset.names[index] if index < len(dataset.names) else str(index)
                    raise BadData(f"{dataset.source}: sample {name}: ONNX Runtime cannot run it: {text}") from None
                if progress:
                    progress(index + 1, len(dataset.samples))
            data = calibrator.compute_data()
    low_high = {
        name: (float(np.min(value.range_value[0])), float(np.max(value.range_value[1]))) for name, value in data.items()
    }
    low_high = {name: (low, high) for name, (low, high) in low_high.items() if low <= high or low - high != np.inf}
    for name, (low, high) in low_high.items():
        if not (np.isfinite(low) and np.isfinite(high)):
            raise BadData(f"{dataset.source}: tensor {name} becomes {low} … {high} on it: check its preprocessing")
    return Ranges(method, dataset.sha256, low_high)


@contextlib.contextmanager
def _quiet():  # type: ignore[no-untyped-def]
    """The calibrators print their progress; it is not ours."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    onnxruntime.set_default_logger_severity(4)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(level)
        onnxruntime.set_default_logger_severity(2)
