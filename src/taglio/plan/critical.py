"""The critical path: the shortest simulated latency that is found, and a proven bound on any.

Placements come from the plan of the least sum and those of one device, by many small changes (evolve.py), and by parts
moved about (local_search.py). Bounds come two ways. Where few blocks' results are waited for at a time, a decision
diagram (diagram.py) is close. For the rest: a request takes at least as long as any path of blocks and transfers, and
of what lies between two blocks (windows.py) at least as long as any device is busy with it, or any link; a path may
leap over a window that way. Hence a request takes at least as long as every weighted mean of such paths. With the
weights fixed, the least of it over all placements is a problem that adds up, and its bound holds for the critical path.
The weights are bettered by cutting planes (weights.py), a plane for each placement that answered. Each of those is
simulated; the best is kept. At the last, the limits' own gap is closed: the problem with the best weights is solved as
any sum is.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from taglio.plan.assemble import Assembled
from taglio.plan.diagram import Diagram
from taglio.plan.elimination import TooWide
from taglio.plan.evaluate import evaluate
from taglio.plan.evolve import Pools
from taglio.plan.local_search import LocalSearch
from taglio.plan.multipliers import Answer, maximise
from taglio.plan.placement import solve
from taglio.plan.prices import Market
from taglio.plan.problem import CALLER, SOURCE, Copies, Kind, Memory, Problem, Resource, Totals
from taglio.plan.relaxation import WIDEST, Relaxation
from taglio.plan.resources import request_shares
from taglio.plan.timetable import Timetable
from taglio.plan.weights import Flow, Master, Taken, Weights
from taglio.plan.windows import flow_ends, windows
from taglio.plan.workload import Goal

# Rounds in which neither the bound nor the placement got better before the search for weights gives up.
_PATIENCE = 200
# Until what shares of the time there is the first diagram is made, many small changes are made, diagrams are wide,
# changes are made again, and parts of the best placements are moved; the rest closes the gap of the best weights.
_PROBING, _CHANGING, _WIDENING, _CHANGING_AGAIN, _MOVING = 0.1, 0.35, 0.75, 0.92, 0.95
# What share of the time there is weights are chosen for, before changes are made again.
_WEIGHING = 0.1
# A diagram that takes more than this share of the time and brings little is the last.
_LONG = 0.05
# States in a layer of the first diagram, and of those after it. What one leaves out makes the next one of the same
# width closer.
_NARROW, _WIDTHS = 50, (100, 100, 300, 300, 1000, 1000, 3000, 10_000)
# Pairs of labels at the two ends of an edge, over all edges, beyond which tables of them take too much memory (0.2 kB
# each).
_MOST_PAIRS = 3_000_000


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


def shorten(
    assembled: Assembled, goal: Goal, start: Sequence[Totals], *, bound: float = 0.0, gap: float, time_limit_s: float
) -> Shortest:
    """Better `start` (each within the limits) until the gap is proven or the time is up. `goal` weighs what the
    critical path takes and the joules; `bound` is what is known already."""
    begun = time.perf_counter()
    deadline = begun + time_limit_s
    search = LocalSearch(assembled, goal, deadline)
    for totals in start:
        search.offer(totals)
    assert search.best is not None, "give at least one placement"
    bounds = _Bounds(search, bound, gap)
    pools: Pools | None = None
    if len(assembled.problem.values.readers) * assembled.problem.labels**2 <= _MOST_PAIRS:
        tables = [Timetable(assembled, model) for model in range(len(assembled.workloads))]
        pools = Pools(search, tables)
        diagrams = [Diagram(each, flow(assembled.problem, each.nodes).windows) for each in tables]
        bounds.by_diagrams(diagrams, _NARROW, begun + _PROBING * time_limit_s)
        pools.run(begun + _CHANGING * time_limit_s, good_enough=bounds.enough(), allowed=bounds.allowed)
        for width in _WIDTHS:
            before, known = time.perf_counter(), bounds.value
            bounds.by_diagrams(diagrams, width, begun + _WIDENING * time_limit_s)
            long = time.perf_counter() - before > _LONG * time_limit_s
            if long and bounds.value - known < gap * search.value:
                break
    if not bounds.closed():
        with suppress(TooWide):
            bounds.by_weights(time.perf_counter() + _WEIGHING * time_limit_s)
    if pools is not None:
        pools.run(begun + _CHANGING_AGAIN * time_limit_s, good_enough=bounds.enough(), allowed=bounds.allowed)
    if not bounds.closed():
        search.move(begun + _MOVING * time_limit_s)
        bounds.by_solving(deadline)
        if not bounds.closed():
            search.move(deadline)
    return Shortest(search.best, search.value, min(bounds.value, search.value), search.tried)


class _Bounds:
    """The best proven bound on what any placement takes, and ways to raise it."""

    def __init__(self, search: LocalSearch, value: float, gap: float) -> None:
        self.search, self.value, self.gap = search, value, gap
        self.assembled, self.goal = search.assembled, search.goal
        # Labels (nodes, labels) that a placement below `_left_out` may have, where some are known that it has not.
        self.allowed: np.ndarray | None = None
        self._left_out = inf
        self._weights: Weights | None = None

    def enough(self) -> float:
        """What a placement may take to be proven within the gap."""
        return self.value / (1.0 - self.gap)

    def closed(self) -> bool:
        """Whether the best placement is."""
        return self.search.value <= self.enough()

    def by_diagrams(self, diagrams: Sequence[Diagram], width: int, deadline: float) -> None:
        """Each model's latency by its diagram."""
        totals = self.search.best
        if totals is None or self.closed() or time.perf_counter() > deadline:
            return
        targets = np.array(self.search.simulated(totals.labels, totals.wires, totals.stages))
        alone = len(targets) == 1 and self.goal.latency * float(self.search.shares @ targets) == self.search.value
        if alone:  # no more than the gap needs
            targets = targets * (1.0 - 0.9 * self.gap)
        taken = [each.bound(width, float(target), deadline) for each, target in zip(diagrams, targets, strict=True)]
        self.value = max(self.value, self.goal.latency * float(self.search.shares @ np.array(taken)))
        if alone:
            self.allowed, self._left_out = diagrams[0].allowed, float(targets[0]) * self.goal.latency

    def by_weights(self, deadline: float) -> None:
        """The problem that adds up, under the best weights on paths and loads. Raises TooWide."""
        search, gap = self.search, self.gap
        assert search.best is not None
        master = _master(search)
        master.add(_taken(search, search.best))
        inner, worth, stalled = master.best()[0], -np.inf, 0
        lower = _Lower(self._weighed(inner))
        while not self.closed() and time.perf_counter() < deadline and stalled < _PATIENCE:
            outer, ceiling = master.best()
            if ceiling <= self.value + 0.1 * gap * search.value:
                break
            weights = inner.mixed(outer, 0.5)
            lower.ask(self._weighed(weights), deadline)
            stalled = 0 if lower.bound > self.value + 0.05 * gap * search.value else stalled + 1
            self.value = max(self.value, min(lower.bound, self._left_out))
            if lower.bound > worth:
                inner, worth = weights, lower.bound
                self._weights = inner
            totals = evaluate(self.assembled.problem, lower.labels)
            stalled = 0 if search.offer(totals) else stalled
            master.add(_taken(search, totals))

    def by_solving(self, deadline: float) -> None:
        """That problem with the limits' own gap closed."""
        left = deadline - time.perf_counter()
        if self._weights is None or left <= 0.0 or self.closed():
            return
        assert self.search.best is not None
        problem = self._weighed(self._weights)
        placed = solve(problem, gap=0.5 * self.gap, time_limit_s=left, incumbent=self.search.best.labels)
        self.value = max(self.value, min(placed.bound, self._left_out))
        if placed.labels:
            self.search.offer(evaluate(self.assembled.problem, placed.labels))

    def _weighed(self, weights: Weights) -> Problem:
        """The problem that adds up, for the labels that are left."""
        problem = weigh(self.assembled, self.goal, weights)
        if self.allowed is None:
            return problem
        return replace(problem, allowed=self.allowed.reshape(problem.allowed.shape))


def weigh(assembled: Assembled, goal: Goal, weights: Weights) -> Problem:
    """The problem whose least objective is a lower bound on the critical path's (and joules'): every edge pays for
    itself, in its flow's weight, and every node its flow's and its device's weight."""
    problem, shares = assembled.problem, request_shares(assembled.workloads) * goal.latency
    values, models = problem.values, len(assembled.workloads)
    of, edges = values.edge_value(), len(values.readers)
    part = 1.0 / np.diff(values.start)[of]
    node = shares[problem.model][:, None] * (weights.node[:, None] + weights.load)
    extra = problem.seconds * node[:, :, None]
    # Who reads an input is the first on its path, and waits for its component's overhead wherever it is; the least of
    # all devices' is in the constant.
    fed = (values.producer[of] == SOURCE) & (values.readers != CALLER)
    first = np.zeros(len(problem.nodes))
    np.add.at(first, values.readers[fed], (shares[values.model[of]] * weights.edge)[fed])
    extra = extra + (first[:, None] * _more_overhead(assembled)[problem.model])[:, :, None]
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
    alone, floats = _quantised_alone(assembled, timed), values.float_bytes[of].astype(float)
    for edge, (begins, seconds, size) in alone.items():
        floats[edge] -= size
        only = np.zeros(models + edges)
        only[models + edge] = path[models + edge]
        resources.append(Resource(f"alone {edge}", np.zeros(count), seconds * begins, 0.0 * begins, only, 1.0))
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
        float_bytes=floats,
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


def _quantised_alone(assembled: Assembled, timed: Resource) -> dict[int, tuple[np.ndarray, float, float]]:
    """What is sent as int8 from the caller, or to it, passes a component of its own there. By edge: which ways it may
    take (from, to), the seconds of that component that every copy is charged with, and the bytes less of a float copy,
    which has none of it: over the fastest link it takes then as long as it does, over others no longer."""
    problem, home = assembled.problem, assembled.problem.devices.index(assembled.cluster.start)
    values, found = problem.values, dict[int, tuple[np.ndarray, float, float]]()
    for edge, value in enumerate(values.edge_value().tolist()):
        begins = np.zeros_like(timed.byte)
        if values.producer[value] == SOURCE and values.readers[edge] != CALLER:
            begins[home] = 1.0
        elif values.producer[value] != SOURCE and values.readers[edge] == CALLER:
            begins[:, home] = 1.0
        begins[home, home] = 0.0
        byte = (timed.byte * begins)[timed.byte * begins > 0.0]
        if byte.size:
            overhead = float(assembled.overhead_s[values.model[value], home])
            seconds = min(overhead, float(byte.min() * values.float_bytes[value]))
            if seconds > 0.0:
                found[edge] = begins, seconds, seconds / float(byte.min())
    return found


def _more_overhead(assembled: Assembled) -> np.ndarray:
    """What a component's overhead is more than the least of all devices', (model, device)."""
    result: np.ndarray = assembled.overhead_s - assembled.overhead_s.min(axis=1, keepdims=True)
    return result


class _Lower:
    """Lower bounds on problems that differ in their costs alone: every limit priced, the rest eliminated exactly."""

    def __init__(self, problem: Problem) -> None:
        """Raises TooWide where the graph is."""
        self.relaxation = Relaxation(
            Market(problem), problem.allowed.reshape(len(problem.nodes), -1), arity=1, limit=WIDEST
        )
        self.multipliers = np.zeros(len(self.relaxation.market.rows))
        self.bound, self.labels = -np.inf, [0] * len(problem.nodes)

    def ask(self, problem: Problem, deadline: float) -> None:
        """Set `bound`, and `labels` to those of the answers that are nearest to keeping the limits."""
        market = self.relaxation.market = Market(problem)
        self.bound, least = -np.inf, np.inf

        def oracle(point: np.ndarray) -> Answer:
            nonlocal least
            priced = market.price(point)
            value, labels = self.relaxation.run(priced)
            account = market.account(priced, labels)
            self.bound = max(self.bound, value)
            slope = account.rows - market.uppers
            worth = account.objective * (1.0 + 10.0 * float(np.maximum(0.0, slope).sum()))
            if worth < least:
                least, self.labels = worth, [int(each) for each in labels]
            return Answer(value, value - float(point @ slope), slope)

        found = maximise(
            oracle, self.multipliers, tolerance=1e-3, calls=25, stop=lambda _: time.perf_counter() > deadline
        )
        self.multipliers = found.multipliers


def _master(search: LocalSearch) -> Master:
    """The program over weights, for all models at once."""
    problem, values = search.assembled.problem, search.assembled.problem.values
    counts = (len(problem.nodes), len(values.readers), len(problem.devices))
    shares = search.shares * search.goal.latency
    share = np.concatenate([shares[problem.model], shares[values.model[values.edge_value()]]])
    return Master([flow(problem, search.assembled.nodes(model)) for model in range(len(shares))], counts, share)


def _taken(search: LocalSearch, totals: Totals) -> Taken:
    """What a placement takes, as `weigh` counts it."""
    problem = search.assembled.problem
    values, of = problem.values, problem.values.edge_value()
    count, edges = len(problem.devices), len(values.readers)
    timed = next(each for each in problem.resources if each.name.startswith("latency"))
    at = [problem.split(label) for label in totals.labels]
    edge_s, link_s = np.zeros(edges), np.zeros((edges, count, count))
    begin, more = search.assembled.overhead_s.min(axis=0).clip(0.0), _more_overhead(search.assembled)
    alone = _quantised_alone(search.assembled, timed)
    for edge, value in enumerate(of.tolist()):
        source, reader = int(values.producer[value]), int(values.readers[edge])
        written = (int(values.home[value]), Kind.FLOAT) if source == SOURCE else _written(problem, at, source)
        read = (int(values.home[value]), Kind.FLOAT) if reader == CALLER else _read(problem, at, reader)
        edge_s[edge] = _edge_seconds(problem, timed, value, written, read, totals.wires[value])
        if source == SOURCE and reader != CALLER:
            edge_s[edge] += more[problem.model[reader], read[0]]
        if written[0] != read[0]:
            if source != SOURCE and reader != CALLER:
                edge_s[edge] += begin[read[0]]
            copies = totals.wires[value].get(read[0], Copies(0))
            int8 = not copies & Copies.FLOAT or (read[1] == Kind.INT8 and bool(copies & Copies.INT8))
            size = float((values.int8_bytes if int8 else values.float_bytes)[value])
            if int8 and edge in alone:
                edge_s[edge] += alone[edge][1]
            part = 1.0 / (int(values.start[value + 1]) - int(values.start[value]))
            link_s[edge, written[0], read[0]] = part * size * float(timed.byte[written[0], read[0]])
    seconds = problem.seconds.reshape(len(problem.nodes), -1)[np.arange(len(problem.nodes)), list(totals.labels)]
    rest = search.besides(totals) + problem.constant
    return Taken(edge_s, seconds, np.array([each[0] for each in at]), link_s, rest)


def flow(problem: Problem, nodes: range) -> Flow:
    """One model's graph, as paths go through it."""
    edges = flow_ends(problem, int(problem.model[nodes.start]))
    return Flow(nodes, edges, windows(nodes, edges))


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
