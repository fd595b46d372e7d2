"""Find outputs whose rows are in the order of computed scores. Pure: runs no model.

Where TopK or non-maximum suppression chooses rows, a small change of two scores exchanges whole rows.
"""

from collections.abc import Mapping

import onnx

from taglio.model.captures import writers

_RANKS = frozenset({"TopK", "NonMaxSuppression"})
_CHOOSES = frozenset({"Gather", "GatherElements", "GatherND"})
# These keep the rows of what they read, or move them in ways that do not depend on values.
_KEEPS = _CHOOSES | frozenset(
    {"Identity", "Cast", "Concat", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Slice", "Split", "Add",
     "Sub", "Mul", "Div", "Sigmoid", "Exp", "Clip", "Where"}
)  # fmt: skip


def ranked_outputs(graph: onnx.GraphProto) -> list[str]:
    """The outputs that hold rows chosen by TopK or non-maximum suppression."""
    producers = writers(graph.node)
    return [value.name for value in graph.output if _chosen(value.name, producers)]


def _chosen(output: str, producers: Mapping[str, onnx.NodeProto]) -> bool:
    choosing = [node for node in _behind(output, producers, _KEEPS) if node.op_type in _CHOOSES]
    return any(source.op_type in _RANKS for node in choosing for source in _behind(node.input[1], producers))


def _behind(
    name: str, producers: Mapping[str, onnx.NodeProto], through: frozenset[str] | None = None
) -> list[onnx.NodeProto]:
    """The nodes that `name` depends on, by way of operators in `through` (None: any)."""
    node_of: dict[str, onnx.NodeProto] = {}
    waiting = [name]
    while waiting:
        node = producers.get(waiting.pop())
        if node is not None and node.output[0] not in node_of and (through is None or node.op_type in through):
            node_of[node.output[0]] = node
            waiting += node.input
    return [*node_of.values()]
