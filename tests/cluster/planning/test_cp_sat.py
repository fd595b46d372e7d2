"""CP-SAT's least period against all labellings and copies of small random problems."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from taglio.cluster.planning.costs import Costs
from taglio.cluster.planning.cp_sat import PeriodProgram
from taglio.cluster.planning.problem import Problem, Resource, Totals
from tests.cluster.planning.reference import evaluate, every
from tests.cluster.planning.small_problems import made, problems
from tests.examples import examples

pytest.importorskip("ortools", reason="OR-Tools is not installed")
# Above every period of the small problems, and what rounding each cost to 1e-7 of it can make of their sum.
FAR, TOLERANCE = 1e3, 5e-3


def small(seed: int) -> Problem:
    return made(np.random.default_rng(seed), limits=True)


def periods_of(problem: Problem, rng: np.random.Generator) -> tuple[Resource, ...]:
    """Busy seconds of every device, messages included, and of every link."""
    devices = len(problem.devices)
    none, found = np.zeros((devices, devices)), []
    for device in range(devices):
        here = np.eye(devices)[device]
        sends = rng.random((devices, devices)) * here[:, None] * (1.0 - np.eye(devices))
        found.append(Resource(f"period of {device}", here, sends, none, np.ones(1), 0.0, FAR))
    for a in range(devices):
        for b in range(devices):
            if a != b:
                only = np.outer(np.eye(devices)[a], np.eye(devices)[b])
                found.append(
                    Resource(f"period of {a} -> {b}", np.zeros(devices), only, 0.5 * only, np.ones(1), 0.0, FAR)
                )
    return tuple(found)


@example(small(97), 97)  # quantising saves time: an int8 copy that nobody reads was made for it
@example(small(129), 29)  # savings under a limit: costs of more than two limits counted as two
@example(small(66), 66)  # a device whose savings exceed what it takes: the period was held at 0
@examples(12, steady=False)
@given(st.one_of(problems(limits=True), problems(limits=True, peak=True)), st.integers(0, 99))
def test_the_least_period_equals_brute_force(problem: Problem, seed: int) -> None:
    periods = periods_of(problem, np.random.default_rng(seed))
    problem = replace(problem, resources=(*problem.resources, *periods))
    first = len(problem.resources) - len(periods)

    def period(totals: Totals) -> float:
        return float(totals.resources[first:].max())

    best = min((period(totals) for totals in every(problem)), default=np.inf)
    costs = Costs(problem)
    rows = np.array([row.name.startswith("period") for row in costs.rows])
    alive = problem.allowed.reshape(len(problem.nodes), -1)
    found = PeriodProgram(costs, alive, rows, np.zeros((1, len(problem.devices))), -FAR, FAR).solve(
        gap=0.0, time_limit_s=60.0
    )
    if np.isinf(found.bound):
        assert best == np.inf
        return
    assert best - TOLERANCE <= found.bound <= best + 1e-9
    assert found.labels is not None
    totals = evaluate(problem, found.labels.tolist(), found.copies)
    assert not totals.broken
    assert best - 1e-9 <= period(totals) <= best + TOLERANCE
