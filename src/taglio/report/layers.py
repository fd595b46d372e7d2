"""Lay a directed acyclic graph out in layers, top to bottom. Pure geometry: names and widths in, positions out.

1. A node's layer is the longest path to it; one without inputs stands just above its first reader.
2. An edge that skips layers runs down a lane: one lane for all readers of a node, as far as the last of them.
3. Within layers, nodes and lanes are ordered by the mean position of their neighbours (Sugiyama's barycentre
   method), in sweeps; the order with the fewest crossings is kept.
4. Positions: each wants the mean of its neighbours, in the order found and at least its width apart. The least-squares
   answer is exact, by pooling adjacent violators.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

_ORDER_SWEEPS = 8
_PLACE_SWEEPS = 80
_LANE = 4.0
# Straight lanes matter more than centred nodes.
_LANE_PULL = 12.0
_Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Box:
    """A node, and how far it extends left and right of its centre, in pixels."""

    name: str
    left: float
    right: float


@dataclass(frozen=True, slots=True)
class Arc:
    """One step of an edge, from `layer` to the next. `reader` is the node where it ends, or "" in mid-lane."""

    source: str
    reader: str
    layer: int
    x: float
    next_x: float


@dataclass(frozen=True, slots=True)
class Layout:
    """Layer and centre of every node, and every step of every edge."""

    layers: dict[str, int]
    x: dict[str, float]
    arcs: tuple[Arc, ...]
    depth: int


def layout(boxes: Sequence[Box], edges: Sequence[tuple[str, str]]) -> Layout:
    """Place `boxes`, given in topological order and joined by `edges` (source, reader)."""
    edges = list(dict.fromkeys(edges))
    layers = _layers([box.name for box in boxes], edges)
    up: dict[_Key, list[_Key]] = {}
    down: dict[_Key, list[_Key]] = {}
    for source, reader in edges:
        chain = [(source, layer) for layer in range(layers[source], layers[reader])] + [(reader, layers[reader])]
        for above, below in pairwise(chain):
            if below not in down.setdefault(above, []):
                down[above].append(below)
                up.setdefault(below, []).append(above)
    depth = max(layers.values(), default=-1) + 1
    rows: list[list[_Key]] = [[] for _ in range(depth)]
    real = {(name, layer) for name, layer in layers.items()}
    for key in dict.fromkeys([*((box.name, layers[box.name]) for box in boxes), *down, *up]):
        rows[key[1]].append(key)
    rows = _ordered(rows, up, down)
    extents = {(box.name, layers[box.name]): (box.left, box.right) for box in boxes}
    x = _placed(rows, up, down, extents)
    arcs = tuple(
        Arc(above[0], below[0] if below in real else "", above[1], x[above], x[below])
        for above, belows in down.items()
        for below in belows
    )
    return Layout(layers, {name: x[name, layer] for name, layer in layers.items()}, arcs, depth)


def _layers(names: Sequence[str], edges: Sequence[tuple[str, str]]) -> dict[str, int]:
    before: dict[str, list[str]] = {name: [] for name in names}
    after: dict[str, list[str]] = {name: [] for name in names}
    for source, reader in edges:
        before[reader].append(source)
        after[source].append(reader)
    layers: dict[str, int] = {}
    for name in names:
        layers[name] = max((layers[source] + 1 for source in before[name]), default=0)
    for name in reversed(names):
        if not before[name] and after[name]:
            layers[name] = max(0, min(layers[reader] for reader in after[name]) - 1)
    return layers


def _ordered(
    rows: list[list[_Key]], up: Mapping[_Key, list[_Key]], down: Mapping[_Key, list[_Key]]
) -> list[list[_Key]]:
    best, fewest = [list(row) for row in rows], _crossings(rows, down)
    for sweep in range(2 * _ORDER_SWEEPS):
        downward = sweep % 2 == 0
        neighbours = up if downward else down
        for index in range(1, len(rows)) if downward else range(len(rows) - 2, -1, -1):
            beside = rows[index - 1 if downward else index + 1]
            position = {key: place for place, key in enumerate(beside)}
            centre = {}
            for place, key in enumerate(rows[index]):
                near = [position[neighbour] for neighbour in neighbours.get(key, ())]
                centre[key] = sum(near) / len(near) if near else place * len(beside) / max(1, len(rows[index]))
            rows[index].sort(key=lambda key: centre[key])
        count = _crossings(rows, down)
        if count < fewest:
            best, fewest = [list(row) for row in rows], count
    return best


def _crossings(rows: Sequence[Sequence[_Key]], down: Mapping[_Key, list[_Key]]) -> int:
    total = 0
    for row, below in pairwise(rows):
        position = {key: place for place, key in enumerate(below)}
        ends = [sorted(position[reader] for reader in down.get(key, ())) for key in row]
        seen: list[int] = []
        for group in ends:
            total += sum(1 for end in group for other in seen if other > end)
            seen += group
    return total


def _placed(
    rows: Sequence[Sequence[_Key]],
    up: Mapping[_Key, list[_Key]],
    down: Mapping[_Key, list[_Key]],
    extents: Mapping[_Key, tuple[float, float]],
) -> dict[_Key, float]:
    lane = (_LANE, _LANE)
    x: dict[_Key, float] = {}
    for row in rows:
        wanted = [0.0] * len(row)
        x.update(zip(row, _spread(wanted, [1.0] * len(row), [extents.get(key, lane) for key in row]), strict=True))
    for sweep in range(_PLACE_SWEEPS):
        for row in rows if sweep % 2 == 0 else reversed(rows):
            wanted, weights = [], []
            for key in row:
                near = [*up.get(key, ()), *down.get(key, ())]
                pulls = [_LANE_PULL if key not in extents and neighbour not in extents else 1.0 for neighbour in near]
                total = sum(pulls)
                centre = sum(pull * x[neighbour] for pull, neighbour in zip(pulls, near, strict=True))
                wanted.append(centre / total if total else x[key])
                weights.append(max(total, 1.0))
            x.update(zip(row, _spread(wanted, weights, [extents.get(key, lane) for key in row]), strict=True))
    return x


def _spread(wanted: Sequence[float], weights: Sequence[float], extents: Sequence[tuple[float, float]]) -> list[float]:
    """Least-squares positions near `wanted`, in order, without overlap."""
    offsets, offset = [], 0.0
    for index in range(len(wanted)):
        if index:
            offset += extents[index - 1][1] + extents[index][0]
        offsets.append(offset)
    pools: list[tuple[float, float, int]] = []
    for value, weight, shift in zip(wanted, weights, offsets, strict=True):
        total, mass, count = weight * (value - shift), weight, 1
        while pools and pools[-1][0] / pools[-1][1] > total / mass:
            before = pools.pop()
            total, mass, count = total + before[0], mass + before[1], count + before[2]
        pools.append((total, mass, count))
    means = [total / mass for total, mass, count in pools for _ in range(count)]
    return [mean + shift for mean, shift in zip(means, offsets, strict=True)]
