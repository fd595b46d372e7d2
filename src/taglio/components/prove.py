"""Prove that components, run one after another, equal the whole quantised model. Cuts nothing.

Float kernels may choose another layout, and so another order of sums, on either side of a cut. Where int8 follows, a
last bit can become a whole quantisation step, so the limit is how much the whole model's own answers vary when it runs
in equivalent ways: without fusion, without layouts, on inputs that differ in the last bit. A wrong connection exceeds
that by far.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from taglio.components.build import Manifest
from taglio.errors import MeasurementFailed
from taglio.model.same import difference
from taglio.runtimes.onnxruntime import Optimization, SessionOptions, open_session

# Relative L2 that a different order of float sums explains.
TOLERANCE = 1e-5
# Components may differ from the whole by this many times its own variation, which few samples estimate.
_TIMES = 4.0
_LAST_BIT = 2.0**-22
# A larger difference is never rounding.
_MOST = 0.1


@dataclass(frozen=True, slots=True)
class Proof:
    """Whether all outputs are `identical`, else the largest `distance` (model/same.py), and its limit."""

    samples: int
    identical: bool
    distance: float
    tolerance: float


def prove(
    folder: Path, manifest: Manifest, whole: onnx.ModelProto, samples: Sequence[Mapping[str, np.ndarray]]
) -> Proof:
    """Run both on `samples`. Raises MeasurementFailed if the components differ by more than rounding explains."""
    options = SessionOptions(1)
    wanted = list(manifest.outputs)
    reference = open_session(whole, options, label="the whole model")
    answers = [reference.run(wanted, dict(sample)) for sample in samples]
    del reference  # and its memory
    tensors = [dict(sample) for sample in samples]
    for piece in manifest.pieces:
        session, names = (
            open_session(folder / piece.file, options, label=piece.file),
            [each.name for each in piece.outputs],
        )
        for each in tensors:
            values = session.run(names, {port.name: each[port.name] for port in piece.inputs})
            each.update(zip(names, values, strict=True))
        del session  # before the next: together they may need more memory than there is
    pairs = _pairs(answers, [[each[name] for name in wanted] for each in tensors])
    largest = max((difference(*pair) for pair in pairs), default=0.0)
    limit = TOLERANCE
    if largest > limit:
        again, *apart = (
            max((difference(*pair) for pair in _pairs(answers, other)), default=0.0)
            for other in _otherwise(whole, wanted, samples)
        )
        limit = max(limit, min(_MOST, _TIMES * max(apart)), _TIMES * again)
    if largest > limit:
        raise MeasurementFailed(
            f"the {len(manifest.pieces)} components differ from the whole model by {largest:.2e} "
            f"(limit {limit:.0e}): this is a bug in taglio, please report the model"
        )
    return Proof(len(samples), largest == 0.0, largest, limit)


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
        yield [session.run(wanted, {name: _scaled(value, factor) for name, value in each.items()}) for each in samples]


def _scaled(value: np.ndarray, factor: float) -> np.ndarray:
    array = np.asarray(value)
    return (array * array.dtype.type(factor)).astype(array.dtype) if array.dtype.kind == "f" else array


def _pairs(one: list[list[object]], other: list[list[object]]) -> Iterator[tuple[object, object]]:
    for left, right in zip(one, other, strict=True):
        yield from zip(left, right, strict=True)
