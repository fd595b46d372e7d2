"""Placements by simulation: the best found, its components parted and moved about as long as that shortens a request.

A component is parted into stages where something that it writes could leave before the rest has run, or the rest could
run before something arrives. What is moved to another device is a component, or all that leads to a block, or all that
comes of it. Proves nothing; see critical_path.py.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from math import inf

import numpy as np

from taglio.plan.assemble import Assembled
from taglio.plan.costs import Costs
from taglio.plan.problem import CALLER, ENERGY, LATENCY, SOURCE, Problem, Totals, Wires
from taglio.plan.schedule import Schedule, Scheduler, Sent
from taglio.plan.simulate import simulate
from taglio.plan.tables import request_shares
from taglio.plan.workload import Goal

# A component is parted where that shortens the request by so much of it.
_WORTHWHILE = 0.01
# Parting is tried where a request takes up to so many times what the best takes.
_PARTED_UP_TO = 1.3
# And after a move that is not far worse by itself.
_MOVED_UP_TO = 1.05
# Of the placements that are offered, so many wait for parts of them to be moved.
_STARTS = 4


class Groups:
    """Sets of nodes that may move together: all that leads to a block, all that comes of it, and branches."""

    def __init__(self, sides: Sequence[tuple[int, int]]) -> None:
        """Each is the first node of its model, and the model's nodes as bits."""
        self._sides = sides

    def __len__(self) -> int:
        return len(self._sides)

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: int) -> np.ndarray:
        first, side = self._sides[index]
        bits = np.frombuffer(f"{side:b}"[::-1].encode(), dtype=np.uint8)
        result: np.ndarray = first + np.flatnonzero(bits == ord("1"))
        return result


class LocalSearch:
    """The best placement by simulation, as a goal weighs it; nothing is parted any more after `deadline`."""

    def __init__(self, assembled: Assembled, goal: Goal, deadline: float = inf) -> None:
        self.assembled, self.goal, self.deadline = assembled, goal, deadline
        problem, values = assembled.problem, assembled.problem.values
        self.costs = Costs(problem)
        self.shares = request_shares(assembled.workloads)
        self.schedulers = [Scheduler(assembled, model) for model in range(len(assembled.workloads))]
        self.energy = [i for i, r in enumerate(problem.resources) if r.kind == ENERGY]
        self.labels_allowed = problem.allowed.reshape(len(problem.nodes), -1)
        # The values that each node writes and reads.
        self.around: list[list[int]] = [[] for _ in problem.nodes]
        for value, producer in enumerate(values.producer.tolist()):
            readers = values.readers[values.start[value] : values.start[value + 1]].tolist()
            for node in {producer, *readers} - {SOURCE, CALLER}:
                self.around[node].append(value)
        models = range(len(self.schedulers))
        self.groups = Groups([(assembled.nodes(model).start, each) for model in models for each in self._groups(model)])
        # Of limits that components' overheads count against, what may be used: more where the first placement does.
        self.limited = [i for i, r in enumerate(problem.resources) if r.upper < inf and r.kind != LATENCY]
        self.uppers = np.array([problem.resources[i].upper for i in self.limited])
        self.best: Totals | None = None
        self.value, self.tried = inf, 0
        # The best few that were offered, by value; and the labels that parts were moved from already.
        self.offered: list[tuple[float, int, Totals]] = []
        self.climbed: set[tuple[int, ...]] = set()

    def worth(self, totals: Totals) -> float:
        """What a placement takes by simulation, as the goal weighs it."""
        taken = float(self.shares @ np.array(self.simulated(totals.labels, totals.wires, totals.stages)))
        return self.goal.latency * taken + self.besides(totals)

    def besides(self, totals: Totals) -> float:
        """What of it is no latency: joules, and what changing a running plan costs."""
        problem = self.assembled.problem
        joules = sum(problem.resources[i].weight * float(totals.resources[i]) for i in self.energy)
        extra = 0.0
        if problem.extra is not None:
            nodes = np.arange(len(problem.nodes))
            extra = float(problem.extra.reshape(len(nodes), -1)[nodes, list(totals.labels)].sum())
        return float(joules + extra)

    def simulated(self, labels: Sequence[int], wires: Wires, stages: Sequence[int] = ()) -> list[float]:
        """Seconds of a request of each model, alone."""
        return [simulate([each.schedule(labels, wires, stages).pipeline()]).end_s for each in self.schedulers]

    def _groups(self, model: int) -> list[int]:
        scheduler, problem = self.schedulers[model], self.assembled.problem
        found = _sides(scheduler) | branches(scheduler.nodes, flow_ends(problem, model))
        return sorted(found - {0}, key=lambda each: (each.bit_count(), each))

    def kept(self, totals: Totals) -> bool:
        """Whether a placement is within the limits, but for those on latency: they are held against the simulated one,
        so that a broken sum of seconds is none."""
        latencies = {each.name for each in self.assembled.problem.resources if each.kind == LATENCY}
        return latencies.issuperset(totals.broken) and self._roomy(totals)

    def _roomy(self, totals: Totals) -> bool:
        """Whether there is room for the overheads of its components as well, or as little as the first placement
        had."""
        if not self.limited:
            return True
        resources = [self.assembled.problem.resources[i] for i in self.limited]
        amounts = np.array(totals.resources)[self.limited]
        for model, scheduler in enumerate(self.schedulers):
            busy = np.zeros(len(self.assembled.problem.devices))
            for piece in scheduler.schedule(totals.labels, totals.wires, totals.stages).pieces:
                busy[piece.device] += scheduler.overhead_s[piece.device]
            amounts += [each.models[model] * float(each.device @ busy) for each in resources]
        if self.best is None:
            self.uppers = np.maximum(self.uppers, amounts)
        return bool((amounts <= self.uppers * (1.0 + 1e-9)).all())

    def offer(self, totals: Totals) -> bool:
        """Keep a placement if it is within the limits and, parted, the best so far."""
        found = self._look(totals)
        if found is None:
            return False
        value, totals = found
        if totals.labels not in self.climbed and all(totals.labels != each.labels for _, _, each in self.offered):
            self.offered = sorted([*self.offered, (value, self.tried, totals)], key=lambda each: each[:2])[:_STARTS]
        return totals is self.best

    def move(self, deadline: float) -> None:
        """Move parts of the best of what was offered to other devices as long as that shortens the request."""
        while self.offered and time.perf_counter() < deadline:
            value, _, start = self.offered.pop(0)
            self.climbed.add(start.labels)
            self._climb(value, start, deadline)

    def _look(self, totals: Totals) -> tuple[float, Totals] | None:
        """A placement's value, and the placement parted; None if it is far from the best, or breaks a limit."""
        self.tried += 1
        if not self.kept(totals):
            return None
        value = self.worth(totals)
        if value > _PARTED_UP_TO * self.value:
            return None
        totals, value = self._parted(totals, value)
        if value < self.value:
            self.best, self.value = totals, value
        return value, totals

    def _climb(self, value: float, here: Totals, deadline: float) -> None:
        again = True
        while again:
            again = False
            pieces = [
                piece.nodes
                for each in self.schedulers
                for piece in each.schedule(here.labels, here.wires, here.stages).pieces
            ]
            groups = chain(pieces, (nodes.tolist() for nodes in self.groups))
            devices = range(len(self.assembled.problem.devices))
            for nodes, device in ((nodes, device) for nodes in groups for device in devices):
                if time.perf_counter() > deadline:
                    self.offered.insert(0, (value, 0, here))  # to go on from
                    return
                moved = self._moved(value, here, nodes, device)
                found = self._look(moved) if moved is not None else None
                if found is not None and found[0] < value:
                    (value, here), again = found, True
                    self.climbed.add(here.labels)

    def _moved(self, value: float, here: Totals, nodes: Sequence[int], device: int) -> Totals | None:
        """`here` with nodes on another device, in the same precisions; None where that may not be, or is far worse."""
        problem, labels = self.assembled.problem, list(here.labels)
        moved = [node for node in nodes if problem.split(labels[node])[0] != device]
        for node in moved:
            labels[node] = problem.label(device, problem.split(labels[node])[1])
        if not moved or not all(self.labels_allowed[node, labels[node]] for node in moved):
            return None
        wires, cheapest = list(here.wires), self.costs.account(self.costs.plain, np.array(labels)).wires()
        for each in {each for node in moved for each in self.around[node]}:
            wires[each] = cheapest[each]
        taken = float(self.shares @ np.array(self.simulated(labels, tuple(wires), here.stages)))
        if self.goal.latency * taken > _MOVED_UP_TO * value:
            return None
        return replace(self.costs.totals(labels, tuple(wires)), stages=here.stages)

    def _parted(self, totals: Totals, value: float) -> tuple[Totals, float]:
        """With components parted, each time the one that shortens the request most, as long as that is worthwhile."""
        again = True
        while again:
            again = False
            for scheduler in self.schedulers:
                schedule = scheduler.schedule(totals.labels, totals.wires, totals.stages)
                found = value, totals
                for late in dict.fromkeys(late for sent in schedule.sent for late in _late(scheduler, schedule, sent)):
                    if time.perf_counter() > self.deadline:
                        return totals, value
                    stages = np.array(totals.stages or [0] * len(totals.labels))
                    stages[list(late)] = stages.max() + 1
                    tried = replace(totals, stages=tuple(stages.tolist()))
                    if (worth := self.worth(tried)) < found[0] and self._roomy(tried):
                        found = worth, tried
                if found[0] < (1.0 - _WORTHWHILE) * value:
                    (value, totals), again = found, True
        return totals, value


def _late(scheduler: Scheduler, schedule: Schedule, sent: Sent) -> list[tuple[int, ...]]:
    """Nodes of a component that may run after the rest of it: of the one that sends a value away, those that the value
    does not need, and of each that takes it, those that need it."""
    if sent.ends[0] == sent.ends[1]:
        return []
    first, values, found = scheduler.nodes.start, scheduler.problem.values, []
    if sent.source is not None and schedule.pieces[sent.source].nodes:
        own = schedule.pieces[sent.source].nodes
        needed = {int(values.producer[sent.value])}
        for node in reversed(own):
            if node in needed:
                needed |= {first + each for each in scheduler.sources[node - first]}
        found.append(tuple(node for node in own if node not in needed))
    readers = {int(values.readers[edge]) for edge in scheduler.edges[sent.value]}
    for target in sent.targets:
        behind: set[int] = set()
        for node in schedule.pieces[target].nodes:
            if node in readers or any(first + each in behind for each in scheduler.sources[node - first]):
                behind.add(node)
        found.append(tuple(sorted(behind)))
    return [late for late in found if late]


def _sides(scheduler: Scheduler) -> set[int]:
    """All that comes of a node and all that leads to it, itself included, for every node, as bits."""
    ahead = [1 << index for index in range(len(scheduler.nodes))]
    behind = list(ahead)
    for index, sources in enumerate(scheduler.sources):
        for each in sources:
            ahead[index] |= ahead[each]
    for index in reversed(range(len(behind))):
        for each in scheduler.sources[index]:
            behind[each] |= behind[index]
    return {*ahead, *behind}


START = -1
END = -2


def flow_ends(problem: Problem, model: int) -> tuple[tuple[int, int, int], ...]:
    """The edges of one model: index, producer (or START), reader (or END)."""
    values, of = problem.values, problem.values.edge_value()
    return tuple(
        (
            edge,
            START if values.producer[value] == SOURCE else int(values.producer[value]),
            END if values.readers[edge] == CALLER else int(values.readers[edge]),
        )
        for edge, value in enumerate(of.tolist())
        if values.model[value] == model
    )


def branches(nodes: range, ends: Sequence[tuple[int, int, int]]) -> set[int]:
    """What all comes of one node alone, or leads to one alone, itself included, for every node; nodes as bits."""
    stop, _, before, after = _graph(nodes, ends)
    comes, leads = ([1 << index - 1 if 0 < index < stop else 0 for index in range(stop + 1)] for _ in range(2))
    parted, joined = _dominators(before), _joins(after)
    for index in range(stop - 1, 0, -1):
        comes[parted[index]] |= comes[index]
    for index in range(1, stop):
        leads[joined[index]] |= leads[index]
    return {*comes[1:stop], *leads[1:stop]}


def _graph(
    nodes: range, ends: Sequence[tuple[int, int, int]]
) -> tuple[int, list[tuple[int, int, int]], list[set[int]], list[set[int]]]:
    """The end's number, the edges, and what stands before and after each: the start is 0, the nodes are in between."""
    stop = len(nodes) + 1
    own = {START: 0, END: stop} | {node: index for index, node in enumerate(nodes, 1)}
    edges = [(edge, own[source], own[reader]) for edge, source, reader in ends]
    before: list[set[int]] = [set() for _ in range(stop + 1)]
    after: list[set[int]] = [set() for _ in range(stop + 1)]
    for _, source, reader in edges:
        before[reader].add(source)
        after[source].add(reader)
    for index in range(1, stop):  # what reads nothing may run at once; what nobody reads is done at the end
        if not before[index]:
            before[index].add(0)
            after[0].add(index)
        if not after[index]:
            after[index].add(stop)
            before[stop].add(index)
    return stop, edges, before, after


def _joins(after: Sequence[set[int]]) -> list[int]:
    """The nearest node that every path from a node to the end passes, by node."""
    stop = len(after) - 1
    mirrored = _dominators([{stop - each for each in after[stop - index]} for index in range(stop + 1)])
    return [stop - mirrored[stop - index] for index in range(stop + 1)]


def _dominators(before: Sequence[set[int]]) -> list[int]:
    """The nearest node that every path from node 0 to a node passes (Cooper, Harvey and Kennedy, 2001), by node."""
    found = [0] * len(before)
    for node in range(1, len(before)):
        nearest = -1
        for each in before[node]:
            one, other = nearest if nearest >= 0 else each, each
            while one != other:
                one, other = (found[one], other) if one > other else (one, found[other])
            nearest = one
        found[node] = nearest
    return found
