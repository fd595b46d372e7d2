"""The critical path: the best placement found by simulated latency, and a proven lower bound on the latency of any.

Placements come from the plan with the least sum, the plans on one device, and an evolutionary search: successive pools,
improved by many small changes. A change gives another device or precision to all ancestors or all descendants of a
block, a branch, a run of blocks, or one block; copies such a part from another placement of the pool; or keeps a
component whole where it could be split; and the ancestors of a block may run earlier. All changed placements are
replayed block by block (replay.py), the best of them are simulated, and the best of those stay, no two with nearly
the same value. Each component and crossing must gain a minimum: smaller gains are below the accuracy of predictions.
The best are split into stages (placements.py).

The bound: a request takes at least as long as any path of blocks and transfers, whatever else happens. With the noise
limits priced at λ ≥ 0, the length of a path is its seconds plus λ times its noise; the longest path under its best
labels, minus λ times the limits, is a lower bound for every λ, and the best of several λ is taken. The bound ignores
that a device runs one component at a time, so it is tight for chains and loose for wide networks.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from taglio.plan.assemble import Assembled
from taglio.plan.placements import Search
from taglio.plan.problem import Totals
from taglio.plan.replay import BYTES, DELAY, NEVER, Replay, Timetable, Way
from taglio.plan.workload import Objective

# Placements kept in the pool, the least relative difference between two of them, and the batch size: per block, and
# at most.
POOL, _APART, _EACH, _BATCH = 30, 2e-3, 20, 400
# Share of the request's cost that each component and each copy sent must gain.
_WORTH = 3e-4
# Probability that a batch uses a new block order, and that the order is entirely new, not only changed for one block.
_NEW_ORDER, _ALL_NEW = 0.5, 0.3
# Placements of a batch that are simulated.
_SIMULATED = 8
# Mean number of blocks in a run of blocks; most changes to one placement.
_RUN, _CHANGES = 8.0, 3
# Rounds without improvement before a pool is replaced, pools without improvement before the search ends, and placements
# of each pool that are offered.
_PATIENCE, _FRUITLESS, _OFFERED = 60, 4, 4


# Share of the time for the evolutionary search; the rest is for splitting components.
_EVOLVING = 0.95
# Most pairs of labels at the two ends of an edge, summed over edges: more take too much memory (0.2 kB each).
_MOST_PAIRS = 3_000_000
# Prices tried for a limit, as shares of the request's cost.
_PRICES = (0.0, 0.03, 0.06, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)


def shorten(
    assembled: Assembled, objective: Objective, start: Sequence[Totals], *, gap: float, time_limit_s: float
) -> tuple[Totals, float, float]:
    """The best placement found from `start` (placements within the limits), its value, and a lower bound on any value,
    once the gap is proven or time is up. `objective` weighs the critical path and the joules."""
    begun, bound = time.perf_counter(), 0.0
    search = Search(assembled, objective, begun + time_limit_s)
    for totals in start:
        search.offer(totals)
    if len(assembled.problem.values.readers) * assembled.problem.labels**2 <= _MOST_PAIRS:
        tables = [Timetable(assembled, model) for model in range(len(assembled.workloads))]
        bound = objective.latency * float(search.shares @ [path_bound(each) for each in tables])
        evolve(search, tables, begun + _EVOLVING * time_limit_s, good_enough=bound / (1.0 - gap))
    assert search.best is not None, "give at least one placement"
    return search.best, search.value, min(bound, search.value)


@dataclass(frozen=True, slots=True, eq=False)
class _Tried:
    """By placement: its cost, infinite beyond a limit; the latency included in it; stages of all nodes; and the number
    of components and copies."""

    values: np.ndarray
    latency_s: np.ndarray
    stages: np.ndarray
    handled: np.ndarray


class Pool:
    """The best placements so far of all models together, by simulation."""

    def __init__(self, search: Search, tables: Sequence[Timetable], *, price: float, seed: int = 0) -> None:
        """`tables` are those of the models. Tensors are sent as int8 if that saves `price` seconds per whole error
        bound used."""
        self.search, self.objective = search, search.objective
        problem = self.problem = search.assembled.problem
        self.shares = search.shares
        self.forms = len(problem.forms)
        self.models = [each.nodes for each in tables]
        self.replays = [Replay(each, price) for each in tables]
        self.allowed = problem.allowed.reshape(len(problem.nodes), -1)
        self.random = np.random.default_rng(seed)
        self.groups = np.concatenate([groups(each) for each in tables])
        self.labels = np.zeros((0, len(problem.nodes)), dtype=np.intp)
        self.held = np.zeros((0, len(problem.nodes)), dtype=bool)
        self.stages = self.labels
        # Block orders, by model; and the order of each placement.
        self.known = [[list(range(len(nodes))) for nodes in self.models]]
        self.orders = np.zeros(0, dtype=np.intp)
        self.values = self.ranks = np.zeros(0)

    def add(self, labels: np.ndarray, held: np.ndarray | None = None, order: int = 0, most: int = _SIMULATED) -> None:
        """Add placements (the first axis) to the pool if they are among its best."""
        held = np.zeros(labels.shape, dtype=bool) if held is None else held
        tried = self._tried(labels, held, order)
        values, ranks = tried.values, tried.values * (1.0 + _WORTH * tried.handled)
        worst = self.ranks[-1] if len(self.ranks) == POOL else inf
        seen = {self._level(rank) for rank in self.ranks}
        entering: list[int] = []
        for index in np.argsort(ranks, kind="stable").tolist():
            if len(entering) == most or ranks[index] >= worst or not np.isfinite(ranks[index]):
                break
            if self._level(ranks[index]) not in seen:
                seen.add(self._level(ranks[index]))
                simulated = self.search.simulated(labels[index], self._copies(labels[index]), tried.stages[index])
                taken = float(self.shares @ simulated)
                values[index] += self.objective.latency * (taken - tried.latency_s[index])
                entering.append(index)
        ranks = values * (1.0 + _WORTH * tried.handled)
        ranks = np.concatenate([self.ranks, ranks[entering]])
        kept: list[int] = []
        seen = set()
        for index in np.argsort(ranks, kind="stable").tolist():
            if len(kept) < POOL and self._level(ranks[index]) not in seen:
                seen.add(self._level(ranks[index]))
                kept.append(index)
        self.ranks = ranks[kept]
        self.values = np.concatenate([self.values, values[entering]])[kept]
        self.labels = np.concatenate([self.labels, labels[entering]])[kept]
        self.held = np.concatenate([self.held, held[entering]])[kept]
        self.stages = np.concatenate([self.stages, tried.stages[entering]])[kept]
        self.orders = np.concatenate([self.orders, np.full(len(entering), order)])[kept]

    def _level(self, value: float) -> int:
        return round(float(np.log(max(value, 1e-12))) / _APART)

    def run(self, deadline: float, patience: int, *, good_enough: float) -> None:
        """Evolve until the deadline, until the best is good enough, or until `patience` rounds bring no improvement."""
        stalled = 0
        while len(self.values) and time.perf_counter() < deadline and self.values.min() > good_enough:
            if stalled == patience:
                return
            best = self.ranks[0]
            if self.random.random() < _NEW_ORDER:
                self.known.append(self._new_order())
                order = len(self.known) - 1
            else:
                order = int(self.orders[self._better(1)[0]])
            self.add(*self._changed(self.known[order]), order)
            stalled = 0 if self.ranks[0] < best * (1.0 - 1e-6) else stalled + 1

    def _new_order(self) -> list[list[int]]:
        if self.random.random() < _ALL_NEW:
            return [replay.order(self.random) for replay in self.replays]
        before = self.known[self.orders[self._better(1)[0]]]
        return [replay.hastened(each, self.random) for replay, each in zip(self.replays, before, strict=True)]

    def _tried(self, labels: np.ndarray, held: np.ndarray, order: int) -> _Tried:
        problem = self.problem
        played = [
            replay.play(labels[:, nodes.start : nodes.stop], held[:, nodes.start : nodes.stop], own)
            for replay, nodes, own in zip(self.replays, self.models, self.known[order], strict=True)
        ]
        latency = np.stack([each.latency_s for each in played], axis=1) @ self.shares
        value: np.ndarray = self.objective.latency * latency
        broken = sum(each.noise for each in played) > np.array([each.upper for each in problem.noises]) * (1 + 1e-9)
        over: np.ndarray = broken.any(axis=1) | (value >= NEVER * 1e-3)
        uppers = dict(zip(self.search.limited, self.search.uppers.tolist(), strict=True))
        for index in {*uppers, *self.search.energy}:
            resource = problem.resources[index]
            amount = np.zeros(len(labels))
            for model, each in enumerate(played):
                sent = each.copies @ resource.link.ravel() + each.sent @ resource.byte.ravel()
                amount += resource.models[model] * (each.busy_s @ resource.device + sent)
            if index in self.search.energy:
                value = value + resource.weight * amount
            for model, each in enumerate(played):
                amount += resource.models[model] * (each.overhead_s @ resource.device)
            over |= amount > uppers.get(index, inf) * (1.0 + 1e-9)
        if problem.extra is not None:
            value = value + problem.extra.reshape(len(problem.nodes), -1)[np.arange(labels.shape[1]), labels].sum(
                axis=1
            )
        if problem.memory is not None:
            weights = problem.memory.weights[np.arange(labels.shape[1]), labels % self.forms]
            for device, capacity in enumerate(problem.memory.capacity):
                over |= (weights * (labels // self.forms == device)).sum(axis=1) > capacity
        for implication in problem.implications:
            met = implication.labels[labels[:, implication.node]]
            for node, mask in implication.neighbours:
                met = met & mask[labels[:, node]]
            over |= met
        stages = np.concatenate([each.component for each in played], axis=1)
        handled = np.sum([each.copies.sum(axis=1) + each.component.max(axis=1) for each in played], axis=0)
        return _Tried(np.where(over, inf, value), latency, stages, handled)

    def plans(self) -> Iterator[tuple[list[int], np.ndarray, tuple[int, ...]]]:
        """Labels, copies and stages of the placements, best first. Peak memory is not checked."""
        for labels, stages in zip(self.labels, self.stages, strict=True):
            yield labels.tolist(), self._copies(labels), tuple(stages.tolist())

    def _copies(self, labels: np.ndarray) -> np.ndarray:
        copies = np.zeros((len(self.problem.values), len(self.problem.devices)), dtype=np.intp)
        for replay, nodes in zip(self.replays, self.models, strict=True):
            replay.copies(labels[nodes.start : nodes.stop].tolist(), copies)
        return copies

    def _changed(self, order: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
        """Changed copies of placements in the pool, better ones more often."""
        random, size = self.random, len(self.values)
        parents = self._better(min(_BATCH, _EACH * self.labels.shape[1]))
        labels, held = self.labels[parents], self.held[parents]
        for row, hold in zip(labels, held, strict=True):
            for _ in range(1 + int(random.integers(_CHANGES) * random.random())):
                nodes = self._part(order)
                what = random.random()
                if what < 0.55:  # to another device
                    to = random.integers(len(self.problem.devices)) * self.forms + row[nodes] % self.forms
                elif what < 0.65:  # in another precision
                    to = row[nodes] // self.forms * self.forms + random.integers(self.forms)
                elif what < 0.85:  # copied from another placement
                    other = random.integers(size)
                    to, hold[nodes] = self.labels[other, nodes], self.held[other, nodes]
                else:
                    hold[nodes] = random.random() < 0.7
                    continue
                may = self.allowed[nodes, to]
                row[nodes[may]] = to[may]
        return labels, held

    def _better(self, count: int) -> np.ndarray:
        """A random sample of the pool, better placements more often."""
        odds = np.exp(-np.arange(len(self.values)) / (POOL / 3))
        return np.asarray(self.random.choice(len(odds), count, p=odds / odds.sum()))

    def _part(self, order: Sequence[Sequence[int]]) -> np.ndarray:
        random = self.random
        what = random.random()
        if what < 0.5:
            return np.asarray(np.flatnonzero(self.groups[int(random.integers(len(self.groups)))]))
        model = int(random.integers(len(order)))
        first, own = int(random.integers(len(order[model]))), order[model]
        size = 1 + (int(random.exponential(_RUN)) if what < 0.8 else 0)
        return self.models[model].start + np.array(own[first : first + size])


def evolve(search: Search, tables: Sequence[Timetable], deadline: float, *, good_enough: float) -> None:
    """Evolve the search's best placement and the placements on one device, and offer it the results. Pools run in turn,
    each until it stops improving, because their results differ by several percent."""
    seed = fruitless = 0
    while search.value > good_enough and fruitless < _FRUITLESS and time.perf_counter() < deadline:
        pool, before, offered = _begun(search, tables, seed), search.value, 0
        pool.run(deadline, _PATIENCE, good_enough=good_enough)
        for labels, copies, stages in pool.plans():
            totals = replace(search.costs.totals(labels, copies), stages=stages)
            if offered < _OFFERED and search.kept(totals):
                search.offer(totals)
                offered += 1
        seed, fruitless = seed + 1, fruitless + 1 if search.value == before else 0


def _begun(search: Search, tables: Sequence[Timetable], seed: int) -> Pool:
    problem = search.problem
    assert search.best is not None, "give the search at least one placement"
    pool = Pool(search, tables, price=search.value, seed=seed)
    starts = [list(search.best.labels)]
    for device in range(len(problem.devices)):
        here = search.costs.label_device == device
        # In the first form allowed there; on another device if there is none.
        starts.append(np.where(pool.allowed & here, 2, pool.allowed).argmax(axis=1).tolist())
    labels = np.unique(np.array(starts), axis=0)
    held = np.arange(2 * len(labels)) < len(labels)
    pool.add(np.tile(labels, (2, 1)), np.repeat(held[:, None], len(problem.nodes), axis=1), most=POOL)
    return pool


def groups(table: Timetable) -> np.ndarray:
    """Groups of nodes that may move together, for every node of a model: itself with all its ancestors, all its
    descendants, the descendants reached only through it, or the ancestors that lead only to it. Distinct masks over the
    problem's nodes, small ones first."""
    before = [[way.producer for way in ways] for ways in table.reads]
    masks = together(before, [bool(ways) for ways in table.answers])
    masks = masks[np.unique(np.packbits(masks[:, ::-1], axis=1), axis=0, return_index=True)[1]]
    masks = masks[np.argsort(masks.sum(axis=1), kind="stable")]
    result = np.zeros((len(masks), len(table.problem.nodes)), dtype=bool)
    result[:, table.nodes.start : table.nodes.stop] = masks
    return result


def together(before: Sequence[Sequence[int | None]], ends: Sequence[bool]) -> np.ndarray:
    """The groups of a graph: `before` are the nodes that each node reads from, None for an input; `ends` marks nodes
    that the caller reads."""
    after: list[list[int | None]] = [[None] if end else [] for end in ends]
    leads, comes_alone, leads_alone = (np.eye(len(before), dtype=bool) for _ in range(3))
    for node, sources in enumerate(before):
        for source in sources:
            if source is not None:
                leads[node] |= leads[source]
                after[source].append(node)
    # Dominators: a node's are those shared by all its predecessors, and itself.
    for table, order, next_to in (
        (comes_alone, range(len(before)), before),
        (leads_alone, reversed(range(len(before))), after),
    ):
        for node in order:
            near = [each for each in next_to[node] if each is not None]
            if near and len(near) == len(next_to[node]):
                table[node] |= np.logical_and.reduce(table[near])
    return np.concatenate([leads, leads.T, comes_alone.T, leads_alone.T])


def path_bound(table: Timetable) -> float:
    """Lower bound on the seconds of any placement of a model."""
    paths, uppers = _Paths(table), np.array([each.upper for each in table.problem.noises])
    bounded = np.flatnonzero(np.isfinite(uppers))
    prices = np.zeros(len(uppers))
    best = unpriced = paths.longest(prices)
    for index in bounded.tolist():
        found = []
        for each in _PRICES:
            prices[index] = each * unpriced / max(uppers[index], 1e-9)
            found.append((paths.longest(prices) - float(prices[bounded] @ uppers[bounded]), prices[index]))
        highest, prices[index] = max(found)
        best = max(best, highest)
    return best


class _Paths:
    """Longest paths through one model's graph under their best labels."""

    def __init__(self, table: Timetable) -> None:
        self.table = table
        # A component gets the savings of its changes of type even if they are on no path through it.
        self.seconds = np.where(table.allowed, table.seconds - self._spared(), NEVER)
        least = self.seconds.min(axis=1)
        self.spared = float(least[least < 0.0].sum())
        self.reads = [[(way.producer, *self._edge(way, answers=False)) for way in ways] for ways in table.reads]
        self.answers = [[self._edge(way, answers=True) for way in ways] for ways in table.answers]

    def longest(self, prices: np.ndarray) -> float:
        """Length of the longest path: seconds plus noise at these prices (by bound)."""
        own = self.seconds + self.table.own @ prices
        ends: list[np.ndarray] = []
        longest = 0.0
        for node, edges in enumerate(self.reads):
            start = np.zeros(self.table.labels) if edges else self.table.overhead_s[self.table.device]
            for producer, seconds, noise in edges:
                came = seconds + noise @ prices
                came = came[0] if producer is None else (ends[producer][:, None] + came).min(axis=0)
                start = np.maximum(start, came)
            end = start + own[node]
            ends.append(end)
            longest = max(longest, float(end.min()))
            for seconds, _ in self.answers[node]:
                longest = max(longest, float((end + seconds[:, 0]).min()))
        return longest + self.spared

    def _edge(self, way: Way, *, answers: bool) -> tuple[np.ndarray, np.ndarray]:
        """Least seconds between the producer's end and the reader's start, and noise, by both labels."""
        table = self.table
        entered = np.zeros(1) if answers else table.overhead_s[table.device]
        begun = np.where(way.far | (way.producer is None), entered, 0.0)
        floats, ints = (np.maximum(each[..., :BYTES], 0.0).sum(axis=-1) for each in (way.floats, way.ints))
        path = np.minimum(floats, ints) + begun
        never = np.minimum(way.floats[..., DELAY], way.ints[..., DELAY]) >= NEVER
        return np.where(never, NEVER, path), way.noise

    def _spared(self) -> np.ndarray:
        """Most seconds that changes of type at a node's inputs and outputs can save (node, label)."""
        values, table, first = self.table.problem.values, self.table, self.table.nodes.start
        change = np.minimum(np.minimum(values.quantize_s.min(axis=1), values.dequantize_s), 0.0)
        # A value is quantised on the device that writes it, and quantised or dequantised on the one that reads it.
        spared = np.zeros((len(table.nodes), table.devices))
        for value in np.flatnonzero((change < 0.0).any(axis=1)).tolist():
            ends = [
                int(values.producer[value]),
                *values.readers[values.start[value] : values.start[value + 1]].tolist(),
            ]
            for node in ends:
                if first <= node < table.nodes.stop:
                    spared[node - first] -= change[value]
        return spared[:, table.device]
