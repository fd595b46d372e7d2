"""Which blocks of one device share a component. Chooses no device and writes no file.

Blocks on one device form one component unless a path between them leaves the device and comes back, or a plan puts
them in different stages of it: what a stage writes leaves before the next one runs. A block's level is the largest
number of changes of device or stage on a path to it; a component is the blocks of one device, stage and level. What a
component reads comes from lower levels or from itself, so components cannot wait for each other in a circle.
"""

from collections.abc import Hashable, Mapping, Sequence

from taglio.model.graph import Graph


def levels(sources: Sequence[Sequence[int]], places: Sequence[Hashable]) -> list[int]:
    """Level of every node; `sources` are the nodes that each reads from, all before it, `places` device and stage."""
    level: list[int] = []
    for node, read in enumerate(sources):
        here = places[node]
        level.append(max((level[each] + (places[each] != here) for each in read), default=0))
    return level


def components(graph: Graph, devices: Mapping[str, str], stages: Mapping[str, int] | None = None) -> dict[str, str]:
    """Component of every block, as "index-device", in an order in which components can run; `stages` are those of
    blocks that are not in the first."""
    tensors = graph.tensor_map()
    index = {block.name: position for position, block in enumerate(graph.blocks)}
    sources = [
        [index[source] for name in block.inputs if (source := tensors[name].producer) is not None]
        for block in graph.blocks
    ]
    places = [(devices[block.name], (stages or {}).get(block.name, 0)) for block in graph.blocks]
    key = {
        block.name: (level, *places[index[block.name]])
        for block, level in zip(graph.blocks, levels(sources, places), strict=True)
    }
    label = {each: f"{position}-{each[1]}" for position, each in enumerate(sorted(set(key.values())))}
    return {name: label[key[name]] for name in sorted(key, key=key.__getitem__)}
