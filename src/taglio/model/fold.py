"""Fold the scales and shifts around convolutions into their weights, and write HardSigmoid as one operator.

Exporters of Paddle write a learned scale and shift behind every convolution, and HardSwish as four operators: of the
337 blocks of PP-OCRv4's recognition, 224 were of these. Every reader of the model would fuse them its own way.

1. A Conv absorbs the constant that is multiplied with or added to its output, one number or one per channel.
2. Convolutions absorb a number that is multiplied with what they alone read, and one that is added to it unless they
   pad it.
3. Clip(x + 3, 0, 6) / 6 is HardSigmoid(x), and x · Clip(x + 3, 0, 6) / 6 is x · HardSigmoid(x).

Answers differ by rounding only. Weights in files stay as they are.
"""

from collections import defaultdict

import numpy as np
import onnx
from onnx import helper, numpy_helper

from taglio import weights
from taglio.model.captures import readers, set_operators, writers
from taglio.model.operators import integers, standard, text

_SIXTH = 1.0 / 6.0
# The type of operators that are gone.
_REMOVED = "removed"


def fold(graph: onnx.GraphProto) -> None:
    """Apply the rules in place, outside subgraphs."""
    folding = _Folding(graph)
    for node in graph.node:  # first, since a convolution would absorb the 3
        folding.as_hard_sigmoid(node)
    for node in graph.node:
        folding.into_convolution_before(node)
    for node in reversed(graph.node):
        folding.into_convolutions_behind(node)
    folding.finish()


class _Folding:
    """The operators and constants of a graph, and which operators are gone."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._graph = graph
        self._readers = defaultdict(list, readers(graph.node))
        self._writers = writers(graph.node)
        self._outputs = {value.name for value in graph.output}
        self._constants = {
            tensor.name: tensor
            for tensor in graph.initializer
            if tensor.data_type == onnx.TensorProto.FLOAT and not weights.in_file(tensor)
        }
        self._gone = set[str]()

    def into_convolution_before(self, node: onnx.NodeProto) -> None:
        """Rule 1 for a Mul or an Add."""
        value, number = self._operands(node)
        conv = self._writers.get(value)
        if number is None or conv is None or not self._foldable(conv) or not self._is_inside(value):
            return
        weight, bias = self._weight(conv), self._bias(conv)
        channels, rank = weight.shape[0], weight.ndim
        per_channel = (1,) * (rank - number.ndim) + number.shape == (1, channels) + (1,) * (rank - 2)
        if number.ndim > rank or not (number.size == 1 or per_channel):
            return
        numbers = np.broadcast_to(number.reshape(-1), (channels,))
        if node.op_type == "Mul":
            self._set(conv, weight * numbers.reshape((channels,) + (1,) * (rank - 1)), bias * numbers)
        else:
            self._set(conv, weight, bias + numbers)
        conv.output[0] = node.output[0]
        self._writers[node.output[0]] = conv
        self._gone.add(value)
        self._remove(node)

    def into_convolutions_behind(self, node: onnx.NodeProto) -> None:
        """Rule 2 for a Mul or an Add."""
        value, number = self._operands(node)
        written = node.output[0] if node.output else ""
        behind = self._readers[written]
        if number is None or number.size != 1 or number.ndim > 1 or not behind or written in self._outputs:
            return
        if not all(self._foldable(conv) and written not in conv.input[1:] for conv in behind):
            return
        if node.op_type == "Add" and any(_pads(conv) for conv in behind):
            return
        for conv in behind:
            weight, bias = self._weight(conv), self._bias(conv)
            if node.op_type == "Mul":
                self._set(conv, weight * number.reshape(()), bias)
            else:
                self._set(conv, weight, bias + number.reshape(()) * weight.sum(axis=tuple(range(1, weight.ndim))))
            conv.input[0] = value
        self._readers[value] = [reader for reader in self._readers[value] if reader is not node] + behind
        self._gone.add(written)
        self._remove(node)

    def as_hard_sigmoid(self, node: onnx.NodeProto) -> None:
        """Rule 3 for the last of its operators."""
        value, number = self._operands(node, "Div", "Mul")
        share = None if number is None or number.size != 1 else float(number.reshape(()))
        sixth = share is not None and np.isclose(share, 6.0 if node.op_type == "Div" else _SIXTH, rtol=1e-6)
        last = self._writers.get(value)
        if not sixth or last is None or not self._is_inside(value):
            return
        clips = [last] if last.op_type == "Clip" else self._inner(last, "Clip") if last.op_type == "Mul" else []
        for clip in clips:
            shifts = self._inner(clip, "Add")
            source, three = self._operands(shifts[0]) if shifts else ("", None)
            bounds = [self._number(name) for name in clip.input[1:]]
            if three is None or three.size != 1 or float(three.reshape(())) != 3.0 or bounds != [0.0, 6.0]:
                continue
            if last is not clip and sorted(last.input) != sorted([source, clip.output[0]]):
                continue
            self._write_gate(node, last, clip, source)
            self._remove(shifts[0])
            return

    def _write_gate(self, node: onnx.NodeProto, last: onnx.NodeProto, clip: onnx.NodeProto, source: str) -> None:
        """Make `clip` the gate of `source`, and `last`, which is the gate or its product, what `node` was."""
        old = clip.output[0]
        clip.op_type, clip.input[:] = "HardSigmoid", [source]
        clip.attribute.extend([helper.make_attribute("alpha", _SIXTH), helper.make_attribute("beta", 0.5)])
        clip.output[0] = node.output[0] if last is clip else f"{old}:gate"
        if last is not clip:
            last.input[:] = [clip.output[0] if name == old else name for name in last.input]
            self._gone.add(last.output[0])
            last.output[0] = node.output[0]
            self._writers[clip.output[0]] = clip
        self._gone.add(old)
        self._writers[node.output[0]] = last
        self._readers[source].append(clip)
        self._remove(node)

    def finish(self) -> None:
        """Take out what is gone."""
        set_operators(self._graph, (node for node in self._graph.node if node.op_type != _REMOVED))
        recorded = [value for value in self._graph.value_info if value.name not in self._gone]
        del self._graph.value_info[:]
        self._graph.value_info.extend(recorded)

    def _remove(self, node: onnx.NodeProto) -> None:
        for name in node.input:
            self._readers[name] = [reader for reader in self._readers[name] if reader is not node]
        node.op_type = _REMOVED

    def _operands(self, node: onnx.NodeProto, *kinds: str) -> tuple[str, np.ndarray | None]:
        """What a Mul or an Add (or an operator of `kinds`) computes with a float constant, and that constant (float32);
        None for another operator."""
        if node.op_type in (kinds or ("Mul", "Add")) and standard(node):
            first, second = node.input
            if second in self._constants and first not in self._constants:
                return first, weights.values(self._constants[second])
            if first in self._constants and second not in self._constants and node.op_type != "Div":
                return second, weights.values(self._constants[first])
        return "", None

    def _number(self, name: str) -> float | None:
        constant = self._constants.get(name)
        return None if constant is None else float(weights.values(constant).reshape(()))

    def _inner(self, node: onnx.NodeProto, kind: str) -> list[onnx.NodeProto]:
        """The operators of a kind whose values `node` alone reads."""
        sources = [self._writers.get(name) for name in node.input if self._is_inside(name)]
        return [source for source in sources if source is not None and source.op_type == kind and standard(source)]

    def _is_inside(self, tensor: str) -> bool:
        """Whether one operator alone reads `tensor`."""
        return len(self._readers[tensor]) == 1 and tensor not in self._outputs

    def _foldable(self, node: onnx.NodeProto) -> bool:
        """Whether `node` is a convolution with a constant weight and bias, if any."""
        is_conv = node.op_type == "Conv" and standard(node)
        return is_conv and all(name in self._constants for name in node.input[1:] if name)

    def _weight(self, conv: onnx.NodeProto) -> np.ndarray:
        return weights.values(self._constants[conv.input[1]])

    def _bias(self, conv: onnx.NodeProto) -> np.ndarray:
        if len(conv.input) > 2 and conv.input[2]:
            return weights.values(self._constants[conv.input[2]])
        return np.zeros(self._constants[conv.input[1]].dims[0], np.float32)

    def _set(self, conv: onnx.NodeProto, weight: np.ndarray, bias: np.ndarray) -> None:
        """Give a convolution other weights; those that it had may have other readers."""
        names = [f"{conv.name or conv.output[0]}:folded-{part}" for part in ("weight", "bias")]
        if len(conv.input) < 3 and not bias.any():
            del names[1]
        for name, values in zip(names, (weight, bias), strict=False):
            tensor = numpy_helper.from_array(np.ascontiguousarray(values, np.float32), name)
            if name in self._constants:
                self._constants[name].CopyFrom(tensor)
            else:
                self._graph.initializer.append(tensor)
                self._constants[name] = self._graph.initializer[-1]
        conv.input[:] = [conv.input[0], *names]


def _pads(conv: onnx.NodeProto) -> bool:
    return any(integers(conv, "pads")) or text(conv, "auto_pad", "NOTSET") not in ("NOTSET", "VALID")
