"""The critical path: the shortest simulated latency that is found, and a proven bound on any.

Bottlenecks are blocks that everything before leads to and everything behind comes from; between two of them lies a
region. In each a request takes at least as long as any path of blocks and transfers through it, as any device is busy
with it, as any link; hence at least as long as every weighted mean of those. With such weights fixed, the least of it
over all placements is a problem that adds up, and its bound holds for the critical path. The weights are bettered by
fictitious play (Brown, 1951): each placement found answers the weights, and the longest path or the busiest device or
link of that placement is mixed into them. Every placement on the way is simulated; the best is kept.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from taglio.plan.assemble import Assembled
from taglio.plan.evaluate import evaluate
from taglio.plan.placement import solve
from taglio.plan.problem import CALLER, SOURCE, Copies, Kind, Memory, Problem, Resource, Totals
from taglio.plan.resources import request_shares
from taglio.plan.schedule import Scheduler
from taglio.plan.simulate import simulate
from taglio.plan.workload import Goal

# Rounds in which neither the bound nor the placement got better before the search gives up.
_PATIENCE = 12


@dataclass(frozen=True, slots=True, eq=False)
class Shortest:
    """The best placement found and its value, the proven lower bound, and how many placements were simulated."""

    totals: Totals
    value: float
    bound: float
    tried: int

    @property
    def gap(self) -> float:
        """(value − bound) / value."""
        return max(0.0, self.value - self.bound) / max(self.value, 1e-12)


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """How much each node and edge counts on a path, each node in the load of each device, and each edge in that of
    each link (from, to): in each region a unit of paths and loads together."""

    node: np.ndarray
    edge: np.ndarray
    load: np.ndarray
    link: np.ndarray

    def mixed(self, other: "Weights", share: float) -> "Weights":
        """This with `share` of another."""
        pairs = ((self.node, other.node), (self.edge, other.edge), (self.load, other.load), (self.link, other.link))
        return Weights(*((1.0 - share) * a + share * b for a, b in pairs))


def shorten(
    assembled: Assembled, goal: Goal, start: Sequence[Totals], *, bound: float = 0.0, gap: float, time_limit_s: float
) -> Shortest:
    """Better `start` (each within the limits) until the gap is proven or the time is up. `goal` weighs what the
    critical path takes and the joules; `bound` is what is known already."""
    search = _Search(assembled, goal)
    for totals in start:
        search.offer(totals)
    assert search.best is not None, "give at least one placement"
    search.move_pieces(time.perf_counter() + 0.3 * time_limit_s)
    deadline = time.perf_counter() + time_limit_s
    weights = search.answer_to(search.best, paths=True)
    round_, stalled = 0, 0
    while search.value - bound > gap * search.value and time.perf_counter() < deadline and stalled < _PATIENCE:
        problem = weigh(assembled, goal, weights)
        found = solve(problem, gap=max(gap, 1e-2), time_limit_s=min(2.0, deadline - time.perf_counter()))
        stalled = 0 if found.bound > bound + 0.05 * gap * search.value else stalled + 1
        bound = max(bound, found.bound)
        if not found.labels:
            break
        totals = evaluate(assembled.problem, found.labels)
        stalled = 0 if search.offer(totals) else stalled
        round_ += 1
        weights = weights.mixed(search.answer_to(totals), 1.0 / (round_ + 2))
    return Shortest(search.best, search.value, min(bound, search.value), search.tried)


def weigh(assembled: Assembled, goal: Goal, weights: Weights) -> Problem:
    """The problem whose least objective is a lower bound on the critical path's (and joules'): every edge pays for
    itself, in its flow's weight, and every node its flow's and its device's weight."""
    problem, shares = assembled.problem, request_shares(assembled.workloads) * goal.latency
    values, models = problem.values, len(assembled.workloads)
    of, edges = values.edge_value(), len(values.readers)
    part = 1.0 / np.diff(values.start)[of]
    node = shares[problem.model][:, None] * (weights.node[:, None] + weights.load)
    extra = problem.seconds * node[:, :, None]
    if problem.extra is not None:
        extra = extra + problem.extra
    kept = [each for each in problem.resources if not each.name.startswith("latency")]
    count = len(problem.devices)
    timed = next(each for each in problem.resources if each.name.startswith("latency"))
    path = np.concatenate([np.zeros(models), shares[values.model[of]] * weights.edge])
    resources = [
        replace(each, models=np.concatenate([each.models, each.models[values.model[of]] * part])) for each in kept
    ]
    # An edge between blocks on two devices starts another component there, and each has its overhead.
    inner = np.concatenate([np.zeros(models, bool), (values.readers != CALLER) & (values.producer[of] != SOURCE)])
    begin = (assembled.overhead_s.min(axis=0)[None, :] * ~np.eye(count, dtype=bool)).clip(0.0)
    resources.append(Resource("the path", np.ones(count), timed.link + begin, timed.byte, path * inner, 1.0))
    resources.append(Resource("its ends", np.ones(count), timed.link, timed.byte, path * ~inner, 1.0))
    for a, b in np.argwhere(weights.link.any(axis=0)).tolist():
        busy = np.zeros((count, count))
        busy[a, b] = timed.byte[a, b]
        sent = np.concatenate([np.zeros(models), shares[values.model[of]] * weights.link[:, a, b] * part])
        nothing = np.zeros((count, count))
        resources.append(Resource(f"load of {a} -> {b}", np.zeros(count), nothing, busy, sent, 1.0))
    split = replace(
        values,
        names=tuple(values.names[value] for value in of),
        producer=values.producer[of],
        home=values.home[of],
        model=models + np.arange(edges),
        start=np.arange(edges + 1),
        quantize_s=values.quantize_s[of],
        dequantize_s=values.dequantize_s[of],
        float_bytes=values.float_bytes[of],
        int8_bytes=values.int8_bytes[of],
    )
    memory = problem.memory
    return replace(
        problem,
        values=split,
        resources=tuple(resources),
        memory=Memory(memory.capacity, memory.weights) if memory is not None else None,
        extra=extra,
    )


class _Search:
    """The best placement by simulation."""

    def __init__(self, assembled: Assembled, goal: Goal) -> None:
        self.assembled, self.goal = assembled, goal
        self.shares = request_shares(assembled.workloads)
        self.schedulers = [Scheduler(assembled, model) for model in range(len(assembled.workloads))]
        self.energy = [
            i for i, r in enumerate(assembled.problem.resources) if r.name.startswith(("energy", "energy of"))
        ]
        self.best: Totals | None = None
        self.value, self.tried = np.inf, 0
        models = range(len(assembled.workloads))
        self.regions = [regions(assembled.problem, assembled.nodes(model)) for model in models]
        self.last = [max((n for r in each for n in r.bottleneck), default=-1) for each in self.regions]
        self.edge_region = {edge: region.index for each in self.regions for region in each for edge in region.edges}

    def worth(self, totals: Totals) -> float:
        """What a placement takes by simulation, as the goal weighs it."""
        taken = sum(
            share * simulate([each.schedule(totals.labels, totals.wires).pipeline()]).end_s
            for share, each in zip(self.shares, self.schedulers, strict=True)
        )
        problem = self.assembled.problem
        joules = sum(problem.resources[i].weight * float(totals.resources[i]) for i in self.energy)
        extra = 0.0
        if problem.extra is not None:
            nodes = np.arange(len(problem.nodes))
            extra = float(problem.extra.reshape(len(nodes), -1)[nodes, list(totals.labels)].sum())
        return float(self.goal.latency * taken + joules + extra)

    def offer(self, totals: Totals) -> bool:
        """Keep a placement if it is within the limits and the best so far. Limits on latency are held against the
        simulated one, so a broken sum of seconds is none."""
        self.tried += 1
        if any(not each.startswith("latency") for each in totals.broken):
            return False
        value = self.worth(totals)
        if value < self.value:
            self.best, self.value = totals, value
            return True
        return False

    def move_pieces(self, deadline: float) -> None:
        """Move whole components to other devices as long as that shortens the request."""
        problem = self.assembled.problem
        again = True
        while again and self.best is not None:
            again = False
            for scheduler in self.schedulers:
                for piece in scheduler.schedule(self.best.labels, self.best.wires).pieces:
                    for device in range(len(problem.devices)):
                        if time.perf_counter() > deadline:
                            return
                        if device == piece.device or not piece.nodes:
                            continue
                        labels = list(self.best.labels)
                        for node in piece.nodes:
                            labels[node] = problem.label(device, problem.split(labels[node])[1])
                        if all(problem.allowed.reshape(len(labels), -1)[n, labels[n]] for n in piece.nodes):
                            again |= self.offer(evaluate(problem, labels))

    def answer_to(self, totals: Totals, *, paths: bool = False) -> Weights:
        """In each region all weight on the longest path, the busiest device or the busiest link, whichever takes
        longest; with `paths` on the path."""
        problem = self.assembled.problem
        values, count = problem.values, len(problem.devices)
        edges = len(values.readers)
        weights = Weights(
            np.zeros(len(problem.nodes)),
            np.zeros(edges),
            np.zeros((len(problem.nodes), count)),
            np.zeros((edges, count, count)),
        )
        timed = next(each for each in problem.resources if each.name.startswith("latency"))
        seconds = problem.seconds.reshape(len(problem.nodes), -1)
        at = [problem.split(label) for label in totals.labels]
        arrive = np.zeros(len(problem.nodes))
        via = np.full(len(problem.nodes), -1)
        cost_of = np.zeros(edges)
        ends: dict[int, tuple[float, int]] = {}
        for value in np.argsort(values.producer, kind="stable").tolist():
            source = int(values.producer[value])
            model = int(values.model[value])
            home, kind = (int(values.home[value]), Kind.FLOAT) if source == SOURCE else _written(problem, at, source)
            left = 0.0 if source == SOURCE else arrive[source] + seconds[source, totals.labels[source]]
            for edge in range(int(values.start[value]), int(values.start[value + 1])):
                reader = int(values.readers[edge])
                device, read = (int(values.home[value]), Kind.FLOAT) if reader == CALLER else _read(problem, at, reader)
                cost = _edge_seconds(problem, timed, value, (home, kind), (device, read), totals.wires[value])
                cost_of[edge] = cost
                if reader == CALLER:
                    if source >= self.last[model] and left + cost > ends.get(model, (-1.0, -1))[0]:
                        ends[model] = (left + cost, edge)
                elif left + cost > arrive[reader]:
                    arrive[reader], via[reader] = left + cost, edge
        of = values.edge_value()
        for model, (_, last) in ends.items():
            on_path: dict[int, list[int]] = {}
            edge = last
            while edge >= 0:
                source = int(values.producer[of[edge]])
                on_path.setdefault(self.region_of_edge(edge), []).append(edge)
                if source == SOURCE:
                    break
                edge = int(via[source])
            for region in self.regions[model]:
                path = on_path.get(region.index, [])
                made = [int(values.producer[of[e]]) for e in path]
                nodes = [n for n in made if n in region.nodes]
                length = sum(cost_of[e] for e in path) + sum(seconds[n, totals.labels[n]] for n in nodes)
                load = np.zeros(count)
                for node in region.loads:
                    load[at[node][0]] += seconds[node, totals.labels[node]]
                busy = self.link_loads(region, at, totals, timed)
                for node in region.bottleneck:
                    weights.node[node] = 1.0
                if paths or length >= max(load.max(initial=0.0), busy.max(initial=0.0)):
                    weights.edge[path] = 1.0
                    weights.node[nodes] = 1.0
                elif load.max() >= busy.max(initial=0.0):
                    weights.load[list(region.loads), int(load.argmax())] = 1.0
                else:
                    a, b = np.unravel_index(int(busy.argmax()), busy.shape)
                    weights.link[list(region.edges), a, b] = 1.0
        return weights

    def region_of_edge(self, edge: int) -> int:
        """The region that an edge lies in."""
        return self.edge_region[edge]

    def link_loads(
        self, region: "Region", at: Sequence[tuple[int, int]], totals: Totals, timed: Resource
    ) -> np.ndarray:
        """Busy seconds of every link with what is sent within a region, (from, to)."""
        problem = self.assembled.problem
        values, of = problem.values, problem.values.edge_value()
        busy = np.zeros((len(problem.devices), len(problem.devices)))
        for value in sorted({int(of[edge]) for edge in region.edges}):
            source = int(values.producer[value])
            home = int(values.home[value]) if source == SOURCE else at[source][0]
            for device, copies in totals.wires[value].items():
                for copy, size in ((Copies.FLOAT, values.float_bytes), (Copies.INT8, values.int8_bytes)):
                    if copies & copy:
                        busy[home, device] += timed.byte[home, device] * float(size[value])
        return busy


@dataclass(frozen=True, slots=True)
class Region:
    """What lies between two bottlenecks: all its nodes, those that must be done before the next bottleneck (all of them
    behind the last), the edges in it, and the bottleneck that ends it (none behind the last)."""

    index: int
    nodes: frozenset[int]
    loads: tuple[int, ...]
    edges: tuple[int, ...]
    bottleneck: tuple[int, ...]


def regions(problem: Problem, nodes: range) -> tuple[Region, ...]:
    """The regions of one model, in order."""
    values, of = problem.values, problem.values.edge_value()
    edges = [e for e in range(len(of)) if int(values.model[of[e]]) == int(problem.model[nodes.start])]
    ends = [(int(values.producer[of[e]]), int(values.readers[e])) for e in edges]
    # A node is a bottleneck if no edge passes it by in execution order; an output goes past all that follows it.
    passed = np.zeros(len(nodes) + 2)
    for source, reader in ends:
        first = 0 if source == SOURCE else source - nodes.start + 1
        passed[first] += 1
        passed[len(nodes) if reader == CALLER else reader - nodes.start] -= 1
    fed = {reader for _, reader in ends}
    lone = [n for n in nodes if n not in fed]  # reads nothing: it waits for no bottleneck
    narrow = [n for n in nodes if np.cumsum(passed)[n - nodes.start] == 0 and not any(each >= n for each in lone)]
    leads: set[int] = set()  # nodes from which a path leads on to the next bottleneck
    onward: dict[int, list[int]] = {}
    for source, reader in ends:
        if source != SOURCE and reader != CALLER:
            onward.setdefault(source, []).append(reader)
    marks = set(narrow)
    for node in reversed(nodes):
        if any(reader in marks or reader in leads for reader in onward.get(node, ())):
            leads.add(node)
    found = []
    start = nodes.start
    for index, stop in enumerate([*narrow, nodes.stop]):
        inside = frozenset(range(start, stop))
        final = stop == nodes.stop
        loads = tuple(n for n in sorted(inside) if final or n in leads)
        within = []
        for edge, (source, reader) in zip(edges, ends, strict=True):
            after = source == SOURCE if index == 0 else source in inside or source == start - 1
            after = after or source in inside
            before = reader != CALLER and (reader in inside or reader == stop)
            if after and (before or (final and reader == CALLER)):
                within.append(edge)
        keep = tuple(e for e in within if final or _leads_on(int(values.readers[e]), stop, leads))
        found.append(Region(index, inside, loads, keep, () if final else (stop,)))
        start = stop + 1
    return tuple(found)


def _leads_on(reader: int, stop: int, leads: set[int]) -> bool:
    return reader == stop or reader in leads


def _written(problem: Problem, at: Sequence[tuple[int, int]], node: int) -> tuple[int, Kind]:
    return at[node][0], problem.forms[at[node][1]].writes


def _read(problem: Problem, at: Sequence[tuple[int, int]], node: int) -> tuple[int, Kind]:
    return at[node][0], problem.forms[at[node][1]].reads


def _edge_seconds(
    problem: Problem,
    timed: Resource,
    value: int,
    written: tuple[int, Kind],
    read: tuple[int, Kind],
    copies: Mapping[int, Copies],
) -> float:
    """Seconds between the end of who writes and the start of who reads."""
    values = problem.values
    (home, kind), (device, wants) = written, read
    sent = int(copies.get(device, 0)) if device != home else 0
    int8 = kind == Kind.INT8 or bool(sent & 2 and (wants == Kind.INT8 or not sent & 1))
    total = 0.0
    if kind != Kind.INT8 and (int8 or wants == Kind.INT8):
        total += float(values.quantize_s[value, int(kind) if int8 else 0, home if int8 else device])
    if wants != Kind.INT8 and int8:
        total += float(values.dequantize_s[value, device])
    if device != home:
        size = values.int8_bytes[value] if int8 else values.float_bytes[value]
        total += float(timed.link[home, device] + timed.byte[home, device] * size)
    return total
