"""An evolutionary search for placements with a short critical path or period.

Successive pools of placements are improved by many small changes. A change gives another device or precision to all
ancestors or all descendants of a block, a run of blocks, or one block, or copies such a part from another
placement of the pool. The changed placements that promise most are simulated, and the best of those stay, no two with
nearly the same value. Each crossing must gain a minimum: smaller gains are below the accuracy of predictions.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from taglio.cluster.planning.path_search import PathSearch
from taglio.cluster.planning.problem import CALLER, SOURCE, Totals
from taglio.cluster.planning.tables import Priced

# Placements kept in the pool.
POOL = 30


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """A simulated placement, and its value with what its copies must gain."""

    rank: float
    labels: np.ndarray
    totals: Totals


class Pool:
    """The best placements so far of all models together, by simulation: `members`, best first."""

    def __init__(self, search: PathSearch, *, price: float, seed: int = 0) -> None:
        """Tensors are sent as int8 if that saves `price` seconds per whole error bound used."""
        self.search = search
        problem = self.problem = search.problem
        self.forms = len(problem.forms)
        self.models = [scheduler.nodes for scheduler in search.schedulers]
        self.allowed = problem.allowed.reshape(len(problem.nodes), -1)
        self.random = np.random.default_rng(seed)
        self.groups = groups(search)
        self.priced = _priced(search, price)
        self.members: list[Member] = []
        self.seen: set[bytes] = set()

    def add(self, labels: np.ndarray, most: int) -> None:
        """Simulate the `most` most promising of these placements (placement, node), and keep those among the pool's
        best."""
        search, costs = self.search, self.search.costs
        labels = labels[[row.tobytes() not in self.seen for row in labels]]
        if not len(labels):
            return
        labels = np.unique(labels, axis=0)
        sums, copies = costs.sums_of(self.priced, labels)
        # Each copy sent must gain this share of the request's cost.
        factors = 1.0 + 3e-4 * np.count_nonzero(copies, axis=(1, 2))
        members, tried = list(self.members), list(range(len(labels)))
        if len(labels) > most:
            tried = self._promising(search.estimates(labels, copies, sums) * factors, most)
        for index in tried:
            self.seen.add(labels[index].tobytes())
            totals = costs.totals(labels[index], copies[index])
            if search.kept(totals):
                value, totals = search.simulated(totals)
                members.append(Member(value * float(factors[index]), labels[index], totals))
        best: dict[int, Member] = {}
        for member in sorted(members, key=lambda member: member.rank):
            best.setdefault(_level(member.rank), member)
        self.members = list(best.values())[:POOL]

    def _promising(self, ranks: np.ndarray, most: int) -> list[int]:
        """The `most` best of these ranks, no two nearly the same, and none nearly the same as a member's."""
        worst = self.members[-1].rank if len(self.members) == POOL else inf
        levels, promising = {_level(member.rank) for member in self.members}, list[int]()
        for index in np.argsort(ranks, kind="stable").tolist():
            if len(promising) == most or ranks[index] >= worst:
                break
            if _level(ranks[index]) not in levels:
                levels.add(_level(ranks[index]))
                promising.append(index)
        return promising

    def run(self, deadline: float, patience: int, *, good_enough: float) -> None:
        """Evolve until the deadline, until the best is good enough, or until `patience` rounds bring no improvement."""
        stalled = 0
        while stalled < patience and self.members and time.perf_counter() < deadline:
            best = self.members[0].rank
            if best <= good_enough:
                return
            self.add(self._changed(), self.search.simulations)
            stalled = 0 if self.members[0].rank < best * (1.0 - 1e-6) else stalled + 1

    def _changed(self) -> np.ndarray:
        """Changed copies of placements in the pool, better ones more often."""
        random = self.random
        count = min(self.search.children, 20 * len(self.problem.nodes))
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
    search: PathSearch, deadline: float, *, starts: Sequence[np.ndarray] = (), good_enough: float
) -> Iterator[None]:
    """Evolve the search's best placement, the labellings `starts` and the placements on one device, and offer it the
    results after every pool. Pools run in turn, each until it stops improving, because their results differ by several
    percent, until four in turn bring nothing."""
    seed = fruitless = 0
    while search.value > good_enough and fruitless < 4 and time.perf_counter() < deadline:
        pool, before = _begun(search, starts, seed), search.value
        pool.run(deadline, min(60, len(search.problem.nodes)), good_enough=good_enough)
        for member in pool.members[:4]:
            search.offer(member.totals)
        seed, fruitless = seed + 1, fruitless + 1 if search.value == before else 0
        yield


def _begun(search: PathSearch, starts: Sequence[np.ndarray], seed: int) -> Pool:
    problem = search.problem
    assert search.best is not None, "give the search at least one placement"
    pool = Pool(search, price=search.value, seed=seed)
    begin = [np.array(search.best.labels), *starts, *problem.on_one_device()]
    for labels in begin[1:]:
        search.offer(search.costs.totals(labels))
    pool.add(np.array(begin), most=POOL)
    return pool


def _priced(search: PathSearch, price: float) -> Priced:
    """Costs of copies: seconds and shares of error bounds, each whole bound at `price`. An input that is sent as int8
    takes the start device a component that quantises it, an output that arrives as int8 one that dequantises it."""
    costs, values, assembled = search.costs, search.problem.values, search.assembled
    noises = {bound.name for bound in search.problem.noises}
    priced = costs.price(np.array([price * (row.name in noises) for row in costs.rows]))
    overhead_s = search.latency * search.shares * assembled.overhead_s[:, search.home]
    quantize, dequantize = priced.quantize.copy(), priced.dequantize.copy()
    inputs = np.flatnonzero(values.producer == SOURCE)
    outputs = np.unique(costs.edge_value[values.readers == CALLER])
    quantize[inputs, search.home] += overhead_s[values.model[inputs]]
    dequantize[outputs, search.home] += overhead_s[values.model[outputs]]
    return replace(priced, quantize=quantize, dequantize=dequantize)


def groups(search: PathSearch) -> np.ndarray:
    """Groups of nodes that may move together, for every node: itself with all its ancestors, or all its descendants.
    Distinct masks over the problem's nodes."""
    leads = np.eye(len(search.problem.nodes), dtype=bool)
    for scheduler in search.schedulers:
        first = scheduler.nodes.start
        for node, read in enumerate(scheduler.sources, first):
            for source in read:
                leads[node] |= leads[first + source]
    return np.unique(np.concatenate([leads, leads.T]), axis=0)
