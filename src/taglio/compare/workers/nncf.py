"""NNCF, OpenVINO's own quantiser: every preset's form of the float model, run as the rows of openvino are."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import nncf
import numpy as np
import openvino as ov

from taglio.compare.request import Request
from taglio.compare.row import WantedRow
from taglio.compare.workers.contract import Array, Opened, Refused
from taglio.compare.workers.loop import distance
from taglio.compare.workers.openvino import OpenVino
from taglio.runtimes.openvino_fusions import read_fused


class Nncf(OpenVino):
    """The files that NNCF makes of one model, each made once."""

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self._feeds = [dict(zip(request.inputs, sample, strict=True)) for sample in request.calibration]
        self._files: dict[str, Path] = {}

    def open(self, wanted: WantedRow) -> Opened:
        """Compile the row's file: the request's ONNX form for float32, an OpenVINO IR for every other."""
        if wanted.method == "float32":
            return super().open(replace(wanted, file=self._request.onnx))
        if wanted.format not in self._files:
            path = Path(self._request.folder) / f"{wanted.format}.xml"
            ov.save_model(self._made(wanted), path, compress_to_fp16=False)
            self._files[wanted.format] = path
        return super().open(replace(wanted, file=str(self._files[wanted.format])))

    def _made(self, wanted: WantedRow) -> Any:
        """The model in the row's form. Raises whatever NNCF does."""
        model = read_fused(self._core, self._request.onnx)
        dataset, count = nncf.Dataset(self._feeds), len(self._feeds)
        match wanted.format:
            case "performance" | "mixed":
                return nncf.quantize(model, dataset, subset_size=count, preset=nncf.QuantizationPreset(wanted.format))
            case "transformer":
                return nncf.quantize(model, dataset, subset_size=count, model_type=nncf.ModelType.TRANSFORMER)
            case "accuracy control":
                return self._controlled(model, dataset, wanted.max_error)
        fallback = nncf.AdvancedCompressionParameters(group_size_fallback_mode=nncf.GroupSizeFallbackMode.ADJUST)
        is_int4 = wanted.format.startswith("int4")
        compressed = nncf.compress_weights(
            model, mode=nncf.CompressWeightsMode(wanted.format), advanced_parameters=fallback if is_int4 else None
        )
        types = {output.get_element_type() for node in compressed.get_ops() for output in node.outputs()}
        if is_int4 and not types & {ov.Type.i4, ov.Type.u4}:
            raise Refused(
                "none of its weights became int4: NNCF keeps convolutions and the last matrix product in int8"
            )
        return compressed

    def _controlled(self, model: Any, dataset: Any, max_error: float | None) -> Any:
        """Int8 with layers put back to float until the relative L2 error on the calibration samples is within the
        limit: the held-out samples stay unseen."""
        original = self._core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        reference = [self._outputs_of(original, feed) for feed in self._feeds]

        def score(compiled: Any, indices: Iterable[int]) -> float:
            positions = list(indices)
            outputs = [self._outputs_of(compiled, self._feeds[index]) for index in positions]
            return 1.0 - distance([reference[index] for index in positions], outputs, self._request.parts)

        validation = nncf.Dataset(range(len(self._feeds)), self._feeds.__getitem__)
        return nncf.quantize_with_accuracy_control(
            model, dataset, validation, score, max_drop=max_error, subset_size=len(self._feeds)
        )

    @staticmethod
    def _outputs_of(compiled: Any, feed: dict[str, Array]) -> tuple[Array, ...]:
        results = compiled(feed)
        return tuple(np.array(results[port]) for port in compiled.outputs)


make = Nncf
