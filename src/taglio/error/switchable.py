"""The switchable graph: one model in which every block can be switched to each of its precisions. Measures nothing.

Each block becomes an `If` per precision (several int8 schemes, its anchor alone). The `then` branch holds exactly the
nodes of the quantised model, so ONNX Runtime runs the same int8 kernels; the `else` branch holds the float block. A
quantise/dequantise pair is idempotent: quantising an input that its producer already quantised changes nothing. So
flags can be set in any combination, and each gives the quantised model of that subset.
"""

import hashlib
from collections import ChainMap, Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import onnx
from onnx import TensorProto, helper

from taglio.errors import BadOption
from taglio.model.captures import node_inputs
from taglio.model.derived import add_flags, empty_like
from taglio.model.graph import Block, Graph
from taglio.quantize.keep_float import import_domains
from taglio.quantize.precision import FLOAT32, Assignment, Precision
from taglio.quantize.qdq import QdqBuilder
from taglio.runtimes.onnxruntime import SessionOptions, open_session, run_session
from taglio.weights import LEAST_BYTES

FLAGS_INPUT = "taglio/flags"
# Blocks that share weights of this size, such as the steps of an unrolled recurrence, have theirs in the outer graph,
# once for equal values. All others have them in their branches, where ONNX Runtime may change the layout; so has
# MatMulNBits, which computes in float where its weights are outside.
_SHARED_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class FormSwitch:
    """One flag: `block` in `precision`."""

    block: str
    precision: Precision


class Switchable:
    """A session of the switchable graph."""

    def __init__(
        self,
        graph: Graph,
        builder: QdqBuilder,
        precisions: Sequence[Precision],
        options: SessionOptions,
    ) -> None:
        """`precisions` may include several int8 variants, with distinct names."""
        self.switches = tuple(
            FormSwitch(block.name, precision)
            for block in graph.blocks
            for precision in precisions
            if precision != FLOAT32 and precision.fits(block)
        )
        self._index = {(switch.block, switch.precision.name): i for i, switch in enumerate(self.switches)}
        self._outputs = builder.model.outputs
        proto = switchable_graph(graph, builder, self.switches)
        self._session = open_session(proto, options, label="the switchable graph")

    def flags(self, assignment: Assignment) -> np.ndarray:
        """The flags of an assignment, bool [switches]. Raises BadOption for a block or form without a switch."""
        flags = np.zeros(len(self.switches), np.bool_)
        for block, precision in assignment.items():
            if precision != FLOAT32:
                if (block, precision.name) not in self._index:
                    raise BadOption(f"block {block} has no switch to {precision.name}: no such block, or no such form")
                flags[self._index[block, precision.name]] = True
        return flags

    def run(self, assignment: Assignment, feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Outputs of the model with `assignment` quantised, on one feed."""
        flags = self.flags(assignment)
        feeds = {**feed, FLAGS_INPUT: flags} if len(flags) else feed
        return run_session(self._session, self._outputs, feeds, "the data")


def switchable_graph(graph: Graph, builder: QdqBuilder, switches: Sequence[FormSwitch]) -> onnx.ModelProto:
    """The ONNX model behind `Switchable`: the original inputs and one bool vector with a flag per switch."""
    model = builder.model
    nodes = model.nodes()
    initializers = model.initializers()
    by_block: dict[str, list[int]] = {}
    for index, switch in enumerate(switches):
        by_block.setdefault(switch.block, []).append(index)
    out = empty_like(model.proto, "switchable")
    target = out.graph
    target.input.extend(model.proto.graph.input)
    target.output.extend(model.proto.graph.output)
    target.value_info.extend(model.proto.graph.value_info)
    flags = add_flags(target, FLAGS_INPUT, len(switches))
    outer: dict[str, None] = dict.fromkeys(model.outputs)  # one may be a constant
    pool: dict[str, TensorProto] = {}
    often = _read_often(graph, nodes, initializers)
    for block in graph.blocks:
        members = [nodes[name] for name in block.operators]
        if block.name not in by_block:
            target.node.extend(members)
            outer.update(dict.fromkeys(name for node in members for name in node_inputs(node)))
        else:
            shared = pool if any(name in often for node in members for name in node.input) else None
            branch = _branch(f"{block.name}/float32", members, block.outputs, initializers, shared)
            for index in by_block[block.name]:
                chosen = _int8_branch(builder, block, switches[index].precision, initializers, shared)
                suffix = "" if index == by_block[block.name][-1] else f"/switch/{index}"
                names = [name + suffix for name in block.outputs]
                node = _if(flags[index], names, f"{block.name}/switch/{index}", chosen, branch)
                branch = helper.make_graph([node], f"{block.name}/else/{index}", [], _untyped(names))
            target.node.append(node)
    target.initializer.extend(initializers[name] for name in outer if name in initializers)
    target.initializer.extend(pool.values())
    import_domains(out)
    return out


def _if(
    flag: str, outputs: Sequence[str], name: str, chosen: onnx.GraphProto, other: onnx.GraphProto
) -> onnx.NodeProto:
    return helper.make_node("If", [flag], outputs, name=name, then_branch=chosen, else_branch=other)


def _untyped(names: Sequence[str]) -> list[onnx.ValueInfoProto]:
    return [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names]


def _read_often(
    graph: Graph, nodes: Mapping[str, onnx.NodeProto], initializers: Mapping[str, TensorProto]
) -> frozenset[str]:
    """The large weights that several blocks read."""
    readers = Counter(
        name
        for block in graph.blocks
        for name in {name for operator in block.operators for name in nodes[operator].input}
        if name in initializers and initializers[name].ByteSize() >= _SHARED_BYTES
    )
    return frozenset(name for name, count in readers.items() if count > 1)


def _int8_branch(
    builder: QdqBuilder,
    block: Block,
    precision: Precision,
    initializers: dict[str, TensorProto],
    pool: dict[str, TensorProto] | None,
) -> onnx.GraphProto:
    emitter = builder.emitter()
    builder.emit(emitter, block, precision)
    outputs = [builder.read_float(emitter, name) for name in block.outputs]
    pool = None if any(node.op_type == "MatMulNBits" for node in emitter.nodes) else pool
    constants = ChainMap(emitter.initializers, initializers)
    return _branch(f"{block.name}/{precision.name}", emitter.nodes, outputs, constants, pool)


def _branch(
    prefix: str,
    nodes: Sequence[onnx.NodeProto],
    outputs: Sequence[str],
    constants: Mapping[str, TensorProto],
    pool: dict[str, TensorProto] | None,
) -> onnx.GraphProto:
    """A branch with the `constants` that it reads. All names get a `prefix`: a subgraph may not shadow names of the
    outer graph. With a `pool`, large constants are put there instead, once for equal values."""
    weights = [constants[name] for name in dict.fromkeys(chain(*(node.input for node in nodes))) if name in constants]
    own = {name for node in nodes for name in node.output if name} | {tensor.name for tensor in weights}
    rename = {name: f"{prefix}/{name}" for name in own}
    if pool is not None:
        rename |= {weight.name: _pooled(pool, weight) for weight in weights if weight.ByteSize() >= LEAST_BYTES}
    graph = onnx.GraphProto(name=prefix)
    for node in nodes:
        copy = graph.node.add()
        copy.CopyFrom(node)
        copy.name = f"{prefix}/{node.name}"
        for names in (copy.input, copy.output):
            names[:] = [rename.get(name, name) for name in names]
    for tensor in weights:
        if pool is None or rename[tensor.name] not in pool:
            copy_tensor = graph.initializer.add()
            copy_tensor.CopyFrom(tensor)
            copy_tensor.name = rename[tensor.name]
    graph.output.extend(_untyped([rename[name] for name in outputs]))
    return graph


def _pooled(pool: dict[str, TensorProto], tensor: TensorProto) -> str:
    """The name of the tensor of the `pool` with these values, which is added if it is new."""
    copy = TensorProto()
    copy.CopyFrom(tensor)
    copy.name = ""
    copy.name = f"taglio/shared/{hashlib.blake2b(copy.SerializeToString(), digest_size=16).hexdigest()}"
    pool.setdefault(copy.name, copy)
    return copy.name
