"""Prove that components, run one after another, equal the whole quantised model. Cuts nothing.

Float kernels may choose another layout, and so another order of sums, on either side of a cut. Where int8 follows, a
last bit can become a whole quantisation step. So if answers differ, both are run again without fusion and layouts,
where a cut changes no bit and a wrong connection does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from taglio.components.build import Manifest
from taglio.errors import MeasurementFailed, plural
from taglio.runtimes.difference import difference
from taglio.runtimes.onnxruntime import Optimization, SessionOptions, open_session

# Relative L2 that a different order of float sums explains.
TOLERANCE = 1e-5
# Relative L2 of a few int8 values that another order of sums moves by a step.
_FLIPS = 0.01
# Answers may vary by this many times what the whole model's own vary, which few samples estimate.
_TIMES = 4.0


@dataclass(frozen=True, slots=True)
class Proof:
    """The largest `distance` of an output (runtimes/difference.py) and its limit, the `tolerance`. A limit above
    TOLERANCE means that the components equal the whole without fusion and layouts."""

    samples: int
    distance: float
    tolerance: float

    @property
    def identical(self) -> bool:
        """Whether all outputs are equal."""
        return self.distance == 0.0


def prove(
    folder: Path, manifest: Manifest, whole: onnx.ModelProto, samples: Sequence[Mapping[str, np.ndarray]]
) -> Proof:
    """Run both on `samples`. Raises MeasurementFailed if the components differ by more than rounding explains."""
    fused, plain = SessionOptions(1), SessionOptions(1, Optimization.NONE)
    answers = _in_one(whole, manifest, samples, fused)
    distance, limit = _largest(answers, _in_pieces(folder, manifest, samples, fused)), TOLERANCE
    if distance > TOLERANCE:
        unfused = _in_one(whole, manifest, samples, plain)
        random = _largest(answers, _in_one(whole, manifest, samples, fused))  # 0 for most models
        apart = _largest(unfused, _in_pieces(folder, manifest, samples, plain))
        if apart <= max(TOLERANCE, _TIMES * random):
            limit = max(_FLIPS, _TIMES * max(random, _largest(answers, unfused)))
    if distance > limit:
        raise MeasurementFailed(
            f"{plural(len(manifest.pieces), 'component')}, run one after another, differ from the whole model by "
            f"{distance:.2e} (limit {limit:.0e}): this is a bug in taglio, please report the model"
        )
    return Proof(len(samples), distance, limit)


def _in_one(
    whole: onnx.ModelProto,
    manifest: Manifest,
    samples: Sequence[Mapping[str, np.ndarray]],
    options: SessionOptions,
) -> list[list[object]]:
    """The answers of the whole model on `samples`."""
    session = open_session(whole, options, label="the whole model")
    return [session.run(list(manifest.outputs), dict(sample)) for sample in samples]


def _in_pieces(
    folder: Path, manifest: Manifest, samples: Sequence[Mapping[str, np.ndarray]], options: SessionOptions
) -> list[list[object]]:
    """The answers of the components on `samples`."""
    tensors = [dict(sample) for sample in samples]
    for piece in manifest.pieces:
        session = open_session(folder / piece.file, options, label=piece.file)
        names = [port.name for port in piece.outputs]
        for sample_tensors in tensors:
            values = session.run(names, {port.name: sample_tensors[port.name] for port in piece.inputs})
            sample_tensors.update(zip(names, values, strict=True))
        del session  # before the next: together they may need more memory than there is
    return [[sample_tensors[name] for name in manifest.outputs] for sample_tensors in tensors]


def _largest(first: list[list[object]], second: list[list[object]]) -> float:
    """The largest distance between two answers."""
    pairs = (pair for left, right in zip(first, second, strict=True) for pair in zip(left, right, strict=True))
    return max((difference(*pair) for pair in pairs), default=0.0)
