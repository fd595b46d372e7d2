"""Find the parts of a model's outputs. Measures no error.

An output is followed back through operators that only move values, to the tensors that other operators compute. A
Concat (or Stack, or Scatter) joins several such source tensors, and each becomes a part. To find where each value comes
from, the movement alone is run in ONNX Runtime, with every source filled with its own number.

An output is one part if it joins more than sixteen sources (the steps of an unrolled loop), if its shape is not known
in advance, or if its movement does not run alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx
from onnx import helper

from taglio.data.dataset import one_of_each
from taglio.error.parts import OutputParts, alike, labelled, reduced, whole
from taglio.error.ranking import ranked_outputs
from taglio.errors import TaglioError
from taglio.model.captures import writers
from taglio.model.derived import empty_like
from taglio.model.load import Model
from taglio.model.observe import tensor_values
from taglio.runtimes.onnxruntime import SessionOptions, open_session, run_session

# The most shapes of samples that the movement is run for.
_SHAPES = 8

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


def find_parts(model: Model, samples: Sequence[Values]) -> OutputParts:
    """The parts of the outputs of `model`, found from its graph and the shapes of `samples`."""
    try:
        movement = _Movement(model)
        labels = movement.labels(samples)
    except TaglioError:  # a model that cannot run is refused with a reason later
        return whole(model.outputs)
    ranked = frozenset(map(model.outputs.index, ranked_outputs(model.proto.graph)))
    return replace(labelled(model.outputs, labels, movement.sources), ranked=ranked)


class _Movement:
    """The operators that move values to float outputs, the tensors that the values come from (`sources`), and what
    else these operators read, such as shapes and indices (`_read`)."""

    def __init__(self, model: Model) -> None:
        self._model = model
        graph = model.proto.graph
        self._producers = writers(graph.node)
        self._constants = {tensor.name: tensor for tensor in graph.initializer}
        self._outputs = [
            value.name
            for value in graph.output
            if value.type.tensor_type.elem_type in _FLOATS and self._moves(self._producers.get(value.name))
        ]
        self._nodes: set[str] = set()
        sources: dict[str, None] = {}
        self._read: dict[str, None] = {}
        waiting = self._outputs[::-1]
        while waiting:
            name = waiting.pop()
            node = self._producers.get(name)
            if node is None or not self._moves(node):
                sources[name] = None
            elif node.name not in self._nodes:
                self._nodes.add(node.name)
                values = _moved_inputs(node)
                waiting += values[::-1]
                if node.op_type not in _IDENTITIES:
                    self._read |= dict.fromkeys(name for name in node.input if name and name not in values)
        self.sources = tuple(sources)

    def _moves(self, node: onnx.NodeProto | None) -> bool:
        """Whether it moves computed values. Gathering rows from a table of weights does not count."""
        if node is None or node.op_type not in _MOVING or node.domain not in ("", "ai.onnx", "com.microsoft"):
            return False
        if any(attribute.name == "reduction" and attribute.s not in (b"", b"none") for attribute in node.attribute):
            return False  # a Scatter that adds to existing values
        values = _moved_inputs(node)
        if node.op_type == "ConcatFromSequence":
            producer = self._producers.get(values[0])
            return producer is not None and producer.op_type == "SequenceConstruct"
        return any(name not in self._constants for name in values)

    def labels(self, samples: Sequence[Values]) -> dict[int, _ByShape]:
        """By index of an output that is moved, and by shape seen: the place in `sources` of each value's source. An
        output of more than 16 parts is left out."""
        firsts = one_of_each(samples)
        if not self._outputs or not firsts:
            return {}
        wanted = [
            name for name in dict.fromkeys((*self._outputs, *self.sources, *self._read)) if name in self._producers
        ]
        chosen = [samples[index] for index in firsts[:_SHAPES]]
        labels: dict[int, _ByShape] = {}
        mover = None
        for sample, tensors in zip(chosen, tensor_values(self._model, wanted, chosen, "the data"), strict=True):
            values = {**sample, **tensors}
            if mover is None:
                mover = open_session(self._alone(values), SessionOptions(threads=1), label="the movement")
            feed = {name: values[name] for name in self._read if name not in self._constants}
            for number, name in enumerate(self.sources, 1):  # 0 is padding
                stored = self._constants.get(name)
                shape = np.shape(values[name]) if stored is None else tuple(stored.dims)
                feed[name] = np.full(shape, number, np.float32)
            moved = run_session(mover, self._outputs, feed, "the movement")
            for name, marks in zip(self._outputs, moved, strict=True):
                if marks.shape == np.shape(values[name]):
                    # The zeros of padding do not change a norm.
                    marks[marks == 0.0] = marks.max(initial=1.0)
                    by_shape = labels.setdefault(self._model.outputs.index(name), {})
                    by_shape[marks.shape] = reduced(marks.astype(np.int16) - 1)
        if len(firsts) > _SHAPES:  # only labels that do not depend on the shape are sure to fit unseen shapes
            labels = {output: by_shape for output, by_shape in labels.items() if alike(by_shape)}
        return {
            output: by_shape
            for output, by_shape in labels.items()
            if len(np.unique(np.concatenate([np.unique(array) for array in by_shape.values()]))) <= 16
        }

    def _alone(self, sample: Values) -> onnx.ModelProto:
        """A model of the movement alone, in float32."""
        proto = self._model.proto
        movement = empty_like(proto, "movement")
        graph = movement.graph
        types = dict.fromkeys(self.sources, onnx.TensorProto.FLOAT)
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
        graph.output.extend(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in self._outputs)
        return movement


def _moved_inputs(node: onnx.NodeProto) -> list[str]:
    chosen = _MOVING[node.op_type]
    return [name for index, name in enumerate(node.input) if name and (chosen is None or index in chosen)]
