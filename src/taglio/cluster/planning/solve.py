"""Solve a `Problem`: find labels and copies, and a proven lower bound on the cost of any.

1. The program (formulate.py) is relaxed to fractions: its least cost is the bound.
2. A dive fixes the devices of a few nodes at a time, those with the largest fractions and seconds first, and solves the
   relaxation again. HiGHS then chooses forms and copies for the devices found.
3. If the gap is still too large, HiGHS solves the program without the columns that no better plan can use, by their
   reduced costs.

Live activations are limited only where a plan exceeds a memory: such a limit is added, and all is done again.
"""

import time
from dataclasses import dataclass
from typing import Literal

import highspy
import numpy as np

from taglio.cluster.planning.costs import Costs
from taglio.cluster.planning.formulate import Formulation
from taglio.cluster.planning.problem import Problem
from taglio.plan.highs import Quiet
from taglio.plan.program import Solution, bound_columns
from taglio.plan.result import GAP

Outcome = Literal["optimal", "time limit", "infeasible"]
# Shares of the open nodes that a dive fixes at once: neither is always the better one.
SHARES = (0.1, 0.03)
# Fractions up to this are 0, those at least 1 minus this are 1.
_WHOLE = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class SolvedProblem:
    """The answer: `labels`, empty if none were found, and `copies` (value, device)."""

    status: Outcome
    objective: float
    bound: float
    labels: tuple[int, ...]
    copies: np.ndarray


def solve(
    problem: Problem,
    *,
    gap: float = GAP,
    time_limit_s: float = 60.0,
    patience_s: float = 0.0,
) -> SolvedProblem:
    """The best plan within `gap`, or the best found after `time_limit_s`; while there is none, up to `patience_s`.

    The bound is valid for every plan, whatever the status. Nodes must be in topological order and have an allowed
    label; only seconds may be negative.
    """
    begun = time.perf_counter()
    ends_s = begun + time_limit_s
    return _Search(problem, gap, ends_s, max(ends_s, begun + patience_s)).run()


class Undecided(Exception):
    """Time was up before a plan was found, or shown to be impossible."""


class _Search:
    """State of the search: the best plan and the bound."""

    def __init__(self, problem: Problem, gap: float, ends_s: float, latest_s: float) -> None:
        self.problem, self.gap, self.ends_s, self.latest_s = problem, gap, ends_s, latest_s
        self.costs = Costs(problem)
        self.objective, self.bound = np.inf, -np.inf
        self.labels, self.copies = np.zeros(0, dtype=np.intp), np.zeros((0, self.costs.devices), dtype=np.intp)
        # Devices and nodes at which a memory was exceeded, and those at which the program limits it.
        self.full, self.limited = set[tuple[int, int]](), set[tuple[int, int]]()

    def run(self) -> SolvedProblem:
        """Run all steps and return the answer."""
        if not self.costs.possible().any(axis=1).all():  # whatever else is chosen, such a node breaks a limit
            self.bound = np.inf
        elif not self._over():
            formulation = Formulation(self.costs)
            while self._solved(formulation):
                pass
        if not len(self.labels):
            for labels in self.problem.on_one_device():
                self._take(labels, self.costs.totals(labels).copies)
        infeasible = self.bound == np.inf
        done = infeasible or self._done()
        return SolvedProblem(
            "infeasible" if infeasible else "optimal" if done else "time limit",
            float(self.objective),
            float(min(self.bound, self.objective)),
            () if infeasible else tuple(self.labels.tolist()),
            self.copies,
        )

    def _solved(self, formulation: Formulation) -> bool:
        """Solve the program; whether limits of memory were added, so that there is more to do."""
        highs, least, scale = formulation.relaxed(self._deadline)
        self.bound = max(self.bound, least)
        if not np.isfinite(least):
            return False
        reduced_costs = np.array(highs.getSolution().col_dual) / scale
        for share in SHARES:
            if not self._over():
                self._keep(formulation, near(formulation, highs, share, self.gap, self._deadline))
        if not self._over():
            # Where one of these columns is used, a plan costs more than the best one.
            unused = np.flatnonzero(reduced_costs > self.objective - least)
            solution = formulation.solved(unused, self.gap, self._deadline)
            self.bound = max(self.bound, min(solution.bound, self.objective))
            self._keep(formulation, solution)
        added = self.full - self.limited
        if self._over() or not added:
            return False
        for device, node in sorted(added):
            formulation.limit_memory(device, node)
        self.limited |= added
        return True

    def _keep(self, formulation: Formulation, solution: Solution) -> None:
        """Keep a solution if it is the best plan."""
        if solution.values is not None:
            self._take(*formulation.plan(solution.values))

    @property
    def _deadline(self) -> float:
        """When to stop: later while there is no plan."""
        return self.ends_s if len(self.labels) else self.latest_s

    def _done(self) -> bool:
        """Whether the gap is small enough."""
        return bool(np.isfinite(self.objective)) and self.objective - self.bound <= self.gap * abs(self.objective)

    def _over(self) -> bool:
        """Whether all is proven, or time is up."""
        return self._done() or time.perf_counter() >= self._deadline

    def _take(self, labels: np.ndarray, copies: np.ndarray) -> None:
        """Keep a labelling if it is the best plan."""
        totals = self.costs.totals(labels, copies)
        if totals.objective < self.objective:
            self.full |= set(self.costs.full(labels, copies))
            if not totals.broken:
                self.objective, self.labels, self.copies = totals.objective, labels, copies


def near(formulation: Formulation, highs: Quiet, share: float, gap: float, deadline: float) -> Solution:
    """The best plan with devices near the solved relaxation in `highs`, which is restored. A dive fixes this share of
    the open nodes at a time."""
    costs = formulation.costs
    solution, basis = np.array(highs.getSolution().col_value), highs.getBasis()
    # The limit counts all runs since the program was passed.
    highs.setOptionValue("time_limit", highs.getRunTime() + max(0.0, deadline - time.perf_counter()))
    seconds = formulation.problem.seconds.max(axis=(1, 2))
    seconds = 0.1 + seconds / max(1e-12, float(seconds.max(initial=0.0)))
    open_ = np.ones(costs.nodes, dtype=bool)
    while True:
        fractions = formulation.of_labels(solution, 0.0).reshape(costs.nodes, costs.devices, -1).sum(axis=2)
        most, devices = fractions.max(axis=1), fractions.argmax(axis=1)
        elsewhere = formulation.labels[costs.label_device != devices[:, None]]
        if not open_.any() or time.perf_counter() > deadline:
            break
        whole = open_ & (most >= 1.0 - _WHOLE)
        rest = np.flatnonzero(open_ & ~whole)
        rest = rest[np.argsort(-(most * seconds)[rest])][: int(np.ceil(share * len(rest)))]
        open_[whole] = open_[rest] = False
        columns = formulation.labels[~open_[:, None] & (costs.label_device != devices[:, None])]
        bound_columns(highs, columns[columns >= 0], 0.0, 0.0)
        highs.run()
        if highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            break
        solution = np.array(highs.getSolution().col_value)
    bound_columns(highs, formulation.labels[formulation.labels >= 0], 0.0, 1.0)
    highs.setBasis(basis)
    highs.run()
    return formulation.solved(elsewhere[elsewhere >= 0], gap, deadline)
