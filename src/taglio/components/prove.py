"""Prove that components, run one after another, equal the whole quantised model. Cuts nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from taglio.components.build import Manifest
from taglio.errors import MeasurementFailed
from taglio.runtimes.onnxruntime import SessionOptions, open_session

# Float kernels may pick another layout, and so another order of sums, on either side of a cut.
TOLERANCE = 1e-5


@dataclass(frozen=True, slots=True)
class Proof:
    """`identical`: every output bit for bit; otherwise the largest relative L2 distance seen."""

    samples: int
    identical: bool
    distance: float
    tolerance: float


def prove(
    folder: Path, manifest: Manifest, whole: onnx.ModelProto, samples: Sequence[Mapping[str, np.ndarray]]
) -> Proof:
    """Run both on `samples`. Raises MeasurementFailed when the pieces differ by more than TOLERANCE."""
    options = SessionOptions(1)
    reference = open_session(whole, options, label="the whole model")
    pieces = [(piece, open_session(folder / piece.file, options, label=piece.file)) for piece in manifest.pieces]
    identical, largest = True, 0.0
    for sample in samples:
        tensors = dict(sample)
        for piece, session in pieces:
            names = [port.name for port in piece.outputs]
            values = session.run(names, {port.name: tensors[port.name] for port in piece.inputs})
            tensors.update(zip(names, values, strict=True))
        for name, value in zip(manifest.outputs, reference.run(list(manifest.outputs), dict(sample)), strict=True):
            if not np.array_equal(value, tensors[name]):
                identical = False
                a, b = np.asarray(value, np.float64), np.asarray(tensors[name], np.float64)
                largest = max(largest, float(np.linalg.norm(a - b) / max(float(np.linalg.norm(a)), 1e-30)))
    if largest > TOLERANCE:
        raise MeasurementFailed(
            f"the {len(manifest.pieces)} components differ from the whole model by {largest:.2e} "
            f"(limit {TOLERANCE:.0e}): this is a fault of taglio, please report the model"
        )
    return Proof(len(samples), identical, largest, TOLERANCE)
