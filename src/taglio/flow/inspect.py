"""What a model is before anything is measured: its operators, what can be int8, and the gain to expect from that.

Runs nothing, and reads no data.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from taglio.model.graph import Block, Graph
from taglio.model.load import Model
from taglio.runtimes.processor import computes_bfloat16, int8_gain


@dataclass(frozen=True, slots=True)
class Inspection:
    """Operators by type, the most frequent first; the number of blocks and of those with an int8 form; why others have
    none, with the number of blocks by reason. `int8_share` is the share of the operations in blocks with an int8 form,
    and `expected_gain` how many times as fast as float32 that lets expect; both are None where sizes are not known.
    `int8_gain` is that of a network all of whose operations are in int8 on this processor; `bfloat16` says whether
    float parts can compute in bfloat16."""

    operators: tuple[tuple[str, int], ...]
    blocks: int
    int8_blocks: int
    refusals: tuple[tuple[str, int], ...]
    int8_share: float | None
    expected_gain: float | None
    int8_gain: float
    bfloat16: bool


def inspection(model: Model, graph: Graph, instructions: Collection[str]) -> Inspection:
    """The summary of a model on a processor with these instruction sets."""
    able = [block for block in graph.blocks if _has_int8(block)]
    refusals = Counter(block.refusal for block in graph.blocks if not _has_int8(block) and block.refusal)
    share = _share(able, graph)
    gain = int8_gain(instructions)
    return Inspection(
        operators=tuple(Counter(node.op_type for node in model.proto.graph.node).most_common()),
        blocks=len(graph.blocks),
        int8_blocks=len(able),
        refusals=tuple(refusals.most_common()),
        int8_share=share,
        expected_gain=None if share is None else expected_gain(share, gain),
        int8_gain=gain,
        bfloat16=computes_bfloat16(instructions),
    )


def expected_gain(share: float, gain: float) -> float:
    """How many times as fast a network is if `share` of its time runs `gain` times as fast (Amdahl's law). Operations
    stand for time here, so conversions and memory are left out."""
    return 1.0 / (1.0 - share + share / gain)


def _share(able: Sequence[Block], graph: Graph) -> float | None:
    if any(tensor.shape is None for tensor in graph.tensors):
        return None
    total = sum(block.flops for block in graph.blocks)
    return sum(block.flops for block in able) / total if total else 0.0


def _has_int8(block: Block) -> bool:
    """Whether a block has a form in int8: an LSTM and a blockwise product have one without calibration."""
    return block.quantizable or block.recurrent or block.blockwise_bits > 0
