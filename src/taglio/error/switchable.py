"""One graph in which every block can be switched to each of its precisions. Measures nothing itself.

Each switchable block becomes an `If` per precision: its `then` branch holds the very nodes that the quantised
model would hold, so ONNX Runtime runs the same int8 kernels in both; its `else` branch holds the float block.
A pair is idempotent, so a block may quantise an input that its producer already quantised and nothing changes:
flags can be set in any combination and each gives the truly quantised model of that subset.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper

from taglio.errors import BadOption
from taglio.graph import Block, Graph, node_inputs
from taglio.model import Model
from taglio.quantize.emitter import Emitter
from taglio.quantize.precision import Assignment, Precision
from taglio.quantize.qdq import QdqBuilder
from taglio.runtimes.onnxruntime import SessionOptions, open_session, run_session

FLAGS_INPUT = "taglio/flags"


@dataclass(frozen=True, slots=True)
class Switch:
    """One flag: `block` in `precision`."""

    block: str
    precision: Precision


class Switchable:
    """A live session over the switchable graph."""

    def __init__(
        self,
        model: Model,
        graph: Graph,
        builder: QdqBuilder,
        precisions: Sequence[Precision],
        options: SessionOptions,
    ) -> None:
        self.switches = tuple(
            Switch(block.name, precision)
            for block in graph.blocks
            for precision in precisions
            if precision.scheme is not None and precision.fits(block)
        )
        self._index = {(switch.block, switch.precision.name): i for i, switch in enumerate(self.switches)}
        self._outputs = model.outputs
        self._session = open_session(
            switchable_graph(model, graph, builder, self.switches), options, label="the switchable graph"
        )

    def flags(self, assignment: Assignment) -> np.ndarray:
        """Flag vector of an assignment, shape [switches], bool."""
        flags = np.zeros(len(self.switches), np.bool_)
        for block, precision in assignment.items():
            if precision.scheme is not None:
                if (block, precision.name) not in self._index:
                    raise BadOption(f"block {block} has no switch to {precision.name}: no such block, or no such form")
                flags[self._index[block, precision.name]] = True
        return flags

    def run(self, assignment: Assignment, feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Outputs of the model with `assignment` quantised, on one feed."""
        flags = self.flags(assignment)
        feeds = {**feed, FLAGS_INPUT: flags} if len(flags) else dict(feed)
        return run_session(self._session, self._outputs, feeds, "the data")


def switchable_graph(model: Model, graph: Graph, builder: QdqBuilder, switches: Sequence[Switch]) -> onnx.ModelProto:
    """The ONNX model behind `Switchable`: the original inputs and one bool vector with a flag per switch."""
    nodes = {node.name: node for node in model.proto.graph.node}
    initializers = model.initializers()
    by_block: dict[str, list[int]] = {}
    for index, switch in enumerate(switches):
        by_block.setdefault(switch.block, []).append(index)
    flag_names = [f"{FLAGS_INPUT}/{index}" for index in range(len(switches))]
    out = onnx.ModelProto(ir_version=model.proto.ir_version, producer_name="taglio")
    out.opset_import.extend(model.proto.opset_import)
    target = out.graph
    target.name = "switchable"
    target.input.extend(model.proto.graph.input)
    target.output.extend(model.proto.graph.output)
    target.value_info.extend(model.proto.graph.value_info)
    if switches:
        target.input.append(helper.make_tensor_value_info(FLAGS_INPUT, TensorProto.BOOL, [len(switches)]))
        target.node.append(helper.make_node("Split", [FLAGS_INPUT], flag_names, name="taglio/split", axis=0))
        sizes = helper.make_tensor("taglio/ones", TensorProto.INT64, [len(switches)], [1] * len(switches))
        target.initializer.append(sizes)
        target.node[0].input.append(sizes.name)
    outer: dict[str, None] = {}
    for block in graph.blocks:
        members = [nodes[name] for name in block.operators]
        if block.name not in by_block:
            target.node.extend(members)
            outer.update(dict.fromkeys(name for node in members for name in node_inputs(node)))
            continue
        branch = _branch(block, members, initializers, "float32")
        for index in by_block[block.name]:
            emitter = Emitter()
            builder.emit(emitter, block, switches[index].precision)
            chosen = _int8_branch(block, emitter, builder, initializers, switches[index].precision.name)
            names = list(block.outputs) if index == by_block[block.name][-1] else _inner(block, index)
            node = helper.make_node("If", [flag_names[index]], names, name=f"{block.name}/switch/{index}")
            node.attribute.append(helper.make_attribute("then_branch", chosen))
            node.attribute.append(helper.make_attribute("else_branch", branch))
            branch = helper.make_graph([node], f"{block.name}/else/{index}", [], _untyped(names))
        target.node.append(node)
    target.initializer.extend(initializers[name] for name in outer if name in initializers)
    return out


def _inner(block: Block, index: int) -> list[str]:
    return [f"{name}/switch/{index}" for name in block.outputs]


def _untyped(names: Sequence[str]) -> list[onnx.ValueInfoProto]:
    return [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names]


def _branch(
    block: Block, members: Sequence[onnx.NodeProto], initializers: Mapping[str, onnx.TensorProto], tag: str
) -> onnx.GraphProto:
    weights = dict.fromkeys(name for node in members for name in node.input if name in initializers)
    return _graph(block, list(members), [initializers[name] for name in weights], list(block.outputs), tag)


def _int8_branch(
    block: Block,
    emitter: Emitter,
    builder: QdqBuilder,
    initializers: Mapping[str, onnx.TensorProto],
    tag: str,
) -> onnx.GraphProto:
    outputs = [builder.read_float(emitter, name) for name in block.outputs]
    used = {name for node in emitter.nodes for name in node.input}
    weights = [tensor for name, tensor in initializers.items() if name in used]
    return _graph(block, emitter.nodes, [*weights, *emitter.initializers.values()], outputs, tag)


def _graph(
    block: Block, nodes: list[onnx.NodeProto], weights: list[onnx.TensorProto], outputs: list[str], tag: str
) -> onnx.GraphProto:
    """A branch whose own names are unique: a subgraph may not shadow a name of the outer graph."""
    own = {name for node in nodes for name in node.output if name} | {tensor.name for tensor in weights}
    rename = {name: f"{block.name}/{tag}/{name}" for name in own}
    graph = onnx.GraphProto(name=f"{block.name}/{tag}")
    for node in nodes:
        copy = graph.node.add()
        copy.CopyFrom(node)
        copy.name = f"{block.name}/{tag}/{node.name}"
        for names in (copy.input, copy.output):
            for index, name in enumerate(names):
                names[index] = rename.get(name, name)
    for tensor in weights:
        copy_tensor = graph.initializer.add()
        copy_tensor.CopyFrom(tensor)
        copy_tensor.name = rename[tensor.name]
    graph.output.extend(_untyped([rename[name] for name in outputs]))
    return graph
