"""Compare placements by simulation, keep the best and split its components into stages. Proves nothing, moves no block.

A component is split if some of its outputs could leave before the rest has run, or the rest could run before some input
arrives.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from math import inf

import numpy as np

from taglio.plan.assemble import Assembled, request_shares
from taglio.plan.costs import Costs
from taglio.plan.describe import beyond_blocks
from taglio.plan.problem import ENERGY, LATENCY, Totals
from taglio.plan.schedule import Scheduler
from taglio.plan.simulate import Pipeline, Transfer, simulate
from taglio.plan.workload import Objective

# Relative gain for which a component is split, and the largest cost, relative to the best placement's, at which
# splitting is tried.
_WORTHWHILE, _SPLIT_UP_TO = 0.01, 1.3


class Search:
    """Keeps the best placement by simulation, as weighed by an objective; stops splitting components at `deadline`."""

    def __init__(self, assembled: Assembled, objective: Objective, deadline: float = inf) -> None:
        self.assembled, self.objective, self.deadline = assembled, objective, deadline
        problem = self.problem = assembled.problem
        self.costs = Costs(problem)
        self.shares = request_shares(assembled.workloads)
        self.schedulers = [Scheduler(assembled, model) for model in range(len(assembled.workloads))]
        self.energy = [i for i, r in enumerate(problem.resources) if r.kind == ENERGY]
        # Allowed usage of the limits that component overheads count towards: more if the first placement exceeds it.
        self.limited = [i for i, r in enumerate(problem.resources) if r.upper < inf and r.kind != LATENCY]
        self.uppers = np.array([problem.resources[i].upper for i in self.limited])
        self.best: Totals | None = None
        self.value = inf

    def worth(self, totals: Totals) -> float:
        """Cost of a simulated placement as weighed by the objective: latency, joules, and changes to a running plan."""
        value = self.objective.latency * float(
            self.shares @ self.simulated(totals.labels, totals.copies, totals.stages)
        )
        value += sum(self.problem.resources[i].weight * float(totals.resources[i]) for i in self.energy)
        if self.problem.extra is not None:
            nodes = np.arange(len(self.problem.nodes))
            value += float(self.problem.extra.reshape(len(nodes), -1)[nodes, list(totals.labels)].sum())
        return value

    def simulated(
        self, labels: Sequence[int] | np.ndarray, copies: np.ndarray, stages: Sequence[int] | np.ndarray = ()
    ) -> np.ndarray:
        """Simulated seconds of a single request of each model."""
        return np.array([simulate([each.schedule(labels, copies, stages)]).end_s for each in self.schedulers])

    def kept(self, totals: Totals) -> bool:
        """Whether a placement keeps all limits except those on latency, which apply to the simulated latency rather
        than to the sum of seconds."""
        latencies = {each.name for each in self.problem.resources if each.kind == LATENCY}
        return latencies.issuperset(totals.broken) and self._has_room(totals)

    def _has_room(self, totals: Totals) -> bool:
        """Whether there is room for the overheads of its components, or at least as much as in the first placement."""
        if not self.limited:
            return True
        amounts = (totals.resources + beyond_blocks(self.assembled, totals, self.schedulers))[self.limited]
        if self.best is None:
            self.uppers = np.maximum(self.uppers, amounts)
        return bool((amounts <= self.uppers * (1.0 + 1e-9)).all())

    def offer(self, totals: Totals) -> None:
        """Keep a placement if it is within the limits and, once split, the best so far."""
        if self.kept(totals) and (value := self.worth(totals)) <= _SPLIT_UP_TO * self.value:
            totals, value = self._split(totals, value)
            if value < self.value:
                self.best, self.value = totals, value

    def _split(self, totals: Totals, value: float) -> tuple[Totals, float]:
        """The placement with components split, one at a time by largest gain, while that is worthwhile."""
        again = True
        while again:
            again = False
            for scheduler in self.schedulers:
                pipeline, found = scheduler.placed(totals), (value, totals)
                ways = (late for sent in pipeline.transfers for late in _late(scheduler, pipeline, sent))
                for late in dict.fromkeys(ways):
                    if time.perf_counter() > self.deadline:
                        return totals, value
                    stages = np.array(totals.stages or [0] * len(totals.labels))
                    stages[list(late)] = stages.max() + 1
                    tried = replace(totals, stages=tuple(stages.tolist()))
                    if (worth := self.worth(tried)) < found[0] and self._has_room(tried):
                        found = worth, tried
                if found[0] < (1.0 - _WORTHWHILE) * value:
                    (value, totals), again = found, True
        return totals, value


def _late(scheduler: Scheduler, pipeline: Pipeline, sent: Transfer) -> list[tuple[int, ...]]:
    """Groups of nodes that may run after the rest of their component: in the component that sends a value, the nodes
    that the value does not depend on; in each component that receives it, the nodes that depend on it."""
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
