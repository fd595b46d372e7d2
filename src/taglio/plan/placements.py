"""Placements by simulation: what a request takes, the best one found, and its components parted into stages.

A component is parted where something that it writes could leave before the rest has run, or the rest could run before
something arrives. Proves nothing; moves no block.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from math import inf

import numpy as np

from taglio.plan.assemble import Assembled, request_shares
from taglio.plan.costs import Costs
from taglio.plan.problem import ENERGY, LATENCY, Totals, Wires
from taglio.plan.schedule import Scheduler
from taglio.plan.simulate import Pipeline, Transfer, simulate
from taglio.plan.workload import Goal

# A component is parted where that shortens the request by so much of it, in placements that take up to so many times
# what the best takes.
_WORTHWHILE, _PARTED_UP_TO = 0.01, 1.3


class Search:
    """The best placement by simulation, as a goal weighs it; nothing is parted any more after `deadline`."""

    def __init__(self, assembled: Assembled, goal: Goal, deadline: float = inf) -> None:
        self.assembled, self.goal, self.deadline = assembled, goal, deadline
        problem = self.problem = assembled.problem
        self.costs = Costs(problem)
        self.shares = request_shares(assembled.workloads)
        self.schedulers = [Scheduler(assembled, model) for model in range(len(assembled.workloads))]
        self.energy = [i for i, r in enumerate(problem.resources) if r.kind == ENERGY]
        # Of limits that components' overheads count against, what may be used: more where the first placement does.
        self.limited = [i for i, r in enumerate(problem.resources) if r.upper < inf and r.kind != LATENCY]
        self.uppers = np.array([problem.resources[i].upper for i in self.limited])
        self.best: Totals | None = None
        self.value, self.tried = inf, 0

    def worth(self, totals: Totals) -> float:
        """What a placement takes by simulation, as the goal weighs it: its latency, joules, and what changing a running
        plan costs."""
        value = self.goal.latency * float(self.shares @ self.simulated(totals.labels, totals.wires, totals.stages))
        value += sum(self.problem.resources[i].weight * float(totals.resources[i]) for i in self.energy)
        if self.problem.extra is not None:
            nodes = np.arange(len(self.problem.nodes))
            value += float(self.problem.extra.reshape(len(nodes), -1)[nodes, list(totals.labels)].sum())
        return value

    def simulated(
        self, labels: Sequence[int] | np.ndarray, wires: Wires | np.ndarray, stages: Sequence[int] | np.ndarray = ()
    ) -> np.ndarray:
        """Seconds of a request of each model, alone."""
        return np.array([simulate([each.schedule(labels, wires, stages)]).end_s for each in self.schedulers])

    def kept(self, totals: Totals) -> bool:
        """Whether a placement is within the limits, but for those on latency: they are held against the simulated one,
        so that a broken sum of seconds is none."""
        latencies = {each.name for each in self.problem.resources if each.kind == LATENCY}
        return latencies.issuperset(totals.broken) and self._roomy(totals)

    def _roomy(self, totals: Totals) -> bool:
        """Whether there is room for the overheads of its components as well, or as little as the first placement
        had."""
        if not self.limited:
            return True
        amounts = (totals.resources + beyond_blocks(self.assembled, totals, self.schedulers))[self.limited]
        if self.best is None:
            self.uppers = np.maximum(self.uppers, amounts)
        return bool((amounts <= self.uppers * (1.0 + 1e-9)).all())

    def offer(self, totals: Totals) -> None:
        """Keep a placement if it is within the limits and, parted, the best so far."""
        self.tried += 1
        if self.kept(totals) and (value := self.worth(totals)) <= _PARTED_UP_TO * self.value:
            totals, value = self._parted(totals, value)
            if value < self.value:
                self.best, self.value = totals, value

    def _parted(self, totals: Totals, value: float) -> tuple[Totals, float]:
        """With components parted, each time the one that shortens the request most, as long as that is worthwhile."""
        again = True
        while again:
            again = False
            for scheduler in self.schedulers:
                pipeline, found = scheduler.schedule(totals.labels, totals.wires, totals.stages), (value, totals)
                ways = (late for sent in pipeline.transfers for late in _late(scheduler, pipeline, sent))
                for late in dict.fromkeys(ways):
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


def beyond_blocks(assembled: Assembled, totals: Totals, schedulers: Sequence[Scheduler] = ()) -> np.ndarray:
    """What the overheads of a placement's components add to each resource of a problem."""
    devices, result = assembled.problem.devices, np.zeros(len(assembled.problem.resources))
    for model in range(len(assembled.workloads)):
        scheduler, busy = schedulers[model] if schedulers else Scheduler(assembled, model), np.zeros(len(devices))
        for task in scheduler.schedule(totals.labels, totals.wires, totals.stages).tasks:
            device = devices.index(task.device)
            busy[device] += assembled.overhead_s[model, device]
        result += [float(each.models[model] * (each.device @ busy)) for each in assembled.problem.resources]
    return result


def _late(scheduler: Scheduler, pipeline: Pipeline, sent: Transfer) -> list[tuple[int, ...]]:
    """Nodes of a component that may run after the rest of it: of the one that sends a value away, those that the value
    does not need, and of each that takes it, those that need it."""
    if sent.link[0] == sent.link[1]:
        return []
    first, values, found = scheduler.nodes.start, scheduler.problem.values, []
    if sent.source is not None and pipeline.tasks[sent.source].nodes:
        own = pipeline.tasks[sent.source].nodes
        needed = {int(values.producer[sent.value])}
        for node in reversed(own):
            if node in needed:
                needed |= {first + each for each in scheduler.sources[node - first]}
        found.append(tuple(node for node in own if node not in needed))
    readers = set(values.readers[values.start[sent.value] : values.start[sent.value + 1]].tolist())
    for target in sent.targets:
        behind: set[int] = set()
        for node in pipeline.tasks[target].nodes:
            if node in readers or any(first + each in behind for each in scheduler.sources[node - first]):
                behind.add(node)
        found.append(tuple(sorted(behind)))
    return [late for late in found if late]
