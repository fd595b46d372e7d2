"""Compare placements by simulation, keep the best and merge its components. Proves nothing, moves no block."""

from dataclasses import replace
from math import inf

import numpy as np

from taglio.plan.assemble import Assembled, request_shares
from taglio.plan.costs import TOLERANCE, Costs
from taglio.plan.describe import beyond_blocks
from taglio.plan.problem import LATENCY, Totals
from taglio.plan.schedule import Scheduler
from taglio.plan.simulate import simulate
from taglio.plan.workload import Objective

# Largest value, relative to the best placement's, at which merging components is tried.
_MERGE_UP_TO = 1.3


class Search:
    """Keeps the best placement by simulation, as weighed by an objective."""

    def __init__(self, assembled: Assembled, objective: Objective) -> None:
        self.assembled, self.objective = assembled, objective
        problem = self.problem = assembled.problem
        self.costs = Costs(problem)
        self.shares = request_shares(assembled.workloads)
        self.schedulers = [Scheduler(assembled, model) for model in range(len(assembled.workloads))]
        self.latencies = {each.name for each in problem.resources if each.kind == LATENCY}
        # The weights of summed seconds in the objective: the simulated latency counts instead.
        self.summed = np.array([each.weight if each.kind == LATENCY else 0.0 for each in problem.resources])
        # Allowed usage of the limits that component overheads count towards: more if the first placement exceeds it.
        self.limited = [i for i, r in enumerate(problem.resources) if r.upper < inf and r.kind != LATENCY]
        self.uppers = np.array([problem.resources[i].upper for i in self.limited])
        self.best: Totals | None = None
        self.value = inf

    def worth(self, totals: Totals) -> float:
        """Cost of a simulated placement as weighed by the objective: latency, joules, and changes to a running plan."""
        ends_s = [simulate(each.placed(totals)).end_s for each in self.schedulers]
        rest = totals.objective - self.problem.constant - float(self.summed @ totals.resources)
        return self.objective.latency * float(self.shares @ ends_s) + rest

    def of_labels(self) -> tuple[np.ndarray, np.ndarray]:
        """What labels alone add to the value except latency, and to the limits except those on latency (node, label,
        1 + limits); and what a placement within the limits adds to each of the latter at most."""
        costs, rows = self.costs, np.flatnonzero([row.name not in self.latencies for row in self.costs.rows])
        unary = costs.sums.unary
        rest = unary[..., 0] - unary[..., 1 : 1 + len(self.summed)] @ self.summed
        own = np.concatenate([rest[..., None], costs.limited.unary[..., 1 + rows]], axis=2)
        return own, (costs.uppers + costs.saved + TOLERANCE)[rows]

    def kept(self, totals: Totals) -> bool:
        """Whether a placement keeps all limits except those on latency, which apply to the simulated latency rather
        than to the sum of seconds."""
        return self.latencies.issuperset(totals.broken) and self._has_room(totals)

    def _has_room(self, totals: Totals) -> bool:
        """Whether there is room for the overheads of its components, or at least as much as in the first placement."""
        if not self.limited:
            return True
        amounts = (totals.resources + beyond_blocks(self.assembled, [each.placed(totals) for each in self.schedulers]))[
            self.limited
        ]
        if self.best is None:
            self.uppers = np.maximum(self.uppers, amounts)
        return bool((amounts <= self.uppers * (1.0 + 1e-9)).all())

    def offer(self, totals: Totals) -> None:
        """Keep a placement if it is within the limits and, once its components are merged, the best so far."""
        if self.kept(totals) and (value := self.worth(totals)) <= _MERGE_UP_TO * self.value:
            totals, value = self._merged(totals, value)
            if value < self.value:
                self.best, self.value = totals, value

    def _merged(self, totals: Totals, value: float) -> tuple[Totals, float]:
        """The placement with components that follow one another on a device merged where that costs nothing."""
        problem = self.problem
        device = np.array(totals.labels) // len(problem.forms)
        for model, place in np.unique(np.column_stack([problem.model, device]), axis=0) if totals.stages else ():
            mine = (problem.model == model) & (device == place)
            kept, *others = np.unique(np.array(totals.stages)[mine])
            for stage in others:
                stages = np.array(totals.stages)
                stages[mine & (stages == stage)] = kept
                tried = replace(totals, stages=tuple(stages.tolist()))
                if (worth := self.worth(tried)) <= value and self._has_room(tried):
                    totals, value = tried, worth
                else:
                    kept = stage
        return totals, value
