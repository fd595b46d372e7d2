"""Which blocks of one device share a component. Chooses no device and writes no file.

Blocks on one device form one component unless a path between them leaves the device and comes back. A block's level
is the largest number of changes of device on a path to it; a component is the blocks of one device and level. What a
component reads comes from lower levels or from itself, so components cannot wait for each other in a circle.
"""

from collections.abc import Mapping, Sequence

from taglio.graph import Graph


def levels(sources: Sequence[Sequence[int]], devices: Sequence[int]) -> list[int]:
    """Level of every node; `sources` are the nodes that each reads from, all before it."""
    level: list[int] = []
    for node, read in enumerate(sources):
        here = devices[node]
        level.append(max((level[each] + (devices[each] != here) for each in read), default=0))
    return level


def components(graph: Graph, devices: Mapping[str, str]) -> dict[str, str]:
    """Component of every block, as "index-device", in an order in which components can run."""
    tensors = graph.tensor_map()
    index = {block.name: position for position, block in enumerate(graph.blocks)}
    sources = [
        [index[source] for name in block.inputs if (source := tensors[name].producer) is not None]
        for block in graph.blocks
    ]
    numbers = {name: number for number, name in enumerate(sorted(set(devices.values())))}
    level = levels(sources, [numbers[devices[block.name]] for block in graph.blocks])
    keys = sorted({(level[index[block.name]], devices[block.name]) for block in graph.blocks})
    label = {key: f"{position}-{key[1]}" for position, key in enumerate(keys)}
    ordered = sorted(graph.blocks, key=lambda block: (level[index[block.name]], devices[block.name]))
    return {block.name: label[level[index[block.name]], devices[block.name]] for block in ordered}
