"""Attribution: join each kernel that ran to its block or tensor. Pure: optimised graph in, seconds out.

A kernel belongs to the block whose operator it computes; if ONNX Runtime fuses operators of several blocks into one
kernel (Conv + Add), it belongs to the Conv's. A kernel that only changes a tensor's type or layout (QuantizeLinear,
DequantizeLinear, Reorder*, the Transpose of a channels-last kernel) belongs to that tensor. So does a movement block:
pairs are moved past it, so its time depends on the forms of producer and readers, as theirs does.
"""

from collections import defaultdict
from collections.abc import Container, Mapping
from dataclasses import dataclass

import onnx

from taglio.model.captures import node_inputs, readers, writers
from taglio.model.graph import Graph
from taglio.model.load import Model

_GLUE = frozenset({"QuantizeLinear", "DequantizeLinear", "ReorderInput", "ReorderOutput"})
# What builders and ONNX Runtime append to the name of a tensor that they quantise, change in layout or copy.
_LAYOUT_MARKS = ("_nchwc", "/QuickGeluFusion/", "_nhwc", "_token_")
_MARKS = ("_pre_q", "_q_to_dq", "_q", "/int8", "/dequantized", "/float", "/kept", "/quantize", "/dequantize")


@dataclass(frozen=True, slots=True)
class Attribution:
    """Seconds of kernels by block and by tensor; `orphans_s` are those of kernels that could be joined to neither."""

    blocks_s: dict[str, float]
    tensors_s: dict[str, float]
    orphans_s: float


class Attributor:
    """Attributes the kernels of any quantised variant of one model."""

    def __init__(self, model: Model, graph: Graph) -> None:
        self._anchor = {block.name: block.anchor for block in graph.blocks}
        self._moves = {block.name: block.outputs[0] for block in graph.blocks if block.movement and block.outputs}
        owner = {name: block.name for block in graph.blocks for name in block.operators}
        nodes = model.proto.graph.node
        self._producer_block = {name: owner[node.name] for node in nodes for name in node.output if name}
        self._producer = writers(nodes)
        self._node_block = owner
        self._tensors = set(self._producer) | {spec.name for spec in model.inputs}
        self._initializers = {tensor.name for tensor in model.proto.graph.initializer}
        self._between = {tensor.name for tensor in graph.tensors}

    def attribute(self, optimized: onnx.ModelProto, kernels: Mapping[str, float]) -> Attribution:
        """Attribute `kernels` (seconds by node name) of the graph `optimized` to blocks and tensors."""
        produced, consumers = writers(optimized.graph.node), readers(optimized.graph.node)
        blocks, tensors = defaultdict[str, float](float), defaultdict[str, float](float)
        orphans_s = 0.0
        for node in optimized.graph.node:
            seconds = kernels.get(node.name)
            if seconds is None:
                continue
            block = None if self._is_glue(node) else self._block_of(node)
            if block is not None and block not in self._moves:
                blocks[block] += seconds
                continue
            tensor = self._moves[block] if block is not None else self._tensor_of(node, produced, consumers)
            if tensor is None:
                orphans_s += seconds
                continue
            if tensor not in self._between:  # inside a block, or behind a Relu that quantising absorbed
                inside = self._producer_block[tensor]
                if self._feeds(node, inside, consumers):
                    blocks[inside] += seconds
                    continue
                tensor = self._last_output(inside)
            tensors[tensor] += seconds
        return Attribution(dict(blocks), dict(tensors), orphans_s)

    def base(self, name: str) -> str | None:
        """The float model's tensor that a name of the optimised graph stands for, or None."""
        return base_name(name, self._tensors)

    def _is_glue(self, node: onnx.NodeProto) -> bool:
        return node.op_type in _GLUE or (node.op_type == "Transpose" and node.name not in self._node_block)

    def _block_of(self, node: onnx.NodeProto) -> str | None:
        # Layout rewrites rename outputs, but the node's name still begins with that of the operator or its output.
        head = node.name
        for mark in _LAYOUT_MARKS:
            head = head.split(mark)[0]
        if head != node.name:
            base = self.base(head)
            if base in self._producer_block:
                return self._producer_block[base]
            if head in self._node_block:
                return self._node_block[head]
        for name in node.output:
            base = self.base(name)
            if base is not None and base in self._producer_block:
                return None if name.endswith("/kept") else self._fused_block(base, node)
        return self._node_block.get(node.name)

    def _fused_block(self, output: str, kernel: onnx.NodeProto) -> str:
        """The block that a kernel ending in `output` computes: the nearest one upstream whose anchor is of its type."""
        stops = {base for name in kernel.input if (base := self.base(name)) is not None}
        waiting, seen = [output], set[str]()
        # Conv + Add + Relu is the longest chain that ONNX Runtime fuses; gates add two.
        while waiting and len(seen) < 8:
            name = waiting.pop(0)
            if name in seen or name in stops or name not in self._producer:
                continue
            seen.add(name)
            block = self._producer_block[name]
            if self._anchor[block] in kernel.op_type:
                return block
            waiting += [tensor for tensor in node_inputs(self._producer[name]) if tensor not in self._initializers]
        return self._producer_block[output]

    def _tensor_of(
        self,
        node: onnx.NodeProto,
        produced: Mapping[str, onnx.NodeProto],
        consumers: Mapping[str, list[onnx.NodeProto]],
    ) -> str | None:
        # The builder names a pair after its tensor; its input may have another name once a Relu is absorbed.
        for name in (node.name, *node.output, *node.input):
            base = self.base(name)
            if base is not None:
                return base
        upstream = node
        for _ in range(4):  # a chain of glue, such as a Transpose behind a layout rewrite
            source = next((produced[name] for name in upstream.input if name in produced), None)
            if source is None:
                break
            block = None if self._is_glue(source) else self._block_of(source)
            if block is not None:
                return self._last_output(block)
            upstream = source
        downstream = node
        for _ in range(4):
            users = [user for name in downstream.output for user in consumers.get(name, ())]
            if not users:
                return None
            for name in users[0].output:
                base = self.base(name)
                if base is not None:
                    return base
            downstream = users[0]
        return None

    def _feeds(self, node: onnx.NodeProto, block: str, consumers: Mapping[str, list[onnx.NodeProto]]) -> bool:
        """Whether the first computing kernel behind `node` belongs to `block`."""
        while self._is_glue(node):
            users = [user for name in node.output for user in consumers.get(name, ())]
            if not users:
                return False
            node = users[0]
        return self._block_of(node) == block

    def _last_output(self, block: str) -> str:
        return [name for name, owner in self._producer_block.items() if owner == block][-1]


def base_name(name: str, tensors: Container[str]) -> str | None:
    """The float model's tensor (one of `tensors`) that a name of a quantised or optimised graph stands for."""
    if name in tensors:
        return name
    for mark in _MARKS:
        head, separator, _ = name.rpartition(mark)
        if separator and head in tensors:
            return head
    return None
