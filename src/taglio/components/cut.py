"""Cut a quantised model into components by device. Does not choose where.

The plan says in which form a tensor travels to another device. Between components of one device, cuts fall on
quantised tensors: a QuantizeLinear belongs to the block that writes its tensor and a DequantizeLinear to each reader.
"""

from collections.abc import Container, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field

import onnx
from onnx import helper

from taglio.cluster.planning.schedule import components
from taglio.data.spec import dtype_of
from taglio.errors import BadOption, plural
from taglio.model.captures import node_inputs, writers
from taglio.model.derived import inferred, part_of
from taglio.model.graph import Graph
from taglio.model.load import Model
from taglio.profile.attribution import base_name
from taglio.quantize.keep_float import import_domains, keep_float

INT8 = "int8"


@dataclass(frozen=True, slots=True, eq=False)
class Component:
    """The part of a model that one device runs in one session. `shapes` are the observed shapes of its inputs and
    outputs, because dimensions in the file may be dynamic."""

    name: str
    device: str
    blocks: tuple[str, ...]
    proto: onnx.ModelProto
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Wires:
    """The plan's wire forms: the precisions in which each tensor travels to each device, and the device that holds
    inputs and outputs (`start`). An input that travels as int8 is quantised there by a component of its own, and an
    output that arrives as int8 is dequantised there likewise."""

    start: str
    copies: Mapping[tuple[str, str], frozenset[str]]

    def as_int8(self, tensor: str, device: str) -> bool:
        """Whether the tensor is sent to `device` as int8."""
        return INT8 in self.copies.get((tensor, device), ())


def cut(
    model: Model,
    graph: Graph,
    quantized: onnx.ModelProto,
    devices: Mapping[str, str],
    wires: Wires,
    levels: Mapping[str, int] | None = None,
) -> list[Component]:
    """Components in a running order: each after those it reads from.

    `devices` names the device of every block; `levels` are the least levels that are not 0, as a plan has them.
    Raises BadOption for a block without a device.
    """
    missing = [block.name for block in graph.blocks if block.name not in devices]
    if missing:
        raise BadOption(f"{plural(len(missing), 'block')} without a device, such as {missing[0]}: place every block")
    names = components(graph, devices, levels)
    ends = _ends(model, graph, devices, wires)
    if len(set(names.values())) == 1 and not ends:
        only = next(iter(names.values()))
        inputs = tuple(spec.name for spec in model.inputs)
        device, observed_shapes = devices[graph.blocks[0].name], _shapes(graph, (*inputs, *model.outputs))
        return [Component(only, device, tuple(names), quantized, inputs, model.outputs, observed_shapes)]
    last = {name: component for name, component in ends.items() if name in model.outputs}
    first = [component for name, component in ends.items() if name not in last]
    owner = _owners(model, graph, quantized, names, ends)
    cutting = _Cutting(quantized, owner, writers(quantized.graph.node), model.outputs, last)
    place = {component: devices[block] for block, component in names.items()}
    place |= dict.fromkeys(ends.values(), wires.start)
    tensors, nodes = graph.tensor_map(), quantized.graph.node
    quantize = {node.name: base_name(node.input[0], tensors) for node in nodes if node.op_type == "QuantizeLinear"}
    members = {}
    for name in dict.fromkeys([*first, *names.values(), *last.values()]):
        rule = _local(graph, devices, wires, place[name])
        local = {node: rule[tensor] for node, tensor in quantize.items() if tensor in rule}
        members[name] = cutting.members(name, local)
    info = _values(quantized, graph)
    initializers = {tensor.name for tensor in quantized.graph.initializer}
    floats = model.nodes().keys()
    in_order = []
    # Nothing reads the operators of a component without outputs.
    ports = {name: ports for name, ports in cutting.ports(members, initializers).items() if ports[1]}
    fixed_outputs = tuple(name for name in model.outputs if name in initializers)
    for name, (inputs, outputs) in ports.items():
        # A tensor may have fewer readers in a component than in the whole model; ONNX Runtime might then fuse more.
        keep_float(members[name], floats, outputs)
        # The last component writes outputs of the model that no operator computes.
        written = (*outputs, *fixed_outputs) if name == next(reversed(ports)) else outputs
        reads, writes = ([info[tensor] for tensor in side] for side in (inputs, written))
        proto = part_of(quantized, name, members[name], reads, writes)
        import_domains(proto)
        blocks = tuple(block for block, component in names.items() if component == name)
        observed_shapes = _shapes(graph, (*inputs, *written))
        in_order.append(Component(name, place[name], blocks, proto, inputs, written, observed_shapes))
    return in_order


@dataclass(frozen=True, slots=True, eq=False)
class _Cutting:
    """The quantised model with the component of every node that belongs to one (`owner`), the node that writes each
    tensor (`producer`), the model's `outputs`, and the components that dequantise some of these (`last`)."""

    quantized: onnx.ModelProto
    owner: Mapping[str, str]
    producer: Mapping[str, onnx.NodeProto]
    outputs: tuple[str, ...]
    last: Mapping[str, str]

    def members(self, component: str, quantised_here: Mapping[str, bool]) -> list[onnx.NodeProto]:
        """Copies of the nodes of a component, in order: its own, and those that each reader has. `quantised_here` says
        of a QuantizeLinear whether the component quantises its tensor itself; others are decided by who reads it."""
        nodes, owner, producer = self.quantized.graph.node, self.owner, self.producer
        waiting = [node for node in nodes if owner.get(node.name) == component]
        needed = {node.name for node in waiting}
        tensors_read = {name for node in waiting for name in node_inputs(node)}
        for node in waiting:  # grows: a copied node may read another one
            for name in node_inputs(node):
                source = producer.get(name)
                if source is None or source.name in needed:
                    continue
                # A tensor that arrives in float anyway is quantised here, not sent twice, unless the plan says
                # otherwise.
                local = source.op_type == "QuantizeLinear" and source.input[0] in tensors_read
                if source.name not in owner or quantised_here.get(source.name, local):
                    needed.add(source.name)
                    waiting.append(source)
        for name in self.outputs:  # a quantise/dequantise pair on a model output ends in the component that wrote it
            source = producer.get(name)
            if source is None or source.op_type != "DequantizeLinear":
                continue
            if self.last.get(name, owner.get(producer[source.input[0]].name)) == component:
                needed.add(source.name)
        return [deepcopy(node) for node in nodes if node.name in needed]

    def ports(
        self, members: Mapping[str, Sequence[onnx.NodeProto]], constants: Container[str]
    ) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
        """The tensors that each component reads from others, and those that it sends, by component."""
        tensors_read = {}
        for name, nodes in members.items():
            written = {tensor for node in nodes for tensor in node.output}
            reads = dict.fromkeys(tensor for node in nodes for tensor in node_inputs(node) if tensor not in written)
            tensors_read[name] = tuple(tensor for tensor in reads if tensor not in constants)
        ports = {}
        for name, nodes in members.items():
            read_outside = {*self.outputs}.union(*(reads for reader, reads in tensors_read.items() if reader != name))
            sent = [node for node in nodes if self._sender(node, name) == name]
            outputs = tuple(tensor for node in sent for tensor in node.output if tensor in read_outside)
            ports[name] = tensors_read[name], outputs
        return ports

    def _sender(self, node: onnx.NodeProto, component: str) -> str:
        """The component that sends the output of a node of `component`. The output of a copied DequantizeLinear is sent
        by the component that wrote its tensor."""
        home = self.owner.get(node.name, "")
        if not home:  # copied, so it reads a tensor
            home = self.owner.get(getattr(self.producer.get(node.input[0]), "name", ""), component)
        return next((self.last[tensor] for tensor in node.output if tensor in self.last), home)


def _values(quantized: onnx.ModelProto, graph: Graph) -> dict[str, onnx.ValueInfoProto]:
    """Type and dimensions of every value that may cross: as inferred, or, behind operators unknown to ONNX, the
    observed type with open dimensions."""
    typed = inferred(quantized).graph
    info = {value.name: value for value in [*typed.value_info, *typed.input, *typed.output]}
    typed_names = {name for name, value in info.items() if _typed(value.type)}
    tensors = graph.tensor_map()
    for tensor in graph.tensors:
        if tensor.name not in typed_names:
            kind = helper.np_dtype_to_tensor_dtype(dtype_of(tensor.dtype))
            info[tensor.name] = _open(tensor.name, kind, tensor.shape)
    zero_points = {tensor.name: tensor.data_type for tensor in quantized.graph.initializer}
    for node in quantized.graph.node:
        name = node.output[0] if node.op_type == "QuantizeLinear" else ""
        base = base_name(name, tensors) if name and name not in typed_names else None
        if base is not None and len(node.input) > 2 and node.input[2] in zero_points:
            info[name] = _open(name, zero_points[node.input[2]], tensors[base].shape)
    return info


def _typed(kind: onnx.TypeProto) -> bool:
    """Whether a type is known; sequences, maps and optionals are outputs of the model."""
    return bool(kind.tensor_type.elem_type) or kind.WhichOneof("value") not in (None, "tensor_type")


def _open(name: str, kind: int, shape: tuple[int, ...] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, None if shape is None else [None] * len(shape))


def _shapes(graph: Graph, names: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """Observed shapes of tensors, or of their int8 form."""
    tensors = graph.tensor_map()
    base_of = {name: base_name(name, tensors) for name in names}
    return {
        name: shape for name, base in base_of.items() if base is not None and (shape := tensors[base].shape) is not None
    }


def _ends(model: Model, graph: Graph, devices: Mapping[str, str], wires: Wires) -> dict[str, str]:
    """Component of each input that leaves the start device as int8, and of each output that arrives there as int8."""
    component_of, tensors = dict[str, str](), graph.tensor_map()
    for spec in model.inputs:
        if any(name == spec.name and INT8 in copies for (name, _), copies in wires.copies.items()):
            component_of[spec.name] = f"input-{wires.start}"
    for name in model.outputs:
        producer = tensors[name].producer
        away = producer is not None and devices[producer] != wires.start
        if away and wires.copies.get((name, wires.start), frozenset()) == frozenset({INT8}):
            component_of[name] = f"output-{wires.start}"
    return component_of


def _local(graph: Graph, devices: Mapping[str, str], wires: Wires, device: str) -> dict[str, bool]:
    """Whether a component on `device` quantises each tensor itself; tensors for which the reader decides are left
    out."""
    quantised_here = {}
    for tensor in graph.tensors:
        home = wires.start if tensor.producer is None else devices[tensor.producer]
        if home != device:
            quantised_here[tensor.name] = not wires.as_int8(tensor.name, device)
        elif tensor.producer is None:
            quantised_here[tensor.name] = True
    return quantised_here


def _owners(
    model: Model, graph: Graph, quantized: onnx.ModelProto, names: Mapping[str, str], ends: Mapping[str, str]
) -> dict[str, str]:
    """Component of every node except those that are copied to each reader: DequantizeLinear, and a model input's
    quantise/dequantise pair unless a component of its own quantises it."""
    block_of = {operator: block.name for block in graph.blocks for operator in block.operators}
    homes = {spec.name: ends.get(spec.name, "") for spec in model.inputs}
    homes |= {name: names[block_of[node.name]] for node in model.proto.graph.node for name in node.output}
    owner: dict[str, str] = {}
    for node in quantized.graph.node:
        if node.name in block_of:
            owner[node.name] = names[block_of[node.name]]
        elif node.op_type != "DequantizeLinear":
            base = base_name(node.input[0], homes)
            if base is not None and homes[base]:
                owner[node.name] = homes[base]
    return owner
