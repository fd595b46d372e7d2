"""Convert blocks to float16. Neither calibrates nor quantises.

The file is half as large, and so is what a link carries. On a CPU without float16 arithmetic ONNX Runtime computes most
of it in float32. So it is not faster there, and its answers do not show what true float16 rounds or cannot hold. A
second model, which is only measured, rounds in float32 operators wherever the first one writes float16.

1. A block stays in float32 if a tensor that it reads, writes or holds as weights passes the largest float16.
2. An operator is converted if its ONNX schema allows float16 for what it reads in float32, and ties to that all that it
   writes in float32. Operators of other domains, and those that hold graphs of their own, stay as they are.
3. Blocks that ONNX Runtime does not load in float16 stay in float32. Bisection finds them (trial.py).
"""

from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto

from taglio import weights
from taglio.errors import BadModel, CannotQuantize, plural
from taglio.model.captures import bodies, node_inputs
from taglio.model.derived import with_nodes
from taglio.model.graph import Block, Graph
from taglio.model.load import Model
from taglio.model.observe import tensor_types
from taglio.model.operators import standard
from taglio.quantize.emitter import Emitter
from taglio.quantize.trial import culprits
from taglio.runtimes.onnxruntime import SessionOptions, open_session

LARGEST = float(np.finfo(np.float16).max)
_HALF = "tensor(float16)"


@dataclass(frozen=True, slots=True, eq=False)
class Float16Model:
    """A model with `blocks` in float16, and a line for each reason (`left`) why other blocks stay in float32."""

    proto: onnx.ModelProto
    blocks: tuple[str, ...]
    left: tuple[str, ...]


def most_in_float16(
    model: Model, graph: Graph, names: Sequence[str], low_high: Mapping[str, tuple[float, float]]
) -> Float16Model:
    """The model with as many of the blocks `names` in float16 as rules 1 to 3 allow. `low_high` are the calibrated
    ranges of activations. Raises CannotQuantize if no block can be float16."""
    beyond = beyond_float16(model, graph, names, low_high)
    nodes, types = model.nodes(), _types(model, graph)
    blocks = [graph.block(name) for name in names if name not in beyond]
    able = [block for block in blocks if any(_ports(nodes[name], types, model.opset) for name in block.operators)]
    without = {block.name: f"no operator of {block.name} has a float16 form" for block in blocks if block not in able}

    def failure(some: Sequence[Block]) -> str:
        try:
            open_session(float16(model, graph, [block.name for block in some]), SessionOptions(1), label="float16")
        except BadModel as error:
            return str(error)
        return ""

    refused = culprits(able, failure) if able else {}
    converted = tuple(block.name for block in able if block.name not in refused)
    reasons = [[*why.values()] for why in (beyond, without, refused) if why]
    if not converted:
        raise CannotQuantize(f"no block can be float16: {reasons[0][0]}")
    every = plural(len(names), "block")
    left = tuple(f"{len(lines)} of {every} left in float32: {lines[0]}" for lines in reasons)
    return Float16Model(float16(model, graph, converted), converted, left)


def float16(model: Model, graph: Graph, blocks: Collection[str], *, rounded: bool = False) -> onnx.ModelProto:
    """`model` with the operators of `blocks` that have a float16 form in float16; inputs, outputs and all else stay
    float32. If `rounded`, operators stay float32, and what they would read or write in float16 is rounded to it."""
    chosen = {operator for name in blocks for operator in graph.block(name).operators}
    types, writer = _types(model, graph), _Writer(model, rounded=rounded)
    for node in model.proto.graph.node:
        ports = _ports(node, types, model.opset) if node.name in chosen else None
        writer.add(node, *(ports or ((), ())))
    return writer.finish()


def beyond_float16(
    model: Model, graph: Graph, blocks: Sequence[str], low_high: Mapping[str, tuple[float, float]]
) -> dict[str, str]:
    """The blocks that must stay in float32 by rule 1, each with the reason. `low_high` are the calibrated ranges of
    activations."""
    nodes, constants = model.nodes(), model.initializers()
    reasons = {}
    for name in blocks:
        operators = [nodes[operator] for operator in graph.block(name).operators]
        tensors = dict.fromkeys(tensor for node in operators for tensor in (*node.input, *node.output) if tensor)
        for tensor in tensors:
            largest = _largest(tensor, constants, low_high)
            if largest > LARGEST:
                reasons[name] = f"{tensor} reaches {largest:.3g}; float16 ends at {LARGEST:.0f}"
                break
    return reasons


def _largest(name: str, constants: Mapping[str, TensorProto], low_high: Mapping[str, tuple[float, float]]) -> float:
    """The largest magnitude of a tensor. Infinities stay infinite in float16, and count as 0."""
    if name in low_high:
        return max(-low_high[name][0], low_high[name][1])
    if name not in constants or constants[name].data_type != TensorProto.FLOAT:
        return 0.0
    values = np.abs(weights.values(constants[name]))
    return float(values[np.isfinite(values)].max(initial=0.0))


def _types(model: Model, graph: Graph) -> dict[str, int]:
    """The element types of tensors, as far as the file or `graph` has them; UNDEFINED for other types than float32 that
    only `graph` has."""
    observed = {
        tensor.name: TensorProto.FLOAT if tensor.dtype == "float32" else TensorProto.UNDEFINED
        for tensor in graph.tensors
    }
    return observed | tensor_types(model.proto)


def _ports(node: onnx.NodeProto, types: Mapping[str, int], opset: int) -> tuple[list[int], list[int]] | None:
    """The indices of the inputs and outputs of an operator that become float16; None if it stays as it is (rule 2)."""
    if not standard(node) or any(bodies(node)) or not onnx.defs.has(node.op_type, opset):
        return None
    schema = onnx.defs.get_schema(node.op_type, opset)
    allowed = {constraint.type_param_str: constraint.allowed_type_strs for constraint in schema.type_constraints}
    inputs, tied = list[int](), set[str]()
    for index, name in enumerate(node.input):
        kind = schema.inputs[min(index, len(schema.inputs) - 1)].type_str
        if name and name not in types:
            return None
        if name and types[name] == TensorProto.FLOAT and _HALF in allowed.get(kind, ()):
            inputs.append(index)
            tied.add(kind)
    outputs = list[int]()
    for index, name in enumerate(node.output):
        if name and schema.outputs[min(index, len(schema.outputs) - 1)].type_str in tied:
            outputs.append(index)
        elif name and types.get(name, TensorProto.FLOAT) == TensorProto.FLOAT:
            return None
    return (inputs, outputs) if inputs else None


class _Writer:
    """Writes a model operator by operator. A tensor t is t/float16 in float16, and keeps its name in float32, if
    something reads it so."""

    def __init__(self, model: Model, *, rounded: bool) -> None:
        self._model, self._rounded = model, rounded
        self._initializers = model.initializers()
        self._emitter = Emitter(store=model.store)
        self._lower = set[str]()  # what operators write in float16

    def add(self, node: onnx.NodeProto, inputs: Collection[int], outputs: Collection[int]) -> None:
        """Append an operator whose `inputs` and `outputs` are float16."""
        halves = {node.input[index] for index in inputs}
        for name in node_inputs(node):
            if name not in halves:
                self._read_float32(name)
        copy = deepcopy(node)
        for index in inputs:
            copy.input[index] = self._read(node.input[index])
        for index in outputs:
            copy.output[index] = f"{node.output[index]}/{'exact' if self._rounded else 'float16'}"
        self._emitter.nodes.append(copy)
        for name in (node.output[index] for index in outputs):
            self._lower.add(name)
            if self._rounded:
                self._emitter.rounded(f"{name}/exact", name, TensorProto.FLOAT16)

    def finish(self) -> onnx.ModelProto:
        """The model of what was added."""
        for name in self._model.outputs:
            self._read_float32(name)
        emitter = self._emitter
        return with_nodes(self._model.proto, emitter.nodes, emitter.initializers.values())

    def _read(self, name: str) -> str:
        """The name under which an operator reads a tensor in float16."""
        lower = f"{name}/float16"
        if name in self._initializers:
            with np.errstate(over="ignore"):  # infinities stay
                values = weights.values(self._initializers[name]).astype(np.float16)
            return self._emitter.constant(lower, values.astype(np.float32) if self._rounded else values)
        if name in self._lower:
            return name if self._rounded else lower
        if self._rounded:
            return self._emitter.rounded(name, lower, TensorProto.FLOAT16)
        return self._emitter.cast(name, lower, TensorProto.FLOAT16)

    def _read_float32(self, name: str) -> None:
        """Write a tensor in float32 too, if it is written in float16 alone."""
        if name in self._lower and not self._rounded:
            self._emitter.cast(f"{name}/float16", name, TensorProto.FLOAT)
