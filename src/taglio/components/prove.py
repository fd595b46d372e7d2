"""Prove that components, run one after another, equal the whole quantised model. Cuts nothing.

Float kernels may choose another layout, and so another order of sums, on either side of a cut. Where int8 follows, a
last bit can become a whole quantisation step, so the limit is how much the whole model's own answers vary when it runs
in equivalent ways: without fusion, without layouts, on inputs that differ in the last bit. A wrong connection exceeds
that by far, unless the model itself varies by a tenth: then both must be equal without fusion and layouts, where a cut
changes no bit.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx

from taglio.components.build import Manifest
from taglio.errors import MeasurementFailed, plural
from taglio.runtimes.difference import difference
from taglio.runtimes.onnxruntime import Optimization, SessionOptions, open_session

# Relative L2 that a different order of float sums explains.
TOLERANCE = 1e-5
# Components may differ from the whole by this many times its own variation, which few samples estimate.
_TIMES = 4.0
_LAST_BIT = 2.0**-22


@dataclass(frozen=True, slots=True)
class Proof:
    """Whether all outputs are `identical`, else the largest `distance` (runtimes/difference.py), and its limit."""

    samples: int
    identical: bool
    distance: float
    tolerance: float


def prove(
    folder: Path, manifest: Manifest, whole: onnx.ModelProto, samples: Sequence[Mapping[str, np.ndarray]]
) -> Proof:
    """Run both on `samples`. Raises MeasurementFailed if the components differ by more than rounding explains."""
    output_names, options = list(manifest.outputs), SessionOptions(1)
    reference = open_session(whole, options, label="the whole model")
    answers = [reference.run(output_names, dict(sample)) for sample in samples]
    del reference  # and its memory
    largest = _largest(answers, _in_pieces(folder, manifest, samples, options))
    limit = TOLERANCE
    if largest > limit:
        repeated, unfused, *apart = _otherwise(whole, output_names, samples)
        varies, random = max(_largest(answers, varied) for varied in (unfused, *apart)), _largest(answers, repeated)
        # A larger difference than a tenth is rounding only if there is none without fusion and layouts.
        limit = max(limit, min(0.1, _TIMES * varies), _TIMES * random)
        if limit < largest <= _TIMES * varies:
            plain = _in_pieces(folder, manifest, samples, replace(options, optimization=Optimization.NONE))
            limit = _TIMES * varies if _largest(unfused, plain) <= TOLERANCE else limit
    if largest > limit:
        raise MeasurementFailed(
            f"{plural(len(manifest.pieces), 'component')}, run one after another, differ from the whole model by "
            f"{largest:.2e} (limit {limit:.0e}): this is a bug in taglio, please report the model"
        )
    return Proof(len(samples), largest == 0.0, largest, limit)


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


def _otherwise(
    whole: onnx.ModelProto, wanted: list[str], samples: Sequence[Mapping[str, np.ndarray]]
) -> Iterator[list[list[object]]]:
    """The answers of `whole` on `samples`, once for each equivalent way of running it. The first way is the same again:
    only random answers differ."""
    for level in (Optimization.ALL, Optimization.NONE, Optimization.EXTENDED):
        session = open_session(whole, SessionOptions(1, level), label="the whole model")
        yield [session.run(wanted, dict(sample)) for sample in samples]
    session = open_session(whole, SessionOptions(1), label="the whole model")
    for factor in (1.0 - _LAST_BIT, 1.0 + _LAST_BIT):
        yield [
            session.run(wanted, {name: _scaled(value, factor) for name, value in sample.items()}) for sample in samples
        ]


def _scaled(value: np.ndarray, factor: float) -> np.ndarray:
    array = np.asarray(value)
    return (array * array.dtype.type(factor)).astype(array.dtype) if array.dtype.kind == "f" else array


def _largest(first: list[list[object]], second: list[list[object]]) -> float:
    """The largest distance between two answers."""
    pairs = (pair for left, right in zip(first, second, strict=True) for pair in zip(left, right, strict=True))
    return max((difference(*pair) for pair in pairs), default=0.0)
