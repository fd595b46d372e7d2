"""onnxsim's search for a quantisation within an error, run by ONNX Runtime. onnxsim measures errors and no times."""

from dataclasses import replace
from pathlib import Path

import onnx
import onnxsim

from taglio.compare.row import WantedRow
from taglio.compare.workers.contract import Opened
from taglio.compare.workers.onnxruntime import PROVIDERS, OnnxRuntime


class Onnxsim(OnnxRuntime):
    """Sessions on the float model and on the one that onnxsim recommends."""

    def open(self, wanted: WantedRow) -> Opened:
        """A session on the float model, or on the first of onnxsim's schemes that keeps the row's limit on the
        calibration samples; the one with the smallest error if none does."""
        source = self._request.onnx
        if wanted.method == "float32":
            return super().open(replace(wanted, file=source))
        feeds = [dict(zip(self._request.inputs, sample, strict=True)) for sample in self._request.calibration]
        advice = onnxsim.recommend_quantization(
            onnx.load(source), wanted.max_error, calibration_data=feeds, providers=PROVIDERS
        )
        path = Path(self._request.folder) / "recommended.onnx"
        onnx.save(advice.quantized_model, path)
        opened = super().open(replace(wanted, file=str(path)))
        scheme = " ".join(filter(None, (advice.config.scheme, advice.config.dtype, advice.config.granularity)))
        note = f"{scheme}: {advice.report.worst_relative_l2:.2%} on the calibration samples by onnxsim"
        return replace(opened, notes=(note if advice.meets_budget else f"{note}, and no scheme is within the limit",))


make = Onnxsim
