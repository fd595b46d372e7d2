"""The critical path: the best placement found by simulated latency, and a proven lower bound on the latency of any.

Placements come from the plan with the least sum, the plans on one device, and an evolutionary search: successive pools,
improved by many small changes. A change gives another device or precision to all ancestors or all descendants of a
block, a branch, a run of blocks, or one block, or copies such a part from another placement of the pool; and the
ancestors of a block may run earlier. All changed placements are replayed block by block (replay.py), the best of them
are simulated, and the best of those stay, no two with nearly the same value. Each component and crossing must gain a
minimum: smaller gains are below the accuracy of predictions. Components of the best are merged.

The bound: a request takes at least as long as any path of blocks and transfers, whatever else happens. With the noise
limits priced at λ ≥ 0, the length of a path is its seconds plus λ times its noise; the longest path under its best
labels, minus λ times the limits, is a lower bound for every λ, and the best of several λ is taken. The bound ignores
that a device runs one component at a time, so it is tight for chains and loose for wide networks. Two cases raise it:
where all blocks run on the device that starts, a request takes the sum of their seconds, which has a bound of its own;
otherwise there is a block elsewhere, and the longest path through it crosses links.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from taglio.cluster.planning.assemble import Assembled, request_shares
from taglio.cluster.planning.costs import TOLERANCE, Costs
from taglio.cluster.planning.describe import beyond_blocks
from taglio.cluster.planning.problem import LATENCY, Copies, Totals
from taglio.cluster.planning.replay import BYTES, DELAY, NEVER, Replay, Timetable, Way
from taglio.cluster.planning.schedule import Scheduler
from taglio.cluster.planning.simulate import simulate
from taglio.cluster.planning.workload import Objective

# Placements kept in the pool.
POOL = 30


def shorten(
    assembled: Assembled,
    objective: Objective,
    start: Sequence[Totals],
    *,
    least: float,
    gap: float,
    time_limit_s: float,
) -> tuple[Totals, float, float]:
    """The best placement found from `start` (placements within the limits), its value, and a lower bound on any value,
    once the gap is proven or time is up. `objective` weighs the critical path and the joules; `least` is a lower bound
    with the sum of seconds for the critical path."""
    started_s, bound = time.perf_counter(), 0.0
    search = Search(assembled, objective)
    for totals in start:
        search.offer(totals)
    # A pair of labels at the two ends of an edge takes 0.2 kB.
    if len(assembled.problem.values.readers) * assembled.problem.labels**2 <= 3_000_000:
        tables = [Timetable(assembled, model) for model in range(len(assembled.workloads))]
        bound = lower_bound(tables, objective.latency * search.shares, least)
        evolve(search, tables, started_s + 0.95 * time_limit_s, good_enough=bound / (1.0 - gap))
        search.polish(started_s + time_limit_s, good_enough=bound / (1.0 - gap))
    assert search.best is not None, "give at least one placement"
    return search.best, search.value, min(bound, search.value)


class Search:
    """Keeps the best placement by simulation, as weighed by an objective."""

    def __init__(self, assembled: Assembled, objective: Objective) -> None:
        self.assembled, self.objective = assembled, objective
        problem = self.problem = assembled.problem
        self.costs = Costs(problem)
        self.shares = request_shares(assembled.workloads)
        self.schedulers = [Scheduler(assembled, model) for model in range(len(assembled.workloads))]
        self.latencies = {resource.name for resource in problem.resources if resource.kind == LATENCY}
        # The weights of summed seconds in the objective: the simulated latency counts instead.
        self.summed = np.array([resource.weight if resource.kind == LATENCY else 0.0 for resource in problem.resources])
        # Allowed usage of the limits that component overheads count towards: more if the first placement exceeds it.
        self.limited = [i for i, r in enumerate(problem.resources) if r.upper < inf and r.kind != LATENCY]
        self.uppers = np.array([problem.resources[i].upper for i in self.limited])
        self.best: Totals | None = None
        self.value = inf

    def worth(self, totals: Totals) -> float:
        """Cost of a simulated placement as weighed by the objective: latency, joules, and changes to a running plan."""
        ends_s = [simulate(scheduler.placed(totals)).end_s for scheduler in self.schedulers]
        besides_latency = totals.objective - self.problem.constant - float(self.summed @ totals.resources)
        return self.objective.latency * float(self.shares @ ends_s) + besides_latency

    def of_labels(self) -> tuple[np.ndarray, np.ndarray]:
        """The amounts that labels alone add to the value except latency, and to the limits except those on latency
        (node, label, 1 + limits); and, for these limits, the most that a placement may add."""
        costs, rows = self.costs, np.flatnonzero([row.name not in self.latencies for row in self.costs.rows])
        unary = costs.sums.unary
        besides_latency = unary[..., 0] - unary[..., 1 : 1 + len(self.summed)] @ self.summed
        own = np.concatenate([besides_latency[..., None], costs.limited.unary[..., 1 + rows]], axis=2)
        return own, (costs.uppers + costs.saved + TOLERANCE)[rows]

    def kept(self, totals: Totals) -> bool:
        """Whether a placement keeps all limits except those on latency, which apply to the simulated latency rather
        than to the sum of seconds."""
        return self.latencies.issuperset(totals.broken) and self._has_room(totals)

    def _has_room(self, totals: Totals) -> bool:
        """Whether there is room for the overheads of its components, or at least as much as in the first placement."""
        if not self.limited:
            return True
        beyond = beyond_blocks(self.assembled, [scheduler.placed(totals) for scheduler in self.schedulers])
        amounts = (totals.resources + beyond)[self.limited]
        if self.best is None:
            self.uppers = np.maximum(self.uppers, amounts)
        return bool((amounts <= self.uppers * (1.0 + 1e-9)).all())

    def offer(self, totals: Totals) -> None:
        """Keep a placement if it is within the limits and, once its components are merged, the best so far. Merging is
        tried up to 1.3 times the best value."""
        if self.kept(totals) and (value := self.worth(totals)) <= 1.3 * self.value:
            totals, value = self._merged(totals, value)
            if value < self.value:
                self.best, self.value = totals, value

    def polish(self, deadline: float, *, good_enough: float) -> None:
        """Give single copies of the best placement another form while that shortens it. The evolution chooses the forms
        of all copies by one price."""
        tried = inf
        while self.best is not None and good_enough < self.value < tried:
            tried = self.value
            for value, device in np.argwhere(self.best.copies):
                for form in (Copies.FLOAT, Copies.INT8):
                    if time.perf_counter() > deadline:
                        return
                    copies = self.best.copies.copy()
                    copies[value, device] = form
                    totals = self.costs.totals(self.best.labels, copies)
                    self.offer(replace(totals, levels=self.best.levels))

    def _merged(self, totals: Totals, value: float) -> tuple[Totals, float]:
        """The placement with components that follow one another on a device merged where that costs nothing."""
        problem = self.problem
        device = np.array(totals.labels) // len(problem.forms)
        for model, place in np.unique(np.column_stack([problem.model, device]), axis=0) if totals.levels else ():
            on_place = (problem.model == model) & (device == place)
            target, *higher = np.unique(np.array(totals.levels)[on_place])
            for level in higher:
                levels = np.array(totals.levels)
                levels[on_place & (levels == level)] = target
                tried = replace(totals, levels=tuple(levels.tolist()))
                if (worth := self.worth(tried)) <= value and self._has_room(tried):
                    totals, value = tried, worth
                else:
                    target = level
        return totals, value


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """A simulated placement, its value with what its components and copies must gain, and the order of its blocks."""

    rank: float
    labels: np.ndarray
    totals: Totals
    order: int


class Pool:
    """The best placements so far of all models together, by simulation: `members`, best first."""

    def __init__(self, search: Search, tables: Sequence[Timetable], *, price: float, seed: int = 0) -> None:
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
        # Block orders, by model.
        self.orders = [[list(range(len(nodes))) for nodes in self.models]]

    def add(self, labels: np.ndarray, order: int = 0, most: int = 8) -> None:
        """Simulate the `most` best of these placements (placement, node), and keep those among the pool's best."""
        values, factors, levels = self._replayed(labels, order)
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
                members.append(Member(value * float(factors[index]), labels[index], totals, order))
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
            if self.random.random() < 0.5:
                self.orders.append(self._new_order())
                order = len(self.orders) - 1
            else:
                order = self._better().order
            self.add(self._changed(self.orders[order]), order)
            stalled = 0 if self.members[0].rank < best * (1.0 - 1e-6) else stalled + 1

    def _new_order(self) -> list[list[int]]:
        if self.random.random() < 0.3:
            return [replay.order(self.random) for replay in self.replays]
        before = self.orders[self._better().order]
        return [replay.hastened(order, self.random) for replay, order in zip(self.replays, before, strict=True)]

    def _replayed(self, labels: np.ndarray, order: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """By placement: its value by replay, infinite if it surely breaks a limit; the factor for its number of
        components and copies; and the levels of its nodes."""
        search, every = self.search, np.arange(labels.shape[1])
        played = [
            replay.play(labels[:, nodes.start : nodes.stop], own)
            for replay, nodes, own in zip(self.replays, self.models, self.orders[order], strict=True)
        ]
        latency = np.stack([replayed.latency_s for replayed in played], axis=1) @ search.shares
        sums = self.own[every, labels].sum(axis=1)
        noise = sum(replayed.noise for replayed in played)
        limits = np.array([bound.upper for bound in self.problem.noises]) * (1.0 + 1e-9)
        over = (sums[:, 1:] > self.uppers).any(axis=1) | (noise > limits).any(axis=1) | (latency >= NEVER * 1e-3)
        value = np.where(over, inf, search.objective.latency * latency + sums[:, 0])
        handled = sum(replayed.copies + replayed.component.max(axis=1) for replayed in played)
        # Each component and each copy sent must gain this share of the request's cost.
        return value, 1.0 + 3e-4 * handled, np.concatenate([replayed.component for replayed in played], axis=1)

    def _totals(self, labels: np.ndarray, levels: np.ndarray) -> Totals:
        copies = np.zeros((len(self.problem.values), len(self.problem.devices)), dtype=np.intp)
        for replay, nodes in zip(self.replays, self.models, strict=True):
            replay.copies(labels[nodes.start : nodes.stop].tolist(), copies)
        return replace(self.search.costs.totals(labels, copies), levels=tuple(levels.tolist()))

    def _changed(self, order: Sequence[Sequence[int]]) -> np.ndarray:
        """Changed copies of placements in the pool, better ones more often."""
        random = self.random
        count = min(400, 20 * len(self.problem.nodes))
        labels = np.array([self._better().labels for _ in range(count)])
        for row in labels:
            for _ in range(1 + int(random.integers(3) * random.random())):
                nodes = self._part(order)
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

    def _part(self, order: Sequence[Sequence[int]]) -> np.ndarray:
        """A group of nodes, a run of eight blocks on average, or one block."""
        random = self.random
        draw = random.random()
        if draw < 0.5:
            return np.asarray(np.flatnonzero(self.groups[int(random.integers(len(self.groups)))]))
        model = int(random.integers(len(order)))
        first, own = int(random.integers(len(order[model]))), order[model]
        size = 1 + (int(random.exponential(8.0)) if draw < 0.8 else 0)
        return self.models[model].start + np.array(own[first : first + size])


def _level(value: float) -> int:
    """Values with the same level are nearly the same: they differ by less than 0.2 %."""
    return round(float(np.log(max(value, 1e-12))) / 2e-3)


def evolve(search: Search, tables: Sequence[Timetable], deadline: float, *, good_enough: float) -> None:
    """Evolve the search's best placement and the placements on one device, and offer it the results. Pools run in turn,
    each until it stops improving, because their results differ by several percent, until four in turn bring nothing."""
    seed = fruitless = 0
    while search.value > good_enough and fruitless < 4 and time.perf_counter() < deadline:
        pool, before = _begun(search, tables, seed), search.value
        pool.run(deadline, min(60, len(search.problem.nodes)), good_enough=good_enough)
        for member in pool.members[:4]:
            search.offer(member.totals)
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
        search.offer(search.costs.totals(starts[-1]))
    pool.add(np.unique(np.array(starts), axis=0), most=POOL)
    return pool


def groups(table: Timetable) -> np.ndarray:
    """Groups of nodes that may move together, for every node of a model: itself with all its ancestors, all its
    descendants, the descendants reached only through it, or the ancestors that lead only to it. Distinct masks over the
    problem's nodes."""
    before = [[way.producer for way in ways] for ways in table.reads]
    masks = np.unique(together(before, [bool(ways) for ways in table.answers]), axis=0)
    group_masks = np.zeros((len(masks), len(table.problem.nodes)), dtype=bool)
    group_masks[:, table.nodes.start : table.nodes.stop] = masks
    return group_masks


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
            near = [neighbour for neighbour in next_to[node] if neighbour is not None]
            if near and len(near) == len(next_to[node]):
                table[node] |= np.logical_and.reduce(table[near])
    return np.concatenate([leads, leads.T, comes_alone.T, leads_alone.T])


def lower_bound(tables: Sequence[Timetable], weights: np.ndarray, least: float) -> float:
    """Lower bound on the value of any placement, with the weight of each model's critical path; `least` bounds it with
    the sum of seconds in its place, which it is, beside the overhead of a component, on the device that starts."""
    paths = np.array([path_bounds(table) for table in tables])
    anywhere = float(weights @ paths[:, 0])
    away = float((weights * (paths[:, 1] - paths[:, 0])).min())
    overhead_s = float(weights @ [table.overhead_s[table.home] for table in tables])
    return max(anywhere, min(anywhere + away, least + overhead_s))


def path_bounds(table: Timetable) -> np.ndarray:
    """Lower bounds on the seconds of a model: of any placement, and of one with a block that is not on the device that
    starts."""
    paths, uppers = Paths(table), np.array([bound.upper for bound in table.problem.noises])
    bounded = np.flatnonzero(np.isfinite(uppers))
    prices = np.zeros(len(uppers))
    best = paths.longest(prices)
    unit = abs(float(best[0]))  # negative where changes of type spare more than the longest path takes
    for index in bounded.tolist():
        priced = []
        for share in (0.0, 0.03, 0.06, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0):
            prices[index] = share * unit / max(uppers[index], 1e-9)
            lengths = paths.longest(prices) - float(prices[bounded] @ uppers[bounded])
            best = np.maximum(best, lengths)
            priced.append((float(lengths[0]), prices[index]))
        prices[index] = max(priced)[1]
    return best


@dataclass(frozen=True, slots=True, eq=False)
class Edge:
    """The part of a path between a producer (None: an input) and a reader: least `seconds` by both labels, with the
    overhead of a component that begins; and least noise by both labels and bound."""

    producer: int | None
    seconds: np.ndarray
    noise: np.ndarray


class Paths:
    """Paths through one model's graph: least seconds of nodes (node, label) and edges, whatever else happens."""

    def __init__(self, table: Timetable) -> None:
        self.table = table
        # A component gets the savings of its changes of type even if they are on no path through it.
        self.seconds = np.where(table.allowed, table.seconds - self._spared(), NEVER)
        least = self.seconds.min(axis=1)
        self.spared = float(least[least < 0.0].sum())
        self.reads = [[self._edge(way, answers=False) for way in ways] for ways in table.reads]
        self.answers = [[self._edge(way, answers=True) for way in ways] for ways in table.answers]

    def longest(self, prices: np.ndarray) -> np.ndarray:
        """Length of the longest path, and the least of the longest ones through a block that is not on the device that
        starts: seconds plus noise at these prices (by bound), under the best labels."""
        table = self.table
        own = self.seconds + table.own @ prices
        ends = np.zeros_like(own)
        for node, edges in enumerate(self.reads):
            start = np.zeros(table.labels) if edges else table.overhead_s[table.device]
            for edge in edges:
                path_s = edge.seconds + edge.noise @ prices
                path_s = path_s[0] if edge.producer is None else (ends[edge.producer][:, None] + path_s).min(axis=0)
                start = np.maximum(start, path_s)
            ends[node] = start + own[node]
        through = ends + self.after(prices)
        away = through[:, table.device != table.home].min(initial=NEVER)
        return np.array([through.min(axis=1).max(initial=0.0), away]) + self.spared

    def after(self, prices: np.ndarray) -> np.ndarray:
        """Length of the longest path from the end of a node to the last answer (node, label), under the best labels of
        the other nodes."""
        own_s = self.seconds + self.table.own @ prices
        onward_s = np.zeros_like(own_s)
        for node in reversed(range(len(own_s))):
            for edge in self.answers[node]:
                onward_s[node] = np.maximum(onward_s[node], edge.seconds[:, 0])
            for edge in self.reads[node]:
                if edge.producer is not None:
                    path_s = (edge.seconds + edge.noise @ prices + own_s[node] + onward_s[node]).min(axis=1)
                    onward_s[edge.producer] = np.maximum(onward_s[edge.producer], path_s)
        return np.asarray(onward_s)

    def _edge(self, way: Way, *, answers: bool) -> Edge:
        entered = np.zeros(1) if answers else self.table.overhead_s[self.table.device]
        entry_s = np.where(way.far | (way.producer is None), entered, 0.0)
        seconds = np.maximum(way.seconds[..., :BYTES], 0.0).sum(axis=-1)
        seconds = np.where(way.seconds[..., DELAY] >= NEVER, NEVER, seconds + entry_s)
        return Edge(way.producer, seconds.min(axis=0), way.noise.min(axis=0))

    def _spared(self) -> np.ndarray:
        """Most seconds that changes of type at a node's inputs and outputs can save (node, label)."""
        table, values = self.table, self.table.problem.values
        change = np.minimum(np.minimum(values.quantize_s.min(axis=1), values.dequantize_s), 0.0)
        # A value is quantised on the device that writes it, and quantised or dequantised on the one that reads it. The
        # last row is for those that are no nodes (−1).
        spared = np.zeros((len(table.problem.nodes) + 1, table.devices))
        np.subtract.at(spared, values.producer, change)
        np.subtract.at(spared, values.readers, change[values.edge_value()])
        return spared[table.nodes.start : table.nodes.stop, table.device]
