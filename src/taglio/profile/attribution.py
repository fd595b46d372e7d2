"""Join each kernel that ran to the block or tensor it worked for. Pure: optimised graph in, seconds out.

A kernel belongs to a block when it computes one of its operators; ONNX Runtime may fuse operators of several blocks
into one kernel (Conv + Add), which is then the block's with the most FLOPs. Whatever only changes a tensor's type or
layout (QuantizeLinear, DequantizeLinear, Reorder*, the Transpose of a channels-last kernel) belongs to that tensor.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import onnx

from taglio.graph import Graph, node_inputs
from taglio.model import Model

_GLUE = frozenset({"QuantizeLinear", "DequantizeLinear", "ReorderInput", "ReorderOutput"})
# What builders and ONNX Runtime append to the name of a tensor that they quantise, lay out anew or copy.
_MARKS = ("/int8", "/dequantized", "/float", "/kept", "/each")


@dataclass(frozen=True, slots=True)
class Attribution:
    """Seconds by block and by tensor, and how many kernels each holds; `orphans_s` could be joined to neither."""

    blocks_s: dict[str, float]
    tensors_s: dict[str, float]
    block_kernels: dict[str, int]
    tensor_kernels: dict[str, int]
    orphans_s: float
    orphans: tuple[str, ...]


class Attributor:
    """Attributes the kernels of any quantised variant of one model."""

    def __init__(self, model: Model, graph: Graph) -> None:
        self._flops = {block.name: block.flops for block in graph.blocks}
        owner = {name: block.name for block in graph.blocks for name in block.operators}
        nodes = model.proto.graph.node
        self._producer_block = {name: owner[node.name] for node in nodes for name in node.output if name}
        self._producer = {name: node for node in nodes for name in node.output if name}
        self._node_block = owner
        self._tensors = set(self._producer) | {spec.name for spec in model.inputs}
        self._initializers = {tensor.name for tensor in model.proto.graph.initializer}

    def attribute(self, optimized: onnx.ModelProto, kernels: Mapping[str, float]) -> Attribution:
        """Share `kernels` (seconds by node name) of `optimized` out to blocks and tensors."""
        produced = {name: node for node in optimized.graph.node for name in node.output}
        consumers: dict[str, list[onnx.NodeProto]] = {}
        for node in optimized.graph.node:
            for name in node.input:
                consumers.setdefault(name, []).append(node)
        blocks: dict[str, float] = {}
        tensors: dict[str, float] = {}
        block_kernels: dict[str, int] = {}
        tensor_kernels: dict[str, int] = {}
        orphans: list[str] = []
        lost = 0.0
        for node in optimized.graph.node:
            seconds = kernels.get(node.name)
            if seconds is None:
                continue
            block = None if node.op_type in _GLUE else self._block_of(node)
            if block is not None:
                blocks[block] = blocks.get(block, 0.0) + seconds
                block_kernels[block] = block_kernels.get(block, 0) + 1
                continue
            tensor = self._tensor_of(node, produced, consumers)
            if tensor is None:
                orphans.append(f"{node.op_type} {node.name}")
                lost += seconds
                continue
            tensors[tensor] = tensors.get(tensor, 0.0) + seconds
            tensor_kernels[tensor] = tensor_kernels.get(tensor, 0) + 1
        return Attribution(blocks, tensors, block_kernels, tensor_kernels, lost, tuple(orphans))

    def base(self, name: str) -> str | None:
        """The float model's tensor behind a name of the optimised graph, or None."""
        if name in self._tensors:
            return name
        for mark in _MARKS:
            head, found, _ = name.rpartition(mark)
            if found and head in self._tensors:
                return head
        return None

    def _block_of(self, node: onnx.NodeProto) -> str | None:
        for name in node.output:
            base = self.base(name)
            if base is not None and base in self._producer_block:
                if node.op_type == "Max" and name.endswith("/kept"):
                    return None
                return self._covering_block(base, node)
        # Layout rewrites rename outputs, but keep the name of the operator or of its output in the node's name.
        head = node.name
        for mark in ("_nchwc", "/QuickGeluFusion/", "_nhwc", "_token_"):
            head = head.split(mark)[0]
        if head in self._producer_block:
            return self._producer_block[head]
        if head in self._node_block:
            return self._node_block[head]
        base = self.base(head)
        return self._producer_block.get(base) if base else None

    def _covering_block(self, output: str, kernel: onnx.NodeProto) -> str:
        """Of the blocks between a kernel's inputs and its output, the one with the most FLOPs."""
        stops = {base for name in kernel.input if (base := self.base(name)) is not None}
        found: dict[str, None] = {}
        waiting, seen = [output], set[str]()
        while waiting:
            name = waiting.pop()
            if name in seen or name in stops or name not in self._producer:
                continue
            seen.add(name)
            found[self._producer_block[name]] = None
            if len(found) > 4:  # the inputs were renamed: the walk has left the kernel
                return self._producer_block[output]
            waiting += [each for each in node_inputs(self._producer[name]) if each not in self._initializers]
        return max(found or {self._producer_block[output]: None}, key=lambda block: self._flops[block])

    def _tensor_of(
        self,
        node: onnx.NodeProto,
        produced: Mapping[str, onnx.NodeProto],
        consumers: Mapping[str, list[onnx.NodeProto]],
    ) -> str | None:
        for name in (*node.output, *node.input):
            base = self.base(name)
            if base is not None:
                return base
        upstream = node
        for _ in range(4):  # a chain of glue: Transpose behind a layout rewrite, and the like
            source = next((produced[name] for name in upstream.input if name in produced), None)
            if source is None:
                break
            block = None if source.op_type in _GLUE else self._block_of(source)
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

    def _last_output(self, block: str) -> str:
        return [name for name, owner in self._producer_block.items() if owner == block][-1]
