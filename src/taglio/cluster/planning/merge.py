"""Merge the components of a placement where that shortens its period: blocks that do not depend on each other can run
in one component though some of them then wait for inputs of others.

Of one device's components, those with the same number of entries to the device on the longest path to them can be one:
no path leads from one of them through another device to another of them. Once they are one, the same holds for the
components of the next device, of which there may then be more than without.
"""

from collections.abc import Hashable, Sequence
from dataclasses import replace
from graphlib import TopologicalSorter

from taglio.cluster.planning.assemble import Assembled
from taglio.cluster.planning.describe import loads
from taglio.cluster.planning.problem import CALLER, SOURCE, Totals


def merged(assembled: Assembled, totals: Totals) -> Totals:
    """The placement with the levels that make its period the shortest, as far as orders of devices show."""
    problem, values = assembled.problem, assembled.problem.values
    sources: list[list[int]] = [[] for _ in problem.nodes]
    for producer, reader in zip(values.producer[values.edge_value()].tolist(), values.readers.tolist(), strict=True):
        if producer != SOURCE and reader != CALLER:
            sources[reader].append(producer)
    devices = [problem.devices[problem.split(label)[0]] for label in totals.labels]
    places = list(zip(devices, problem.model.tolist(), strict=True))  # models share no component
    best, busy = totals, loads(assembled, totals)
    shortest = max(busy.values(), default=0.0)
    order = sorted(dict.fromkeys(places), key=lambda place: -busy.get(place[0], 0.0))
    tried = set[tuple[tuple[str, int], ...]]()
    while tuple(order) not in tried:
        tried.add(tuple(order))
        levelled = replace(totals, levels=tuple(fewest_components(sources, places, order)))
        busy = loads(assembled, levelled)
        if (period := max(busy.values(), default=0.0)) < shortest:
            best, shortest = levelled, period
        order.sort(key=lambda place: -busy.get(place[0], 0.0))
    return best


def fewest_components(
    sources: Sequence[Sequence[int]], places: Sequence[Hashable], order: Sequence[Hashable]
) -> list[int]:
    """The level of every node (schedule.py) if each place in `order` has as few components as those before it allow;
    `sources` are the earlier nodes that each reads from, `places` their devices."""
    component = list(range(len(places)))  # each named by its first node
    for place in order:
        entries = dict.fromkeys(component, 0)
        first: dict[int, int] = {}
        for head, before in _running(sources, component).items():
            here = places[head] == place
            entries[head] = max((entries[other] + (here and places[other] != place) for other in before), default=here)
            if here:
                first.setdefault(entries[head], head)
        component = [first[entries[node_head]] if places[node_head] == place else node_head for node_head in component]
    level = {node_head: index for index, node_head in enumerate(_running(sources, component))}
    return [level[node_head] for node_head in component]


def _running(sources: Sequence[Sequence[int]], component: Sequence[int]) -> dict[int, set[int]]:
    """The components that each reads from, in an order in which they can run."""
    before: dict[int, set[int]] = {head: set() for head in component}
    for node, read in enumerate(sources):
        before[component[node]] |= {component[source] for source in read} - {component[node]}
    return {head: before[head] for head in TopologicalSorter(before).static_order()}
