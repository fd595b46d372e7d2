"""Calibration: the range of every activation over the calibration inputs. Does not turn ranges into scales.

Minima and maxima are computed inside the model, so only they are held for each sample. The other methods then choose a
range within them from histograms of a fixed size (histogram.py).
A tensor that serves as a mask (its values reach −3.4e38 or −∞, for instance) gets no range: one int8 step of it would
exceed all other values.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod

import numpy as np
import onnx
from onnx import TensorProto, helper

from taglio.artifact import require
from taglio.data.dataset import Dataset, one_of_each
from taglio.memory import groups_within
from taglio.model.derived import with_operators, with_outputs
from taglio.model.load import Model
from taglio.model.observe import observe, tensor_values
from taglio.progress import Progress, reported
from taglio.quantize.histogram import HISTOGRAM_BYTES, Equal, Logarithmic
from taglio.quantize.scheme import Calibration
from taglio.runtimes.onnxruntime import Optimization, SessionOptions, open_session, run_session

# Percent of the values that a range by percentiles holds: ONNX Runtime's default.
_PERCENTILE = 99.999
# A value beyond this is a mask or an overflow, not data.
_MASK = 1e30
_PLAIN = SessionOptions(threads=0, optimization=Optimization.NONE, lean=True)


@dataclass(frozen=True, slots=True)
class Ranges:
    """Lowest and highest value by tensor name, according to the calibration method.

    `without` gives the reason by tensor that has no range.
    """

    method: Calibration
    data_sha256: str
    low_high: dict[str, tuple[float, float]]
    without: dict[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Raises ValueError for a range whose low end exceeds its high end."""
        require(all(low <= high for low, high in self.low_high.values()), "a range ends before it begins")


def calibrate(
    model: Model,
    dataset: Dataset,
    method: Calibration,
    progress: Progress | None = None,
    *,
    room_bytes: float | None = None,
) -> Ranges:
    """The ranges of the model's float tensors over `dataset`.

    The model runs one sample at a time, so memory does not grow with the dataset. Histograms are collected for as many
    tensors at once as fit into `room_bytes` (None: all); the model runs again for the others. Raises BadData
    for a sample that ONNX Runtime cannot run.
    """
    seen = _extremes(model, dataset, progress if method == "minmax" else None)
    without = {name: reason for name, pair in seen.items() if (reason := _why_none(*pair))}
    low_high = {name: pair for name, pair in seen.items() if name not in without}
    if method != "minmax" and low_high:
        for names in _groups(model, dataset, list(low_high), room_bytes):
            samples = reported(dataset.samples, "calibrating", progress)
            values = tensor_values(model, names, samples, dataset.source)
            low_high |= _narrowed({name: low_high[name] for name in names}, method, values)
    return Ranges(method, dataset.sha256, low_high, without)


def _narrowed(
    extremes: Mapping[str, tuple[float, float]], method: Calibration, samples: Iterable[Mapping[str, np.ndarray]]
) -> dict[str, tuple[float, float]]:
    """The ranges of the tensors in `extremes` by percentiles or entropy, from their values in all samples."""
    histograms: dict[str, Logarithmic | Equal] = {
        name: Logarithmic() if method == "percentile" else Equal(max(-low, high))
        for name, (low, high) in extremes.items()
        if low < high
    }
    for values in samples:
        for name, histogram in histograms.items():
            histogram.add(values[name])
    ranges = dict(extremes)
    for name, histogram in histograms.items():
        if isinstance(histogram, Logarithmic):
            inner = histogram.central_range(_PERCENTILE)
        else:
            inner = histogram.least_divergence(name)
        (low, high), (lower, upper) = extremes[name], inner
        ranges[name] = (max(low, lower), min(high, upper))
    return ranges


def _groups(model: Model, dataset: Dataset, names: list[str], room_bytes: float | None) -> list[list[str]]:
    """`names` in groups whose tensors, at four bytes per value, and histograms fit into `room_bytes` for the largest
    sample."""
    if room_bytes is None:
        return [names]
    sizes = dict.fromkeys(names, 0)
    for index in one_of_each(dataset.samples):
        for name, seen in observe(model, dataset.samples[index], model.name).items():
            if name in sizes:
                sizes[name] = max(sizes[name], 4 * prod(seen.shape))
    return list(groups_within(names, lambda name: sizes[name] + HISTOGRAM_BYTES, room_bytes))


def _why_none(low: float, high: float) -> str:
    if low > high:
        return "is empty on all of the data"
    if not low <= high:
        return "is NaN on some of the data"
    if max(-low, high) >= _MASK:
        return f"reaches {low if -low >= _MASK else high:.3g}, as masks do: int8 could not resolve its other values"
    return ""


def _extremes(model: Model, dataset: Dataset, progress: Progress | None) -> dict[str, tuple[float, float]]:
    """The lowest and highest value of every float tensor; +∞ and −∞ for a tensor that is always empty."""
    names = float_tensors(model)
    if not names:
        return {}
    ends = [(kind, f"taglio/{kind}/{name}", name) for kind in ("ReduceMin", "ReduceMax") for name in names]
    wanted = [end for _, end, _ in ends]
    added = [helper.make_node(kind, [name], [end], name=end, keepdims=0) for kind, end, name in ends]
    session = open_session(with_operators(model.proto, added, wanted), _PLAIN, label=model.name)
    lowest, highest = np.full(len(names), np.inf), np.full(len(names), -np.inf)
    for index, feed in enumerate(reported(dataset.samples, "calibrating", progress)):
        sample = dataset.names[index] if index < len(dataset.names) else str(index)
        values = run_session(session, wanted, feed, f"{dataset.source}: sample {sample}")
        found = np.array([float(value) for value in values]).reshape(2, -1)
        lowest, highest = np.minimum(lowest, found[0]), np.maximum(highest, found[1])
    return {name: (float(low), float(high)) for name, low, high in zip(names, lowest, highest, strict=True)}


def float_tensors(model: Model) -> list[str]:
    """The float32 tensors that are inputs or written by an operator; ONNX Runtime is asked for types the file lacks."""
    graph = model.proto.graph
    types = {value.name: value.type for value in (*graph.value_info, *graph.output, *graph.input)}
    names = [value.name for value in graph.input] + [name for node in graph.node for name in node.output if name]
    untyped = [name for name in names if not types.get(name, onnx.TypeProto()).WhichOneof("value")]
    known = {name for name in names if types.get(name, onnx.TypeProto()).tensor_type.elem_type == TensorProto.FLOAT}
    if untyped:
        session = open_session(with_outputs(model.proto, untyped), _PLAIN, label=model.name)
        known |= {each.name for each in session.get_outputs() if each.name in untyped and each.type == "tensor(float)"}
    return [name for name in names if name in known]
