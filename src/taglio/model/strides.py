"""Move strides of 1×1 convolutions up to the convolutions before them: what nothing reads is not computed.

A ResNet with the strides in its first convolutions (Caffe, Keras, Detectron) computes the last block of each stage in
full, and then reads every other row and column of it. From the outputs to the inputs:

1. If all readers of a tensor are 1×1 convolutions with equal strides, their strides become 1, and the tensor's producer
   computes only what they read.
2. A convolution does so by its strides. If it is a 1×1 one, the tensor that it reads may be next.
3. An elementwise operator (Relu, a residual Add) does so by reading less of each input: the input's producer computes
   less if nothing else reads it, otherwise a MaxPool of single values stands between.
4. Strides that spare no convolution any work stay.

Answers stay the same. OpenVINO does this to float operators. But it does not move strides past quantise/dequantise
pairs: it leaves a MaxPool between a pair and its convolutions, which then compute in float.
"""

from collections import defaultdict
from math import prod

import onnx
from onnx import helper

from taglio.model.captures import readers, set_operators
from taglio.model.operators import integers, set_attribute, standard, text

_ELEMENTWISE = frozenset(
    {"Add", "Sub", "Mul", "Relu", "Clip", "LeakyRelu", "PRelu", "Elu", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh"}
)
# Padding does not depend on strides.
_FIXED_PADS = ("NOTSET", "VALID")


def move_strides(graph: onnx.GraphProto) -> None:
    """Apply the rules in place, outside subgraphs. Tensors that become smaller lose their recorded shapes."""
    moving = _Moving(graph)
    for node in reversed(graph.node):
        tensor = node.output[0]
        strides = moving.strides(tensor)
        if prod(strides) > 1 and moving.spares(tensor, len(strides)):
            for reader in moving.readers[tensor]:
                set_attribute(reader, "strides", (1,) * len(strides))
            moving.reduce(tensor, strides)
    set_operators(graph, (operator for node in graph.node for operator in (*moving.pools[node.output[0]], node)))
    recorded = [value for value in graph.value_info if value.name not in moving.smaller]
    del graph.value_info[:]
    graph.value_info.extend(recorded)


class _Moving:
    """Who reads whom in a graph; the tensors that became `smaller`; and the new `pools` by the output of their
    reader."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.readers = defaultdict(list, readers(graph.node))
        self.smaller = set[str]()
        self.pools = defaultdict[str, list[onnx.NodeProto]](list)
        self._producers = {node.output[0]: node for node in graph.node if len(node.output) == 1}
        self._outputs = {value.name for value in graph.output}
        self._constants = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
        declared = (*graph.input, *graph.value_info)
        self._ranks = {value.name: len(value.type.tensor_type.shape.dim) for value in declared}

    def strides(self, tensor: str) -> tuple[int, ...]:
        """The strides that all readers of `tensor` have and can do without; () if there are none."""
        per_reader = {self._free(reader, tensor) for reader in self.readers[tensor]}
        return per_reader.pop() if len(per_reader) == 1 else ()

    def spares(self, tensor: str, axes: int) -> bool:
        """Whether a convolution computes less if less of `tensor` is read along its last `axes`."""
        node = self._producers.get(tensor)
        if node is None or tensor in self._outputs or not standard(node):
            return False
        if node.op_type == "Conv":
            return text(node, "auto_pad", "NOTSET") in _FIXED_PADS
        fits = all(self._constant_along(name, axes) or self._ranks.get(name) == axes + 2 for name in node.input)
        return node.op_type in _ELEMENTWISE and fits and any(self._passes_on(name, axes) for name in node.input)

    def reduce(self, tensor: str, strides: tuple[int, ...]) -> None:
        """Make the producer of `tensor` compute what `strides` read."""
        node, axes = self._producers[tensor], len(strides)
        self.smaller.add(tensor)
        if node.op_type == "Conv":
            own_strides = integers(node, "strides") or (1,) * axes
            set_attribute(node, "strides", tuple(a * b for a, b in zip(own_strides, strides, strict=True)))
            return
        for index, name in enumerate(node.input):
            if self._constant_along(name, axes):
                continue
            if self._passes_on(name, axes):
                self.reduce(name, strides)
                continue
            node.input[index] = f"{tensor}:strides:{index}"
            pool = helper.make_node("MaxPool", [name], [node.input[index]], kernel_shape=[1] * axes, strides=strides)
            self.pools[tensor].append(pool)

    def _free(self, node: onnx.NodeProto, tensor: str) -> tuple[int, ...]:
        """The strides of a 1×1 convolution of `tensor` without padding; () for other readers."""
        if node.op_type != "Conv" or not standard(node) or tensor in node.input[1:] or any(integers(node, "pads")):
            return ()
        kernel = self._constants.get(node.input[1], (0, 0, 0))[2:]
        return integers(node, "strides") if set(kernel) == {1} else ()

    def _passes_on(self, tensor: str, axes: int) -> bool:
        """Whether `tensor` has one reader, and a convolution computes less if that reads less."""
        return len(self.readers[tensor]) == 1 and self.spares(tensor, axes)

    def _constant_along(self, tensor: str, axes: int) -> bool:
        """Whether `tensor` is a constant that is the same everywhere along the last `axes`, or left out."""
        return not tensor or prod(self._constants.get(tensor, (0,))[-axes:]) == 1
