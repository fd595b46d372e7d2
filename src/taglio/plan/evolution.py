"""An evolutionary search for placements: pools of them, one after the other, improved by many small changes. No bound.

A change gives another device or precision to all that leads to a block, or all that comes of it, a branch, a run of
blocks, or one block; takes such a part from another placement of the pool; or holds a component together where it could
part; and what a block waits for may run sooner. All that comes of it is played block by block (replay.py), the best of
that is simulated, and of that the best stays, no two of nearly the same value. A component and a crossing have to be
worth it: what is predicted is off by more than their small gain.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from taglio.plan.placements import Search
from taglio.plan.problem import Copies, Wires
from taglio.plan.replay import NEVER, Played, Replay, Timetable

# Placements that stay, the relative difference that two of them have at least, and how many are tried at a time: so
# many for each block, up to the most.
POOL, _APART, _EACH, _BATCH = 30, 2e-3, 20, 400
# Of what a request takes, so much has to be won by each component and each copy sent.
_WORTH = 3e-4
# How often a batch runs its blocks in a new order, and how often that is new in all, not in what one block waits for.
_NEW_ORDER, _ALL_NEW = 0.5, 0.3
# Of a batch, so many are simulated.
_SIMULATED = 8
# Blocks in a run of blocks, in the mean; changes to one placement, at most.
_RUN, _CHANGES = 8.0, 3
# Rounds of a pool that bring nothing, before it gives way to a new one; pools in a row that bring nothing, before there
# are no more; and so many placements of each are offered.
_PATIENCE, _FRUITLESS, _OFFERED = 60, 4, 4


@dataclass(frozen=True, slots=True, eq=False)
class _Tried:
    """Of each placement: what it takes as the goal weighs it, infinite beyond a limit; the latency in that; stages of
    all nodes; and how many components and copies there are."""

    values: np.ndarray
    latency_s: np.ndarray
    stages: np.ndarray
    handled: np.ndarray


class Pool:
    """The best placements so far of all models at once, as simulated."""

    def __init__(
        self,
        search: Search,
        tables: Sequence[Timetable],
        *,
        price: float,
        seed: int = 0,
    ) -> None:
        """`tables` are those of the models. Tensors travel as int8 where that is sooner by `price` seconds for all of a
        bound on the error."""
        self.search, self.goal = search, search.goal
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
        # Orders in which blocks may run, by model; and which one each placement has.
        self.known = [[list(range(len(nodes))) for nodes in self.models]]
        self.orders = np.zeros(0, dtype=np.intp)
        self.values = self.ranks = np.zeros(0)

    def add(self, labels: np.ndarray, held: np.ndarray | None = None, order: int = 0, most: int = _SIMULATED) -> None:
        """Let the best of some placements (the first axis) into the pool, as far as they are among its best."""
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
                taken = float(self.shares @ self._simulated(labels[index], tried.stages[index]))
                values[index] += self.goal.latency * (taken - tried.latency_s[index])
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
        """Change and choose until the deadline, until the best is good enough, or until nothing better has come for
        `patience` rounds."""
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
        played = self._play(labels, held, order)
        latency = np.stack([each.latency_s for each in played], axis=1) @ self.shares
        value: np.ndarray = self.goal.latency * latency
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

    def plans(self) -> Iterator[tuple[list[int], Wires, tuple[int, ...]]]:
        """Labels, copies and stages of the placements, the best first. Peaks of memory are not looked at."""
        for labels, stages in zip(self.labels, self.stages, strict=True):
            yield labels.tolist(), self._wires(labels), tuple(stages.tolist())

    def _simulated(self, labels: np.ndarray, stages: np.ndarray) -> np.ndarray:
        return self.search.simulated(labels, self._wires(labels), stages)

    def _wires(self, labels: np.ndarray) -> Wires:
        wires: list[Mapping[int, Copies]] = [{} for _ in range(len(self.problem.values))]
        for replay, nodes in zip(self.replays, self.models, strict=True):
            for value, copies in replay.wires(labels[nodes.start : nodes.stop].tolist()).items():
                wires[value] = copies
        return tuple(wires)

    def _play(self, labels: np.ndarray, held: np.ndarray, order: int) -> list[Played]:
        return [
            replay.play(labels[:, nodes.start : nodes.stop], held[:, nodes.start : nodes.stop], own)
            for replay, nodes, own in zip(self.replays, self.models, self.known[order], strict=True)
        ]

    def _changed(self, order: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
        """Changed copies of what is in the pool, more of the better."""
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
                elif what < 0.85:  # as in another placement
                    other = random.integers(size)
                    to, hold[nodes] = self.labels[other, nodes], self.held[other, nodes]
                else:
                    hold[nodes] = random.random() < 0.7
                    continue
                may = self.allowed[nodes, to]
                row[nodes[may]] = to[may]
        return labels, held

    def _better(self, count: int) -> np.ndarray:
        """Some of the pool by chance, more of the better."""
        odds = np.exp(-np.arange(len(self.values)) / (POOL / 3))
        result: np.ndarray = self.random.choice(len(odds), count, p=odds / odds.sum())
        return result

    def _part(self, order: Sequence[Sequence[int]]) -> np.ndarray:
        random = self.random
        what = random.random()
        if what < 0.5:
            result: np.ndarray = np.flatnonzero(self.groups[int(random.integers(len(self.groups)))])
            return result
        model = int(random.integers(len(order)))
        first, own = int(random.integers(len(order[model]))), order[model]
        size = 1 + (int(random.exponential(_RUN)) if what < 0.8 else 0)
        return self.models[model].start + np.array(own[first : first + size])


def evolve(search: Search, tables: Sequence[Timetable], deadline: float, *, good_enough: float) -> None:
    """Offer the search what small changes make of its best placement, and of all on one device: one pool after the
    other, each until it brings nothing more, for what they come to differs by several percent."""
    seed = fruitless = 0
    while search.value > good_enough and fruitless < _FRUITLESS and time.perf_counter() < deadline:
        pool, before, offered = _begun(search, tables, seed), search.value, 0
        pool.run(deadline, _PATIENCE, good_enough=good_enough)
        for labels, wires, stages in pool.plans():
            totals = replace(search.costs.totals(labels, wires), stages=stages)
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
        # In the first form that is allowed there, elsewhere where none is.
        starts.append(np.where(pool.allowed & here, 2, pool.allowed).argmax(axis=1).tolist())
    labels = np.unique(np.array(starts), axis=0)
    held = np.arange(2 * len(labels)) < len(labels)
    pool.add(np.tile(labels, (2, 1)), np.repeat(held[:, None], len(problem.nodes), axis=1), most=POOL)
    return pool


def groups(table: Timetable) -> np.ndarray:
    """Nodes that may move together, for every node of a model with itself: all that leads to it, all that comes of it,
    all that comes of it alone, and all that leads to it alone; masks over the problem's nodes, each once, small ones
    first."""
    before = [[way.producer for way in ways] for ways in table.reads]
    masks = together(before, [bool(ways) for ways in table.answers])
    masks = masks[np.unique(np.packbits(masks[:, ::-1], axis=1), axis=0, return_index=True)[1]]
    masks = masks[np.argsort(masks.sum(axis=1), kind="stable")]
    result = np.zeros((len(masks), len(table.problem.nodes)), dtype=bool)
    result[:, table.nodes.start : table.nodes.stop] = masks
    return result


def together(before: Sequence[Sequence[int | None]], ends: Sequence[bool]) -> np.ndarray:
    """The same for a graph: `before` are the nodes that each node reads from, None for an input, and `ends` says which
    the caller reads."""
    after: list[list[int | None]] = [[None] if end else [] for end in ends]
    leads, comes_alone, leads_alone = (np.eye(len(before), dtype=bool) for _ in range(3))
    for node, sources in enumerate(before):
        for source in sources:
            if source is not None:
                leads[node] |= leads[source]
                after[source].append(node)
    # Dominators: those of a node are what those of all nodes before it share.
    for table, order, next_to in (
        (comes_alone, range(len(before)), before),
        (leads_alone, reversed(range(len(before))), after),
    ):
        for node in order:
            near = [each for each in next_to[node] if each is not None]
            if near and len(near) == len(next_to[node]):
                table[node] |= np.logical_and.reduce(table[near])
    return np.concatenate([leads, leads.T, comes_alone.T, leads_alone.T])
