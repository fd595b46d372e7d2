"""The blocks of a model and the tensors between them: what a plan may place. Knows no costs."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from math import prod
from operator import attrgetter

import onnx

from taglio.data.spec import dtype_name, dtype_of
from taglio.errors import BadModel, BadOption
from taglio.model.captures import node_inputs, readers
from taglio.model.flops import operator_flops
from taglio.model.load import Model
from taglio.model.observe import Observed, tensor_shapes, tensor_types
from taglio.model.operators import integer, moves, refusal, scales, standard
from taglio.model.quantized import why_float
from taglio.model.sequences import joined, not_tensors
from taglio.weights import bytes_of, listed_bytes, of_nodes

ANCHORS = frozenset({"Conv", "ConvTranspose", "MatMul", "Gemm"})
ACTIVATIONS = frozenset(
    {"Relu", "Clip", "LeakyRelu", "PRelu", "Sigmoid", "Tanh", "HardSigmoid", "HardSwish", "Elu", "Selu", "Softplus",
     "Gelu"}
)  # fmt: skip
# y = x · gate(x): the two consumers of the anchor's output are the gate and the product.
GATES = frozenset({"Sigmoid", "HardSigmoid"})
_FLOAT = onnx.TensorProto.FLOAT
# Rows or columns that blockwise kernels need to be worth it: the size of one block of weights.
_LEAST_MATRIX = 32
_DYNAMIC_ALONE = "its only form beside float32 is int8-dynamic"
# Which input of an LSTM holds peephole weights.
_PEEPHOLES = 7
# The accuracy level at which MatMulNBits quantises its other operand to int8, for which processors have dot products;
# at 0, the default, it multiplies in float32.
INT8_PRODUCTS = 4
_KEEPS = "it keeps a state from step to step"


@dataclass(frozen=True, slots=True)
class Tensor:
    """An activation between blocks.

    `producer` is None for a model input. `shape` is None if unknown; if dimensions are dynamic, it is one of the
    shapes that occur. `dtype` is a NumPy name, or "str".
    """

    name: str
    shape: tuple[int, ...] | None
    element_bytes: int
    producer: str | None
    consumers: tuple[str, ...]
    dtype: str = "float32"

    @property
    def elements(self) -> int:
        """Number of values; 0 if the shape is not known before running."""
        return 0 if self.shape is None else prod(self.shape)

    @property
    def float_bytes(self) -> int:
        """Bytes in the model's own type."""
        return self.elements * self.element_bytes

    @property
    def int8_bytes(self) -> int:
        """Bytes when quantised to 8 bits."""
        return self.elements


@dataclass(frozen=True, slots=True)
class Block:
    """The smallest group of operators that a plan may place.

    `operators` are ONNX node names in execution order; `inputs` and `outputs` are activation tensors; `weights`
    are float initialisers. `refusal` says why the block has no int8 form ("" when it has one). `soft_tail` marks an
    anchor with an activation behind it that costs time in int8, such as x·sigmoid(x): such a block also has the form
    `int8-anchor`. `matrix` marks a product with a constant matrix, which also has the forms of
    `quantize/uncalibrated.py`; `recurrent` an LSTM that has `int8-dynamic`, and no int8 form; `blockwise_bits` are
    those of the weights of a MatMulNBits that multiplies in float32, which has the form that multiplies in int8.
    `writes_float` says whether all that it writes is float32, as the form `bfloat16` needs.
    `state_bytes` is the size of the state that it keeps between steps, `fixed_bytes` that of weights which no form
    changes: other types than float32, and those in the bodies of an If, Loop or Scan.
    """

    name: str
    kind: str
    operators: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weights: tuple[str, ...]
    weight_elements: int
    flops: int
    refusal: str
    movement: bool
    soft_tail: bool
    state_bytes: int = 0
    matrix: bool = False
    recurrent: bool = False
    fixed_bytes: int = 0
    blockwise_bits: int = 0
    writes_float: bool = False

    @property
    def anchor(self) -> str:
        """The type of the operator that the block is named after."""
        return self.kind.partition("+")[0]

    @property
    def quantizable(self) -> bool:
        """Whether the block has an int8 form."""
        return not self.refusal

    @property
    def has_choice(self) -> bool:
        """Whether the block has a form beside float32."""
        computes_float = self.writes_float and not self.movement
        return self.quantizable or self.recurrent or self.blockwise_bits > 0 or computes_float

    @property
    def carries(self) -> bool:
        """Whether the block only moves values and keeps their type: int8 as int8, float as float."""
        return self.movement and self.quantizable

    def weight_bytes(self, bits: int) -> int:
        """Bytes of the weights at `bits` each (scales not counted)."""
        return self.weight_elements * bits // 8 + self.fixed_bytes


# Why a block lacks a form; "" if it has it.
WhyNot = Callable[[Block], str]
NO_INT8: WhyNot = attrgetter("refusal")


@dataclass(frozen=True, slots=True)
class Flow:
    """A value that goes from the block that computes it to the blocks that read it.

    `tensors` are the first tensor and those that movement blocks (`moves`) make of it. `readers` are pairs of the
    tensor read and the reading block ("" for a model output). `producer` is None for a model input.
    """

    name: str
    producer: str | None
    tensors: tuple[str, ...]
    moves: tuple[str, ...]
    readers: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Graph:
    """Blocks in execution order and the tensors between them.

    `states` are pairs (output, input): outputs that are inputs of the next step. One block reads and writes each.
    It has no slots, so that cached properties can derive once what searches read thousands of times.
    """

    model_sha256: str
    blocks: tuple[Block, ...]
    tensors: tuple[Tensor, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    states: tuple[tuple[str, str], ...] = ()

    def block(self, name: str) -> Block:
        """The block called `name`. Raises BadOption with the nearest names otherwise."""
        if name not in self._by_name:
            raise BadOption(f'no block "{name}" among {len(self.blocks)}: `taglio inspect` lists them')
        return self._by_name[name]

    def tensor_map(self) -> Mapping[str, Tensor]:
        """Tensors by name."""
        return self._tensors

    @cached_property
    def _by_name(self) -> dict[str, Block]:
        return {block.name: block for block in self.blocks}

    @cached_property
    def _tensors(self) -> dict[str, Tensor]:
        return {tensor.name: tensor for tensor in self.tensors}

    @cached_property
    def flows(self) -> tuple[Flow, ...]:
        """The flows, in the order of their first tensor. Movement blocks belong to the flow they move."""
        blocks, tensors = self._by_name, self._tensors
        flows = []
        for tensor in self.tensors:
            producer = tensor.producer
            if producer is not None and blocks[producer].carries:
                continue
            members, moves, readers = [tensor.name], [], []
            for name in members:  # grows while it is walked
                if name in self.outputs:
                    readers.append((name, ""))
                for consumer in tensors[name].consumers:
                    block = blocks[consumer]
                    if block.carries and block.inputs[0] == name:
                        moves.append(consumer)
                        members += [output for output in block.outputs if output in tensors]
                    else:
                        readers.append((name, consumer))
            flows.append(Flow(tensor.name, producer, tuple(members), tuple(moves), tuple(readers)))
        return tuple(flows)

    @cached_property
    def readers(self) -> dict[str, list[str]]:
        """By block, the blocks that read what it writes, each as often as it does, also through movement; "" is the
        caller."""
        readers_of: dict[str, list[str]] = {}
        for flow in self.flows:
            if flow.producer:
                readers_of.setdefault(flow.producer, []).extend(reader for _, reader in flow.readers)
        return readers_of

    def without_int8(self, refusals: Mapping[str, str]) -> "Graph":
        """The same graph, with the blocks in `refusals` (name -> reason) refused their int8 form."""
        blocks = tuple(replace(block, refusal=block.refusal or refusals.get(block.name, "")) for block in self.blocks)
        return replace(self, blocks=blocks)

    def placeable(self, steps: int = 1) -> "Graph":
        """The graph as a planner sees it: states are neither inputs nor outputs, since they stay on one device, and the
        block that keeps a state needs the bytes that the state has after `steps` steps."""
        if not self.states:
            return self
        tensors = self.tensor_map()
        presents, pasts = {present for present, _ in self.states}, {past for _, past in self.states}
        state_bytes_of: dict[str | None, int] = {}
        for present, past in self.states:
            size = tensors[present].float_bytes
            grown = steps * (size - tensors[past].float_bytes)
            keeper = tensors[present].producer
            state_bytes_of[keeper] = state_bytes_of.get(keeper, 0) + max(size, grown)
        blocks = tuple(
            replace(
                block,
                inputs=tuple(name for name in block.inputs if name not in pasts),
                state_bytes=state_bytes_of.get(block.name, 0),
            )
            for block in self.blocks
        )
        return replace(
            self,
            blocks=blocks,
            tensors=tuple(tensor for tensor in self.tensors if tensor.name not in pasts),
            inputs=tuple(name for name in self.inputs if name not in pasts),
            outputs=tuple(name for name in self.outputs if name not in presents),
            states=(),
        )

    def candidates(self) -> tuple[Block, ...]:
        """Blocks that have an int8 form."""
        return tuple(block for block in self.blocks if block.quantizable)

    def refusal(self, why_not: WhyNot = NO_INT8) -> str:
        """Why the largest block without a form (int8, or that of `why_not`) has none, to end a sentence; "" if all
        have it."""
        refused = [block for block in self.blocks if why_not(block)]
        largest = max(refused, key=lambda block: (block.flops, block.weight_bytes(32)), default=None)
        return f"; the largest, {largest.name}: {why_not(largest)}" if largest is not None else ""

    def choices(self) -> tuple[Block, ...]:
        """Blocks that have a form beside float32."""
        return tuple(block for block in self.blocks if block.has_choice)


def build(model: Model, observed: Observed | None = None, states: tuple[tuple[str, str], ...] = ()) -> Graph:
    """Group the operators of `model` into blocks. Raises BadModel if the operators form a cycle.

    The operators that write and read a state of `states` (output, input), and all between them, become one block,
    which stays float.

    Shapes and types are those `observed` in an inference. Without one they are the static ones, and a dynamic dimension
    does not refuse a block its int8 form.
    """
    proto, operators = model.proto.graph, _Operators(model, observed)
    groups = operators.groups()
    if (apart := not_tensors(proto)) or states:
        reads = [[name for node in group for name in node_inputs(node)] for group in groups]
        groups = _in_order(joined(groups, reads, apart, states))
    reasons, state_tensors = why_float(model.proto), {name for pair in states for name in pair}
    blocks = []
    for group in groups:
        block = operators.block(group)
        why = model.no_int8 or next((reasons[node.name] for node in group if node.name in reasons), "")
        why = _KEEPS if state_tensors & {*block.inputs, *block.outputs} else why
        if why:
            block = replace(block, refusal=why, recurrent=False)
        if why == _KEEPS:
            block = replace(block, movement=False, soft_tail=False, blockwise_bits=0, writes_float=False)
        blocks.append(block)
    owner = {node.name: block.name for block, group in zip(blocks, groups, strict=True) for node in group}
    produced = {name: owner[node.name] for node in proto.node for name in node.output}
    inputs = tuple(spec.name for spec in model.inputs)
    names = [name for block in blocks for name in block.inputs] + [name for block in blocks for name in block.outputs]
    tensors = []
    for name in dict.fromkeys([*inputs, *names, *model.outputs]):
        is_weight = name in operators.initializers  # a weight that is an output: its readers read no activation
        users = [] if is_weight else [owner[node.name] for node in operators.consumers.get(name, ())]
        outside = tuple(dict.fromkeys(user for user in users if user != produced.get(name)))
        dtype = onnx.helper.tensor_dtype_to_np_dtype(operators.types.get(name, _FLOAT))
        shape = operators.shapes.get(name)
        tensors.append(Tensor(name, shape, dtype.itemsize, produced.get(name), outside, dtype_name(dtype)))
    return Graph(model.sha256, tuple(blocks), tuple(tensors), inputs, model.outputs, states)


class _Operators:
    """The operators of a model, who reads what they write, and the shapes and types of their tensors."""

    def __init__(self, model: Model, observed: Observed | None) -> None:
        graph = model.proto.graph
        self.nodes, self.outputs = graph.node, set(model.outputs)
        self.shapes, self.types = tensor_shapes(model.proto), tensor_types(model.proto)
        self.assumed = tensor_shapes(model.proto, dynamic=1) if observed is None else self.shapes
        for name, seen in (observed or {}).items():
            self.shapes[name] = seen.shape
            self.types[name] = onnx.helper.np_dtype_to_tensor_dtype(dtype_of(seen.dtype))
        self.initializers = {tensor.name for tensor in graph.initializer}
        self.fixed = {tensor.name: bytes_of([tensor]) for tensor in graph.initializer if tensor.data_type != _FLOAT}
        self.biases = {tensor.name for tensor in graph.initializer if all(size == 1 for size in tensor.dims[:-1])}
        self.consumers = readers(graph.node)

    def groups(self) -> list[list[onnx.NodeProto]]:
        """Anchors with the bias addition and activation that a runtime fuses into them, sums with their Relu (the end
        of a residual block); every other operator alone."""
        absorbed: set[str] = set()
        groups: list[list[onnx.NodeProto]] = []
        for node in self.nodes:
            if node.name not in absorbed:
                tail = self._tail(node) if node.op_type in ANCHORS else self._relu(node)
                groups.append([node, *tail])
                absorbed |= {member.name for member in groups[-1]}
        return _in_order(groups)

    def _tail(self, anchor: onnx.NodeProto) -> list[onnx.NodeProto]:
        tail: list[onnx.NodeProto] = []
        tensor = anchor.output[0]
        while tensor not in self.outputs:
            users = self.consumers.get(tensor, [])
            if len(users) == 1 and users[0].op_type == "Add" and anchor.op_type == "MatMul" and not tail:
                addends = [name for name in users[0].input if name != tensor]
                if not addends or addends[0] not in self.biases:
                    break
                tail.append(users[0])
            elif len(users) == 1 and users[0].op_type in ACTIVATIONS and len(users[0].output) == 1:
                return [*tail, users[0]]
            else:
                return [*tail, *self._gate(tensor, users)]
            tensor = users[0].output[0]
        return tail

    def _relu(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """The Relu behind a sum: int8 clips at zero while it quantises, so it needs no kernel of its own."""
        users = self.consumers.get(node.output[0], []) if node.op_type == "Add" else []
        only_relu = len(users) == 1 and users[0].op_type == "Relu" and node.output[0] not in self.outputs
        return users if only_relu else []

    def _gate(self, tensor: str, users: list[onnx.NodeProto]) -> list[onnx.NodeProto]:
        gates = [user for user in users if user.op_type in GATES]
        products = [user for user in users if user.op_type == "Mul"]
        if len(users) != 2 or len(gates) != 1 or len(products) != 1:
            return []
        gate, product = gates[0], products[0]
        gated = gate.output[0]
        if set(product.input) != {tensor, gated} or gated in self.outputs or len(self.consumers.get(gated, [])) != 1:
            return []
        return [gate, product]

    def block(self, group: list[onnx.NodeProto]) -> Block:
        """The block of a group of operators."""
        members = {node.name for node in group}
        produced = [name for node in group for name in node.output if name]
        reads = dict.fromkeys(name for node in group for name in node_inputs(node))
        inputs = tuple(name for name in reads if name not in produced and name not in self.initializers)
        outputs = tuple(
            name
            for name in produced
            if name in self.outputs or any(user.name not in members for user in self.consumers.get(name, ()))
        )
        weights = tuple(name for name in reads if name in self.initializers and self.types.get(name) == _FLOAT)
        first = group[0]
        why = refusal(first, outputs, self.initializers, self.assumed, self.types)
        recurrent = _recurs(first, weights, self.shapes)
        return Block(
            name=first.name,
            kind="+".join(node.op_type for node in group),
            operators=tuple(node.name for node in group),
            inputs=inputs,
            outputs=outputs,
            weights=weights,
            weight_elements=sum(prod(self.shapes[name]) for name in weights),
            flops=sum(operator_flops(node, self.shapes) for node in group),
            refusal=_DYNAMIC_ALONE if recurrent else why,
            movement=moves(first),
            soft_tail=len(group) > 1 and group[-1].op_type not in ("Add", "Relu", "Clip"),
            matrix=_multiplies(first, weights, self.shapes),
            recurrent=recurrent,
            blockwise_bits=_float_blockwise_bits(first),
            writes_float=bool(outputs) and all(self.types.get(name, _FLOAT) == _FLOAT for name in outputs),
            fixed_bytes=sum(self.fixed.get(name, 0) for name in reads)
            + bytes_of(of_nodes(group))
            + listed_bytes(group),
        )


def _in_order(groups: list[list[onnx.NodeProto]]) -> list[list[onnx.NodeProto]]:
    """The groups sorted topologically: a group may contain operators that stood on both sides of another's."""
    producer = {name: index for index, group in enumerate(groups) for node in group for name in node.output}
    sorter = TopologicalSorter[int](dict.fromkeys(range(len(groups)), ()))
    for index, group in enumerate(groups):
        needs = {producer[name] for node in group for name in node_inputs(node) if name in producer}
        sorter.add(index, *sorted(needs - {index}))
    try:
        return [groups[index] for index in sorter.static_order()]
    except CycleError as error:
        names = ", ".join(groups[index][0].name for index in error.args[1][1:4])
        raise BadModel(f"blocks of the model form a cycle ({names}): its graph is damaged") from None


def _multiplies(node: onnx.NodeProto, weights: Collection[str], shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether `node` is x·W, or x·W + c, with a constant float matrix W that is large enough for a blockwise kernel."""
    if node.op_type not in ("MatMul", "Gemm") or node.input[1] not in weights:
        return False
    matrix, plain = shapes[node.input[1]], not scales(node) and not integer(node, "transA")
    return plain and len(matrix) == 2 and min(matrix) >= _LEAST_MATRIX


def _float_blockwise_bits(node: onnx.NodeProto) -> int:
    """The bits of the weights if `node` is a MatMulNBits that does not multiply in int8 yet; else 0."""
    slow = node.op_type == "MatMulNBits" and integer(node, "accuracy_level") != INT8_PRODUCTS
    return integer(node, "bits", 4) if slow else 0


def _recurs(node: onnx.NodeProto, weights: Collection[str], shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether `node` is an LSTM with constant float matrices that both runtimes also take in int8: OpenVINO has no
    peepholes."""
    if node.op_type != "LSTM" or not standard(node) or any(node.input[_PEEPHOLES:]):
        return False
    return all(name in weights and min(shapes[name][1:], default=0) >= _LEAST_MATRIX for name in node.input[1:3])
