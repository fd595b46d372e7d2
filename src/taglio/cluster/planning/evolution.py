"""An evolutionary search for placements with a short critical path or period.

Successive pools of placements are improved by many small changes. A change gives another device or precision to all
ancestors or all descendants of a block, a run of blocks, or one block, or copies such a part from another
placement of the pool. All changed placements are replayed block by block
(replay.py), the best of them are simulated, and the best of those stay, no two with nearly the same value. Each
component and crossing must gain a minimum: smaller gains are below the accuracy of predictions.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from taglio.cluster.planning.path_search import PathSearch
from taglio.cluster.planning.problem import Totals
from taglio.cluster.planning.replay import NEVER, Replay, Timetable

# Placements kept in the pool.
POOL = 30


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """A simulated placement, and its value with what its components and copies must gain."""

    rank: float
    labels: np.ndarray
    totals: Totals


class Pool:
    """The best placements so far of all models together, by simulation: `members`, best first."""

    def __init__(self, search: PathSearch, tables: Sequence[Timetable], *, price: float, seed: int = 0) -> None:
        """`tables` are those of the models. Tensors are sent as int8 if that saves `price` seconds per whole error
        bound used."""
        self.search = search
        problem = self.problem = search.assembled.problem
        self.forms = len(problem.forms)
        self.models = [table.nodes for table in tables]
        self.replays = [Replay(table, price) for table in tables]
        self.allowed = problem.allowed.reshape(len(problem.nodes), -1)
        self.random = np.random.default_rng(seed)
        self.groups = np.concatenate([groups(table) for table in tables])
        self.own, self.uppers = search.of_labels()
        self.members: list[Member] = []

    def add(self, labels: np.ndarray, most: int = 8) -> None:
        """Simulate the `most` best of these placements (placement, node), and keep those among the pool's best."""
        values, factors, levels = self._replayed(labels)
        ranks = values * factors
        worst = self.members[-1].rank if len(self.members) == POOL else inf
        seen, tried = {_level(member.rank) for member in self.members}, list[int]()
        for index in np.argsort(ranks, kind="stable").tolist():
            if len(tried) == most or ranks[index] >= worst:
                break
            if _level(ranks[index]) not in seen:
                seen.add(_level(ranks[index]))
                tried.append(index)
        members = list(self.members)
        for index in tried:
            split = self._totals(labels[index], levels[index])
            if self.search.kept(split):
                value, totals = min(
                    ((self.search.worth(placement), placement) for placement in (split, replace(split, levels=()))),
                    key=lambda pair: pair[0],
                )
                members.append(Member(value * float(factors[index]), labels[index], totals))
        best: dict[int, Member] = {}
        for member in sorted(members, key=lambda member: member.rank):
            best.setdefault(_level(member.rank), member)
        self.members = list(best.values())[:POOL]

    def run(self, deadline: float, patience: int, *, good_enough: float) -> None:
        """Evolve until the deadline, until the best is good enough, or until `patience` rounds bring no improvement."""
        stalled = 0
        while stalled < patience and self.members and time.perf_counter() < deadline:
            best = self.members[0].rank
            if best <= good_enough:
                return
            self.add(self._changed())
            stalled = 0 if self.members[0].rank < best * (1.0 - 1e-6) else stalled + 1

    def _replayed(self, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """By placement: its value by replay, infinite if it surely breaks a limit; the factor for its number of
        components and copies; and the levels of its nodes."""
        search, every = self.search, np.arange(labels.shape[1])
        played = [
            replay.play(labels[:, nodes.start : nodes.stop])
            for replay, nodes in zip(self.replays, self.models, strict=True)
        ]
        sums = self.own[every, labels].sum(axis=1)
        noise = sum(replayed.noise for replayed in played)
        limits = np.array([bound.upper for bound in self.problem.noises]) * (1.0 + 1e-9)
        over = (sums[:, 1:] > self.uppers).any(axis=1) | (noise > limits).any(axis=1)
        for replayed in played:
            over |= replayed.latency_s >= NEVER * 1e-3
        value = np.where(over, inf, search.replayed(played) + sums[:, 0])
        handled = sum(replayed.copies + replayed.component.max(axis=1) for replayed in played)
        # Each component and each copy sent must gain this share of the request's cost.
        return value, 1.0 + 3e-4 * handled, np.concatenate([replayed.component for replayed in played], axis=1)

    def _totals(self, labels: np.ndarray, levels: np.ndarray) -> Totals:
        copies = np.zeros((len(self.problem.values), len(self.problem.devices)), dtype=np.intp)
        for replay, nodes in zip(self.replays, self.models, strict=True):
            replay.copies(labels[nodes.start : nodes.stop].tolist(), copies)
        return replace(self.search.costs.totals(labels, copies), levels=tuple(levels.tolist()))

    def _changed(self) -> np.ndarray:
        """Changed copies of placements in the pool, better ones more often."""
        random = self.random
        count = min(400, 20 * len(self.problem.nodes))
        labels = np.array([self._better().labels for _ in range(count)])
        for row in labels:
            for _ in range(1 + int(random.integers(3) * random.random())):
                nodes = self._part()
                draw = random.random()
                if draw < 0.65:  # to another device
                    to = random.integers(len(self.problem.devices)) * self.forms + row[nodes] % self.forms
                elif draw < 0.75:  # in another precision
                    to = row[nodes] // self.forms * self.forms + random.integers(self.forms)
                else:  # copied from another placement
                    to = self.members[random.integers(len(self.members))].labels[nodes]
                may = self.allowed[nodes, to]
                row[nodes[may]] = to[may]
        return labels

    def _better(self) -> Member:
        """A random member, better ones more often."""
        place = self.random.exponential(POOL / 3)
        return self.members[int(place) % len(self.members)]

    def _part(self) -> np.ndarray:
        """A group of nodes, a run of eight blocks on average, or one block."""
        random = self.random
        draw = random.random()
        if draw < 0.5:
            return np.asarray(np.flatnonzero(self.groups[int(random.integers(len(self.groups)))]))
        nodes = self.models[int(random.integers(len(self.models)))]
        first, size = int(random.integers(len(nodes))), 1 + (int(random.exponential(8.0)) if draw < 0.8 else 0)
        return np.array(nodes[first : first + size])


def _level(value: float) -> int:
    """Values with the same level are nearly the same: they differ by less than 0.2 %."""
    return round(float(np.log(max(value, 1e-12))) / 2e-3)


def evolve(
    search: PathSearch,
    tables: Sequence[Timetable],
    deadline: float,
    *,
    starts: Sequence[np.ndarray] = (),
    good_enough: float,
) -> Iterator[None]:
    """Evolve the search's best placement, the labellings `starts` and the placements on one device, and offer it the
    results after every pool. Pools run in turn, each until it stops improving, because their results differ by several
    percent, until four in turn bring nothing."""
    seed = fruitless = 0
    while search.value > good_enough and fruitless < 4 and time.perf_counter() < deadline:
        pool, before = _begun(search, tables, starts, seed), search.value
        pool.run(deadline, min(60, len(search.problem.nodes)), good_enough=good_enough)
        for member in pool.members[:4]:
            search.offer(member.totals)
        seed, fruitless = seed + 1, fruitless + 1 if search.value == before else 0
        yield


def _begun(search: PathSearch, tables: Sequence[Timetable], starts: Sequence[np.ndarray], seed: int) -> Pool:
    problem = search.problem
    assert search.best is not None, "give the search at least one placement"
    pool = Pool(search, tables, price=search.value, seed=seed)
    begin = [np.array(search.best.labels), *starts, *problem.on_one_device()]
    for labels in begin[1:]:
        search.offer(search.costs.totals(labels))
    pool.add(np.unique(np.array(begin), axis=0), most=POOL)
    return pool


def groups(table: Timetable) -> np.ndarray:
    """Groups of nodes that may move together, for every node of a model: itself with all its ancestors, or all its
    descendants. Distinct masks over the problem's nodes."""
    leads = np.eye(len(table.nodes), dtype=bool)
    for node, ways in enumerate(table.reads):
        for way in ways:
            if way.producer is not None:
                leads[node] |= leads[way.producer]
    masks = np.unique(np.concatenate([leads, leads.T]), axis=0)
    group_masks = np.zeros((len(masks), len(table.problem.nodes)), dtype=bool)
    group_masks[:, table.nodes.start : table.nodes.stop] = masks
    return group_masks
