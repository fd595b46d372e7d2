"""The switchable graph: one model in which every block can be switched to each of its precisions. Measures nothing.

Each block becomes an `If` per precision (several int8 schemes, its anchor alone, float16). The `then` branch holds
exactly the nodes of the quantised model, so ONNX Runtime runs the same int8 kernels; the `else` branch holds the float
block. A quantise/dequantise pair is idempotent: quantising an input that its producer already quantised changes
nothing. So flags can be set in any combination, and each gives the quantised model of that subset. A tensor with a wire
switch can be quantised for a link alone, with float blocks on both sides.
"""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

from taglio.error.batch import with_free_batch
from taglio.errors import BadData, BadOption, TaglioError
from taglio.model.captures import node_inputs
from taglio.model.graph import Block, Graph, flows
from taglio.model.load import Model
from taglio.quantize.emitter import Emitter
from taglio.quantize.keep_float import MICROSOFT
from taglio.quantize.precision import Assignment, Precision
from taglio.quantize.qdq import QdqBuilder
from taglio.quantize.scheme import Scheme
from taglio.runtimes.onnxruntime import SessionOptions, open_session, run_session

FLAGS_INPUT = "taglio/flags"


@dataclass(frozen=True, slots=True)
class Switch:
    """One flag: `block` in `precision`."""

    block: str
    precision: Precision


@dataclass(frozen=True, slots=True)
class WireSwitch:
    """One flag: `tensor` travels as int8 under `scheme`, whatever the forms of its producer and readers."""

    tensor: str
    scheme: Scheme


class Switchable:
    """A session of the switchable graph."""

    def __init__(
        self,
        model: Model,
        graph: Graph,
        builder: QdqBuilder,
        precisions: Sequence[Precision],
        options: SessionOptions,
        *,
        wires: Mapping[str, Scheme] | None = None,
        together: Sequence[Mapping[str, np.ndarray]] = (),
    ) -> None:
        """`precisions` may include several int8 variants and float16, with distinct names. `wires` maps tensors that
        can be quantised for a link alone to their schemes. If one run of the feeds `together` gives the same answers as
        single runs, and faster, `run_all` runs that many at once."""
        self.switches = tuple(
            Switch(block.name, precision)
            for block in graph.blocks
            for precision in precisions
            if precision.form != "float" and precision.fits(block)
        )
        self.wires = tuple(WireSwitch(tensor, scheme) for tensor, scheme in (wires or {}).items())
        self._index = {(switch.block, switch.precision.name): i for i, switch in enumerate(self.switches)}
        self._wire_index = {wire.tensor: len(self.switches) + i for i, wire in enumerate(self.wires)}
        self._producer = {tensor.name: tensor.producer for tensor in graph.tensors}
        self._outputs = model.outputs
        self._fed = {name: _fed_name(name, self._wire_index) for name in graph.inputs}
        proto = switchable_graph(model, graph, builder, self.switches, self.wires)
        self._session = open_session(proto, options, label="the switchable graph")
        self._batched: ort.InferenceSession | None = None
        self.at_once = 1
        if len(together) > 1 and all(each.type.startswith("tensor(") for each in self._session.get_outputs()):
            self._try_together(proto, options, together)

    @property
    def provider(self) -> str:
        """The ONNX Runtime provider that runs the graph."""
        return str(self._session.get_providers()[0])

    def flags(self, assignment: Assignment, wires: Collection[str] = ()) -> np.ndarray:
        """The flags of an assignment and of tensors that travel as int8, bool [switches + wires]. Raises BadOption for
        a block, form or tensor without a switch."""
        flags = np.zeros(len(self.switches) + len(self.wires), np.bool_)
        for block, precision in assignment.items():
            if precision.form != "float":
                if (block, precision.name) not in self._index:
                    raise BadOption(f"block {block} has no switch to {precision.name}: no such block, or no such form")
                flags[self._index[block, precision.name]] = True
        for tensor in wires:
            if tensor not in self._wire_index:
                raise BadOption(f"tensor {tensor} has no wire switch: name it when the switchable graph is built")
            producer = assignment.get(self._producer[tensor] or "")
            # A tensor that is written in int8 travels under its producer's scheme.
            flags[self._wire_index[tensor]] = producer is None or not producer.int8_output
        return flags

    def run(
        self, assignment: Assignment, feed: Mapping[str, np.ndarray], wires: Collection[str] = ()
    ) -> list[np.ndarray]:
        """Outputs of the model with `assignment` quantised and `wires` travelling as int8, on one feed."""
        return run_session(self._session, self._outputs, self._feeds(assignment, feed, wires), "the data")

    def run_all(
        self, assignment: Assignment, feeds: Sequence[Mapping[str, np.ndarray]], wires: Collection[str] = ()
    ) -> Iterator[list[np.ndarray]]:
        """The same for each of `feeds`, several at once if that was found to be correct and faster."""
        for start in range(0, len(feeds), self.at_once):
            several = feeds[start : start + self.at_once]
            if self._batched is None or len(several) == 1 or len({_shapes(feed) for feed in several}) > 1:
                for feed in several:
                    yield self.run(assignment, feed, wires)
                continue
            stacked = {name: np.concatenate([feed[name] for feed in several]) for name in several[0]}
            outputs = run_session(self._batched, self._outputs, self._feeds(assignment, stacked, wires), "the data")
            for parts in zip(*(np.split(each, len(several)) for each in outputs), strict=True):
                yield list(parts)

    def _feeds(
        self, assignment: Assignment, feed: Mapping[str, np.ndarray], wires: Collection[str]
    ) -> dict[str, np.ndarray]:
        flags = self.flags(assignment, wires)
        feeds = {self._fed[name]: value for name, value in feed.items()}
        if len(flags):
            feeds[FLAGS_INPUT] = flags
        return feeds

    def _try_together(
        self, proto: onnx.ModelProto, options: SessionOptions, feeds: Sequence[Mapping[str, np.ndarray]]
    ) -> None:
        """Keep a session for several inputs at once if it is faster and gives the same answers, in float and with all
        blocks switched."""
        everything = {switch.block: switch.precision for switch in self.switches}
        try:
            batched = open_session(with_free_batch(proto, {FLAGS_INPUT}), options, label="the switchable graph")
            seconds = {True: float("inf"), False: float("inf")}
            for attempt in range(3):
                for assignment in ({}, everything):
                    answers = {}
                    for together in (False, True):
                        self._batched, self.at_once = (batched, len(feeds)) if together else (None, 1)
                        start = time.perf_counter()
                        answers[together] = [
                            np.stack(parts) for parts in zip(*self.run_all(assignment, feeds), strict=True)
                        ]
                        if attempt and assignment:  # the first run of a session allocates
                            seconds[together] = min(seconds[together], time.perf_counter() - start)
                    if not all(_alike(a, b) for a, b in zip(answers[False], answers[True], strict=True)):
                        raise BadData("answers differ")
        except (TaglioError, ValueError, IndexError, TypeError):  # some operator or output allows only one input
            seconds = {True: 1.0, False: 0.0}
        if seconds[True] >= seconds[False]:
            self._batched, self.at_once = None, 1


def _shapes(feed: Mapping[str, np.ndarray]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple((name, value.shape) for name, value in feed.items())


def _alike(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two answers differ by no more than reordered sums, which int8 rounding can amplify to a step, explain."""
    if one.dtype.kind != "f":
        return np.array_equal(one, other)
    odd = ~np.isfinite(one)
    if one.shape != other.shape or not np.array_equal(one[odd], other[odd], equal_nan=True):
        return False
    one, other = one[~odd], other[~odd]
    scale = float(np.abs(one).max(initial=0.0)) or 1.0
    return float(np.abs(one - other).max(initial=0.0)) <= 1e-3 * scale


def quantizable_flows(graph: Graph) -> tuple[str, ...]:
    """The flows that an int8 block may read: float tensors of known shape with a candidate among their readers."""
    computing = {block.name for block in graph.candidates() if not block.movement}
    tensors = graph.tensor_map()
    return tuple(
        flow.name
        for flow in flows(graph)
        if tensors[flow.name].element_bytes == 4
        and tensors[flow.name].shape
        and any(reader in computing for _, reader in flow.readers)
    )


def switchable_graph(
    model: Model, graph: Graph, builder: QdqBuilder, switches: Sequence[Switch], wires: Sequence[WireSwitch] = ()
) -> onnx.ModelProto:
    """The ONNX model behind `Switchable`: the original inputs and one bool vector with a flag per switch and wire."""
    nodes = {node.name: node for node in model.proto.graph.node}
    initializers = model.initializers()
    by_block: dict[str, list[int]] = {}
    for index, switch in enumerate(switches):
        by_block.setdefault(switch.block, []).append(index)
    by_tensor = {wire.tensor: (len(switches) + index, wire.scheme) for index, wire in enumerate(wires)}
    flag_names = [f"{FLAGS_INPUT}/{index}" for index in range(len(switches) + len(wires))]
    out = onnx.ModelProto(ir_version=model.proto.ir_version, producer_name="taglio")
    out.opset_import.extend(model.proto.opset_import)
    out.functions.extend(model.proto.functions)
    target = out.graph
    target.name = "switchable"
    target.input.extend(model.proto.graph.input)
    target.output.extend(model.proto.graph.output)
    target.value_info.extend(model.proto.graph.value_info)
    for value in target.input:
        value.name = _fed_name(value.name, by_tensor)
    if flag_names:
        count = len(flag_names)
        target.input.append(helper.make_tensor_value_info(FLAGS_INPUT, TensorProto.BOOL, [count]))
        sizes = helper.make_tensor("taglio/ones", TensorProto.INT64, [count], [1] * count)
        target.initializer.append(sizes)
        target.node.append(
            helper.make_node("Split", [FLAGS_INPUT, sizes.name], flag_names, name="taglio/split", axis=0)
        )
    outer: dict[str, None] = dict.fromkeys(model.outputs)  # one may be a constant
    for name in graph.inputs:
        if name in by_tensor:
            index, scheme = by_tensor[name]
            target.node.append(_wire(builder, name, scheme, flag_names[index]))
    for block in graph.blocks:
        first = len(target.node)
        members = [nodes[name] for name in block.operators]
        if block.name not in by_block:
            target.node.extend(members)
            outer.update(dict.fromkeys(name for node in members for name in node_inputs(node)))
        else:
            branch = _branch(block, members, initializers, "float32")
            for index in by_block[block.name]:
                emitter = builder.emitter()
                builder.emit(emitter, block, switches[index].precision)
                chosen = _int8_branch(block, emitter, builder, initializers, switches[index].precision.name)
                names = list(block.outputs) if index == by_block[block.name][-1] else _inner(block, index)
                node = helper.make_node("If", [flag_names[index]], names, name=f"{block.name}/switch/{index}")
                node.attribute.append(helper.make_attribute("then_branch", chosen))
                node.attribute.append(helper.make_attribute("else_branch", branch))
                branch = helper.make_graph([node], f"{block.name}/else/{index}", [], _untyped(names))
            target.node.append(node)
        for name in block.outputs:
            if name in by_tensor:
                for written in list(target.node)[first:]:
                    written.output[:] = [_fed_name(each, by_tensor) for each in written.output]
                index, scheme = by_tensor[name]
                target.node.append(_wire(builder, name, scheme, flag_names[index]))
                first = len(target.node)
    target.initializer.extend(initializers[name] for name in outer if name in initializers)
    if MICROSOFT not in {each.domain for each in out.opset_import}:  # branches may hold ONNX Runtime's own operators
        out.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
    return out


def _fed_name(name: str, wires: Collection[str]) -> str:
    """The name under which a tensor is written; readers of a tensor with a wire switch read the switch's output."""
    return f"{name}/unwired" if name in wires else name


def _wire(builder: QdqBuilder, tensor: str, scheme: Scheme, flag: str) -> onnx.NodeProto:
    """An If that puts a quantise/dequantise pair on `tensor`, or passes it on."""
    source = _fed_name(tensor, {tensor})
    emitter = builder.emitter()
    emitter.written[tensor] = scheme
    pair = builder.read_float(emitter, tensor)
    for node in emitter.nodes:
        node.input[:] = [source if name == tensor else name for name in node.input]
    chosen = helper.make_graph(emitter.nodes, f"{tensor}/wire", [], _untyped([pair]), [*emitter.initializers.values()])
    for named in (chosen.node, chosen.initializer):
        for each in named:
            each.name = f"wire/{each.name}"
    for node in chosen.node:
        node.input[:] = [name if name == source else f"wire/{name}" for name in node.input]
        node.output[:] = [f"wire/{name}" for name in node.output]
    chosen.output[0].name = f"wire/{pair}"
    copy = helper.make_node("Identity", [source], [f"wire/{tensor}/float"], name=f"wire/{tensor}/pass")
    other = helper.make_graph([copy], f"{tensor}/pass", [], _untyped([copy.output[0]]))
    node = helper.make_node("If", [flag], [tensor], name=f"{tensor}/wire")
    node.attribute.append(helper.make_attribute("then_branch", chosen))
    node.attribute.append(helper.make_attribute("else_branch", other))
    return node


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
    """A branch with unique names: a subgraph may not shadow names of the outer graph."""
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
