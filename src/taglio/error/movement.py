"""Find the parts of a model's outputs. Measures no error.

1. An output is followed back through operators that only move values, to the tensors that other operators compute. A
   Concat (or Stack, or Scatter) joins several such source tensors. To find where each value comes from, the movement
   alone is run in ONNX Runtime, with every source filled with its own number.
2. Channels of a source whose scales are far apart on a few inputs are separate parts too (scales.py).
3. If that makes too many parts, those of one output with the most similar scale are merged.
4. A value far beyond all others that occurs again and again, such as -999 beside logits, is a mask of its part.

An output is one part if its shape is not known in advance or its movement does not run alone.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import exp, inf, log

import numpy as np
import onnx
from onnx import helper

from taglio.data.dataset import one_of_each
from taglio.error.compared import as_array
from taglio.error.parts import Parts, alike, labelled, reduced, whole
from taglio.error.ranking import ranked_outputs
from taglio.error.scales import channel_axes, groups_by_scale
from taglio.errors import TaglioError
from taglio.model.captures import writers
from taglio.model.derived import empty_like
from taglio.model.load import Model
from taglio.model.observe import tensor_values
from taglio.runtimes.onnxruntime import SessionOptions, open_session, run_session

_MOST = 16
# Values of at least this magnitude count as infinite.
_INFINITE = 1e15
# A mask is this many times as large as any other value, and at least this large: an exact 1 may be a probability.
_BEYOND, _LEAST_MASK = 2.0, 10.0
# The most inputs from which scales are taken, seconds after which no more inputs are run, and the most shapes.
_INPUTS, _SECONDS, _SHAPES = 4, 2.0, 8
# Bytes of tensors to hold, beyond one sample per shape. Values summed at once.
_HELD_BYTES, _AT_ONCE = 256_000_000, 2**20

_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE, onnx.TensorProto.BFLOAT16)
# These keep every value and its size.
_IDENTITIES = {"Identity", "Dropout", "Cast", "QuantizeLinear", "DequantizeLinear"}
# Operators that only move values -> the inputs that hold these values (None: all).
_MOVING: Mapping[str, tuple[int, ...] | None] = dict.fromkeys(
    (*_IDENTITIES, "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Split", "Gather", "GatherND",
     "GatherElements", "Expand", "Tile", "DepthToSpace", "SpaceToDepth", "Pad", "ConcatFromSequence"),
    (0,),
) | {"Concat": None, "SequenceConstruct": None, "ScatterND": (0, 2), "ScatterElements": (0, 2)}  # fmt: skip

Values = Mapping[str, np.ndarray]
_ByShape = dict[tuple[int, ...], np.ndarray]


@dataclass(slots=True, eq=False)
class _Scale:
    """For one label: the tensor that its values come from, the sum of their squares, and their number; the value with
    the largest magnitude, how often it occurs, and the largest magnitude of the other values."""

    source: str
    square: float = 0.0
    count: int = 0
    extreme: float = 0.0
    repeated: int = 0
    next_largest: float = 0.0

    def add(self, values: np.ndarray) -> None:
        """More values, flat and finite."""
        if values.size:
            extreme = float(values[np.abs(values).argmax()])
            same = values == extreme
            next_largest = float(np.abs(values[~same]).max(initial=0.0))
            self.join(_Scale("", float(np.dot(values, values)), values.size, extreme, int(same.sum()), next_largest))

    def join(self, other: "_Scale") -> None:
        """The values of another label."""
        self.square, self.count = self.square + other.square, self.count + other.count
        large, small = (self, other) if abs(self.extreme) >= abs(other.extreme) else (other, self)
        equal = large.extreme == small.extreme
        next_largest = max(large.next_largest, small.next_largest if equal else abs(small.extreme))
        self.repeated = large.repeated + (small.repeated if equal else 0)
        self.extreme, self.next_largest = large.extreme, next_largest

    @property
    def mask(self) -> float | None:
        """The value that masks others out, if there is one."""
        beyond = abs(self.extreme) >= max(_LEAST_MASK, _BEYOND * self.next_largest)
        return self.extreme if self.repeated > 1 and self.next_largest > 0.0 and beyond else None

    def log_rms(self) -> float:
        return 0.5 * log(self.square / self.count) if self.square > 0.0 else -inf


def find_parts(model: Model, samples: Sequence[Values]) -> Parts:
    """The parts of the outputs of `model`, found from its graph and `samples`."""
    try:
        labels, scales = _Movement(model).labels(samples)
    except TaglioError:  # a model that cannot run is refused with a reason later
        return whole(model.outputs)
    _merge(labels, scales, max(_MOST, len(model.outputs)))
    sources = {
        label: f"values of about {_rounded(exp(scale.log_rms()))}"
        if scale.source in model.outputs
        else f"from {scale.source}"
        for label, scale in scales.items()
    }
    masks = {label: scale.mask for label, scale in scales.items() if scale.mask is not None}
    ranked = frozenset(map(model.outputs.index, ranked_outputs(model.proto.graph)))
    return replace(labelled(model.outputs, labels, sources, masks), ranked=ranked)


def _rounded(value: float) -> str:
    """Two significant digits, without an exponent if it is not tiny: 140, 1,400,000."""
    return f"{float(f'{value:.2g}'):,.12g}"


class _Movement:
    """The operators that move values to the float outputs, the tensors that the values come from (`_sources`), and
    what else these operators read, such as shapes and indices (`_read`)."""

    def __init__(self, model: Model) -> None:
        self._model = model
        graph = model.proto.graph
        self._producers = writers(graph.node)
        self._constants = {tensor.name: tensor for tensor in graph.initializer}
        self._outputs = [
            value.name
            for value in graph.output
            if value.type.tensor_type.elem_type in _FLOATS and value.name not in self._constants
        ]
        self._nodes: set[str] = set()
        self._sources: dict[str, None] = {}
        self._read: dict[str, None] = {}
        waiting = self._outputs[::-1]
        while waiting:
            name = waiting.pop()
            node = self._producers.get(name)
            if node is None or not self._moves(node):
                self._sources[name] = None
            elif node.name not in self._nodes:
                self._nodes.add(node.name)
                values = _moved_inputs(node)
                waiting += values[::-1]
                if node.op_type not in _IDENTITIES:
                    self._read |= dict.fromkeys(name for name in node.input if name and name not in values)

    def _moves(self, node: onnx.NodeProto) -> bool:
        """Whether it moves computed values. Gathering rows from a table of weights does not count."""
        if node.op_type not in _MOVING or node.domain not in ("", "ai.onnx", "com.microsoft"):
            return False
        if any(attribute.name == "reduction" and attribute.s not in (b"", b"none") for attribute in node.attribute):
            return False  # a Scatter that adds to existing values
        values = _moved_inputs(node)
        if node.op_type == "ConcatFromSequence":
            producer = self._producers.get(values[0])
            return producer is not None and producer.op_type == "SequenceConstruct"
        return any(name not in self._constants for name in values)

    def labels(self, samples: Sequence[Values]) -> tuple[dict[int, _ByShape], dict[int, _Scale]]:
        """Labels by output index and shape seen; and the source and scale of each label."""
        labels: dict[int, _ByShape] = {}
        scales: dict[int, _Scale] = {}
        chosen, complete = _few(samples)
        if not self._outputs or not chosen:
            return labels, scales
        values = self._values([samples[index] for index in chosen])
        channels = {name: self._channels(name, values) for name in self._sources if name in self._producers}
        options = SessionOptions(threads=1)
        mover = open_session(self._alone(values[0]), options, label="the movement") if self._nodes else None
        for sample in values:
            marks = self._marked(sample, channels, scales)
            moved = [name for name in self._outputs if name not in self._sources]
            if mover is not None and moved:
                feed = marks | {name: sample[name] for name in self._read if name not in self._constants}
                marks |= zip(moved, run_session(mover, moved, feed, "the movement"), strict=True)
            for name in self._outputs:
                self._learn(name, sample[name], marks[name], labels, scales)
        if not complete:  # only labels that do not depend on the shape are sure to fit unseen shapes
            labels = {output: by_shape for output, by_shape in labels.items() if alike(by_shape)}
        return labels, scales

    def _values(self, samples: Sequence[Values]) -> list[dict[str, np.ndarray]]:
        """Inputs, and all tensors that the movement reads and writes, by sample. A slow model runs only the first
        samples, but at least one per shape."""
        wanted = [
            name for name in dict.fromkeys([*self._outputs, *self._sources, *self._read]) if name in self._producers
        ]
        needed = len(one_of_each(samples))
        values: list[dict[str, np.ndarray]] = []
        start, held_bytes = time.perf_counter(), 0
        for sample, tensors in zip(samples, tensor_values(self._model, wanted, samples, "the data"), strict=False):
            held_bytes += sum(tensor.nbytes for tensor in map(as_array, tensors.values()))
            values.append({**sample, **tensors})
            if len(values) >= needed and (time.perf_counter() - start > _SECONDS or held_bytes > _HELD_BYTES):
                break
        return values

    def _channels(self, name: str, values: Sequence[Values]) -> tuple[int, np.ndarray] | None:
        """The axis along which `name` has channels of different scale, and the group of each channel; or None."""
        arrays = [np.asarray(sample[name]) for sample in values]
        if arrays[0].dtype.kind != "f" or len({array.ndim for array in arrays}) > 1:
            return None
        if self._producers[name].op_type == "TopK":  # sorted values: ranks are no channels
            return None
        scale = _Scale(name)
        for array in arrays:
            single = array.astype(np.float32)  # float16 does not hold the limit
            scale.add(single[np.abs(single) < _INFINITE])
        for axis in channel_axes(name, arrays[0].ndim, self._producers, self._constants, _MOVING):
            length = arrays[0].shape[axis]
            if length > 1 and all(array.shape[axis] == length for array in arrays):
                rows = [np.moveaxis(array, axis, 0).reshape(length, -1) for array in arrays]
                groups = groups_by_scale(rows if scale.mask is None else _unmasked(rows, scale.mask))
                if groups.any():
                    return axis, groups
        return None

    def _marked(
        self, sample: Values, channels: Mapping[str, tuple[int, np.ndarray] | None], scales: dict[int, _Scale]
    ) -> dict[str, np.ndarray]:
        """Every source filled with its label, or its channels with their groups' labels."""
        marks: dict[str, np.ndarray] = {}
        first = 1
        for name in self._sources:
            shape = tuple(self._constants[name].dims) if name in self._constants else np.shape(sample[name])
            axis, groups = channels.get(name) or (0, np.zeros(1, np.int64))
            along = [-1 if index == axis and len(groups) > 1 else 1 for index in range(len(shape))]
            marks[name] = np.array(np.broadcast_to(first + groups.reshape(along), shape), np.float32)
            following = first + int(groups.max()) + 1
            for label in range(first, following):
                scales.setdefault(label, _Scale(name))
            first = following
        return marks

    def _learn(
        self, name: str, value: np.ndarray, moved: np.ndarray, labels: dict[int, _ByShape], scales: dict[int, _Scale]
    ) -> None:
        if moved.shape != value.shape:
            return
        marks = moved.astype(np.int16)
        marks[marks == 0] = marks.max(initial=0)  # padding, whose zeros do not change a norm
        flat, all_marks = value.ravel(), marks.ravel()
        for start in range(0, len(flat), _AT_ONCE):
            values, own = flat[start : start + _AT_ONCE].astype(np.float64), all_marks[start : start + _AT_ONCE]
            values[~(np.abs(values) < _INFINITE)] = 0.0
            by_label, ends = values[np.argsort(own, kind="stable")], np.cumsum(np.bincount(own))
            for label, of_label in enumerate(np.split(by_label, ends[:-1])):
                if label in scales:
                    scales[label].add(of_label)
        labels.setdefault(self._model.outputs.index(name), {})[value.shape] = reduced(marks)

    def _alone(self, sample: Values) -> onnx.ModelProto:
        """A model of the movement alone, in float32."""
        proto = self._model.proto
        movement = empty_like(proto, "movement")
        graph = movement.graph
        types = dict.fromkeys(self._sources, onnx.TensorProto.FLOAT)
        for name in self._read:
            if name in self._constants:
                graph.initializer.append(self._constants[name])
            else:
                types[name] = helper.np_dtype_to_tensor_dtype(sample[name].dtype)
        graph.input.extend(helper.make_tensor_value_info(name, kind, None) for name, kind in types.items())
        for node in proto.graph.node:
            if node.name not in self._nodes:
                continue
            copy = graph.node.add()
            if node.op_type in _IDENTITIES:
                copy.CopyFrom(helper.make_node("Identity", [node.input[0]], [node.output[0]]))
                continue
            copy.CopyFrom(node)
            if node.op_type == "Pad" and len(node.input) > 2:
                copy.input[2] = ""  # padding gets the label 0
        graph.output.extend(
            helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
            for name in self._outputs
            if name not in self._sources
        )
        return movement


def _merge(labels: dict[int, _ByShape], scales: dict[int, _Scale], most: int) -> None:
    """Merge labels of one output, most similar scale first, until there are at most `most` in all."""
    unmerged = {
        output: {int(label) for array in arrays.values() for label in np.unique(array)}
        for output, arrays in labels.items()
    }
    into = np.arange(max(scales, default=0) + 1)
    while sum(map(len, unmerged.values())) > most:
        pairs = []
        for output, members in unmerged.items():
            for low, high in pairwise(sorted(members, key=lambda label: scales[label].log_rms())):
                apart = scales[high].log_rms() - scales[low].log_rms() if scales[low].square > 0.0 else 0.0
                pairs.append((apart, output, min(low, high), max(low, high)))
        _, output, kept, joined = min(pairs)
        unmerged[output].remove(joined)
        into[into == joined] = kept
        scales[kept].join(scales[joined])
    for output, arrays in labels.items():
        labels[output] = {shape: into[array].astype(np.int16) for shape, array in arrays.items()}


def _unmasked(rows: Sequence[np.ndarray], mask: float) -> Sequence[np.ndarray]:
    """Channels [channels, values] of several samples with 0 for a mask that some hold beside other values."""
    masked = [channels == mask for channels in rows]
    share = sum(places.mean(axis=1) for places in masked) / len(masked)
    mixed = bool(((share > 0.0) & (share < 1.0)).any())
    return [np.where(places, 0.0, channels) for places, channels in zip(masked, rows, strict=True)] if mixed else rows


def _few(samples: Sequence[Values]) -> tuple[list[int], bool]:
    """Indices of a few samples, one of each shape first; and whether they include every shape."""
    firsts = one_of_each(samples)
    chosen = firsts[:_SHAPES]
    rest = [index for index in range(len(samples)) if index not in chosen]
    return chosen + rest[: max(0, _INPUTS - len(chosen))], len(firsts) <= _SHAPES


def _moved_inputs(node: onnx.NodeProto) -> list[str]:
    chosen = _MOVING[node.op_type]
    return [name for index, name in enumerate(node.input) if name and (chosen is None or index in chosen)]
