"""A profile in which nothing costs less than no time, as the placement's solvers need it. Predicts nothing.

A change of type may spare its writer time (profile/result.py). Where the other side of the flow can never change, the
saving is said in another way, exactly: what is spared when the only reader turns to int8 is what a float reader costs
more. Elsewhere the saving is left out, and the plan is a little faster than predicted. A session's own cost is what the
kernels leave of a run, and may come out below nothing where they explain too much: then all blocks take less, by the
same share.
"""

from collections.abc import Set
from dataclasses import replace

from taglio.model.graph import Flow, Graph, flows
from taglio.profile.result import Glue, Profile
from taglio.quantize.precision import FLOAT32


def nonnegative(profile: Profile, graph: Graph) -> Profile:
    """`profile` without negative costs; equal to it in every assignment where that can be."""
    able: set[str | None] = {block.name for block in graph.blocks if block.quantizable and not block.movement}
    seconds = profile.block_times()
    glue = profile.glue_map()
    for flow in flows(graph):
        cost = glue[flow.name]
        if cost.quantize_s < 0.0:
            cost = _quantized_for_the_only_reader(cost, flow, able, seconds)
        if cost.dequantize_s < 0.0:
            cost = _always_dequantized(cost, flow, able, seconds)
        each = cost.anchor_quantize_s
        glue[flow.name] = replace(
            cost,
            quantize_s=max(0.0, cost.quantize_s),
            dequantize_s=max(0.0, cost.dequantize_s),
            anchor_quantize_s=None if each is None else max(0.0, each),
        )
    whole = sum(value for (_, precision), value in seconds.items() if precision == FLOAT32.name)
    share = max(0.0, 1.0 + min(0.0, profile.overhead_s) / whole) if whole > 0.0 else 1.0
    blocks = tuple(replace(entry, seconds=share * seconds[entry.block, entry.precision]) for entry in profile.blocks)
    result = replace(profile, blocks=blocks, glue=tuple(glue[entry.flow] for entry in profile.glue))
    return replace(result, overhead_s=max(0.0, profile.overhead_s))


def _quantized_for_the_only_reader(
    cost: Glue, flow: Flow, able: Set[str | None], seconds: dict[tuple[str, str], float]
) -> Glue:
    """Written always in float, read by one block: time moves from the writer to the reader in float."""
    readers = [reader for _, reader in flow.readers]
    writer = (flow.producer or "", "float32")
    if flow.producer in able or len(readers) != 1 or readers[0] not in able or (readers[0], "float32") not in seconds:
        return cost
    moved = min(-cost.quantize_s, seconds.get(writer, 0.0))
    if moved > 0.0:
        seconds[writer] -= moved
        seconds[readers[0], "float32"] += moved
    return replace(cost, quantize_s=cost.quantize_s + moved)


def _always_dequantized(cost: Glue, flow: Flow, able: Set[str | None], seconds: dict[tuple[str, str], float]) -> Glue:
    """Read always in float: an int8 writer takes that much less."""
    readers = [reader for _, reader in flow.readers]
    writer = (flow.producer or "", "int8")
    if not readers or any(reader in able for reader in readers) or writer not in seconds:
        return cost
    moved = min(-cost.dequantize_s * len(readers), seconds[writer])
    seconds[writer] -= moved
    return replace(cost, dequantize_s=cost.dequantize_s + moved / len(readers))
