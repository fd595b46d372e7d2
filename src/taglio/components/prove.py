"""Prove that components, run one after another, equal the whole quantised model. Cuts nothing.

Float kernels may pick another layout, and so another order of sums, on either side of a cut. Where int8 follows, a last
bit can become a step of one value, so the limit is what the whole model itself answers apart when it is run in other
equivalent ways: without fusion, without layouts, on inputs of another last bit. A wrong wire is far beyond that.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from taglio.components.build import Manifest
from taglio.errors import MeasurementFailed
from taglio.runtimes.onnxruntime import Optimization, SessionOptions, open_session

# What another order of float sums explains by itself.
TOLERANCE = 1e-5
# Pieces may differ from the whole by so many times what the whole differs from itself: there are few samples of that.
_TIMES = 4.0
_LAST_BIT = 2.0**-22
# Apart by more than this nothing is rounding.
_MOST = 0.1


@dataclass(frozen=True, slots=True)
class Proof:
    """`identical`: every output bit for bit; otherwise the largest relative L2 distance seen, and the limit on it."""

    samples: int
    identical: bool
    distance: float
    tolerance: float


def prove(
    folder: Path, manifest: Manifest, whole: onnx.ModelProto, samples: Sequence[Mapping[str, np.ndarray]]
) -> Proof:
    """Run both on `samples`. Raises MeasurementFailed when the pieces differ by more than rounding explains."""
    options = SessionOptions(1)
    wanted = list(manifest.outputs)
    reference = open_session(whole, options, label="the whole model")
    answers = [reference.run(wanted, dict(sample)) for sample in samples]
    del reference  # and its memory
    pieces = [(piece, open_session(folder / piece.file, options, label=piece.file)) for piece in manifest.pieces]
    largest, identical = 0.0, True
    for sample, answer in zip(samples, answers, strict=True):
        tensors = dict(sample)
        for piece, session in pieces:
            names = [port.name for port in piece.outputs]
            values = session.run(names, {port.name: tensors[port.name] for port in piece.inputs})
            tensors.update(zip(names, values, strict=True))
        found = [tensors[name] for name in wanted]
        largest = max(largest, *map(_distance, answer, found))
        identical = identical and all(map(_same, answer, found))
    limit = TOLERANCE
    if largest > limit:
        apart = (_distance(*pair) for other in _otherwise(whole, wanted, samples) for pair in _pairs(answers, other))
        limit = max(limit, min(_MOST, _TIMES * max(apart, default=0.0)))
    if largest > limit:
        raise MeasurementFailed(
            f"the {len(manifest.pieces)} components differ from the whole model by {largest:.2e} "
            f"(limit {limit:.0e}): this is a fault of taglio, please report the model"
        )
    return Proof(len(samples), identical, largest, limit)


def _otherwise(
    whole: onnx.ModelProto, wanted: list[str], samples: Sequence[Mapping[str, np.ndarray]]
) -> Iterator[list[list[object]]]:
    """The answers of `whole` on `samples`, once for each other way of running it."""
    for level in (Optimization.NONE, Optimization.EXTENDED):
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


def _same(one: object, other: object) -> bool:
    if isinstance(one, list) and isinstance(other, list):  # a sequence
        return len(one) == len(other) and all(map(_same, one, other))
    a, b = np.asarray(one), np.asarray(other)
    return a.shape == b.shape and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


def _distance(one: object, other: object) -> float:
    """Relative L2; NaN, or infinite in one alone, counts 1 where it differs."""
    if _same(one, other):
        return 0.0
    if isinstance(one, list) and isinstance(other, list):
        return max(map(_distance, one, other), default=0.0) if len(one) == len(other) else 1.0
    a, b = np.asarray(one), np.asarray(other)
    if a.shape != b.shape or a.dtype.kind not in "fiub":
        return 1.0
    a, b = a.astype(np.float64), b.astype(np.float64)
    finite = np.isfinite(a)
    if not np.array_equal(finite, np.isfinite(b)) or not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return 1.0
    return float(np.linalg.norm((a - b)[finite]) / max(float(np.linalg.norm(a[finite])), 1e-30))
