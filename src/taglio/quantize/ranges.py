"""Calibration: the range of every activation over the calibration inputs. Does not turn ranges into scales.

Minima and maxima are computed inside the model, so only they are held for each sample. A tensor that serves as a mask
(its values reach −3.4e38 or −∞, for instance) gets no range: one int8 step of it would exceed all other values.
"""

from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper

from taglio.data.dataset import Dataset
from taglio.model.derived import with_operators, with_outputs
from taglio.model.load import Model
from taglio.model.observe import PLAIN
from taglio.progress import Progress, reported
from taglio.runtimes.onnxruntime import open_session, run_session

# A value beyond this is a mask or an overflow, not data.
_MASK = 1e30


@dataclass(frozen=True, slots=True)
class Ranges:
    """Lowest and highest value by tensor name, over the calibration data with the hash `data_sha256`.

    `without` gives the reason by tensor that has no range.
    """

    data_sha256: str
    low_high: dict[str, tuple[float, float]]
    without: dict[str, str] = field(default_factory=dict)


def calibrate(model: Model, dataset: Dataset, progress: Progress | None = None) -> Ranges:
    """The ranges of the model's float tensors over `dataset`.

    The model runs one sample at a time, so memory does not grow with the dataset. Raises BadData for a sample that ONNX
    Runtime cannot run.
    """
    extremes, spoilt = _extremes(model, dataset, progress)
    without = {name: reason for name, pair in extremes.items() if (reason := _why_none(*pair, spoilt.get(name, "")))}
    low_high = {name: pair for name, pair in extremes.items() if name not in without}
    return Ranges(dataset.sha256, low_high, without)


def _why_none(low: float, high: float, spoilt: str) -> str:
    if low > high:
        return "is empty on all of the data"
    if spoilt:
        return f"is NaN for sample {spoilt}"
    if max(-low, high) >= _MASK:
        return f"reaches {low if -low >= _MASK else high:.3g}, as masks do: int8 could not resolve its other values"
    return ""


def _extremes(
    model: Model, dataset: Dataset, progress: Progress | None
) -> tuple[dict[str, tuple[float, float]], dict[str, str]]:
    """The lowest and highest value of every float tensor, +∞ and −∞ for a tensor that is always empty; and the first
    sample for which a tensor holds NaN."""
    names = float_tensors(model)
    if not names:
        return {}, {}
    ends = [(kind, f"taglio/{kind}/{name}", name) for kind in ("ReduceMin", "ReduceMax") for name in names]
    wanted = [end for _, end, _ in ends]
    added = [helper.make_node(kind, [name], [end], name=end, keepdims=0) for kind, end, name in ends]
    session = open_session(with_operators(model.proto, added, wanted), PLAIN, label=model.name)
    lowest, highest, spoilt = np.full(len(names), np.inf), np.full(len(names), -np.inf), dict[str, str]()
    for index, feed in enumerate(reported(dataset.samples, "calibrating", progress)):
        sample = dataset.names[index] if index < len(dataset.names) else str(index)
        values = run_session(session, wanted, feed, f"{dataset.source}: sample {sample}")
        sample_lowest, sample_highest = np.array([float(value) for value in values]).reshape(2, -1)
        for position in np.flatnonzero(np.isnan(sample_lowest) | np.isnan(sample_highest)):
            spoilt.setdefault(names[position], sample)
        lowest, highest = np.minimum(lowest, sample_lowest), np.maximum(highest, sample_highest)
    return {name: (float(low), float(high)) for name, low, high in zip(names, lowest, highest, strict=True)}, spoilt


def float_tensors(model: Model) -> list[str]:
    """The float32 tensors that are inputs or written by an operator; ONNX Runtime is asked for types the file lacks."""
    graph = model.proto.graph
    types = {value.name: value.type for value in (*graph.value_info, *graph.output, *graph.input)}
    names = [value.name for value in graph.input] + [name for node in graph.node for name in node.output if name]
    untyped = [name for name in names if not types.get(name, onnx.TypeProto()).WhichOneof("value")]
    floats = {name for name in names if types.get(name, onnx.TypeProto()).tensor_type.elem_type == TensorProto.FLOAT}
    if untyped:
        session = open_session(with_outputs(model.proto, untyped), PLAIN, label=model.name)
        outputs = session.get_outputs()
        floats |= {output.name for output in outputs if output.name in untyped and output.type == "tensor(float)"}
    return [name for name in names if name in floats]
