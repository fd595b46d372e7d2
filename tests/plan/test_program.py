"""Small programs whose solutions are known."""

from math import inf

import numpy as np
import pytest

from taglio.plan.program import ONE, ZERO, Linear, Program, Solution, weighted

EXACT = {"gap": 1e-7, "nodes": 1000, "time_limit_s": 60.0}


def minimised(program: Program, cost: Linear) -> Solution:
    return program.minimise(cost, **EXACT)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(20))
def test_fractions_have_their_best_values_where_the_solver_stops_at_a_gap(seed: int) -> None:
    """Each fraction costs something and is at least the largest of four binaries."""
    rng = np.random.default_rng(seed)
    program = Program()
    columns = [program.binary() for _ in range(30)]
    covers = [(program.fraction(), rng.choice(30, 4, replace=False)) for _ in range(40)]
    for cover, members in covers:
        for member in members:
            program.at_most(columns[member], cover)
    program.limit(list(zip(rng.uniform(0.0, 1.0, 30), columns)), 5.0)
    gains = weighted(zip(rng.uniform(-3.0, 0.0, 30), columns))
    cost = gains + weighted((factor, cover) for factor, (cover, _) in zip(rng.uniform(0.0, 1.0, 40), covers))
    solution = program.minimise(cost, gap=0.3, nodes=100, time_limit_s=60.0)
    assert solution.values is not None and solution.objective == pytest.approx(cost.at(solution.values))
    for cover, members in covers:
        assert cover.at(solution.values) == pytest.approx(
            max(columns[member].at(solution.values) for member in members)
        )


@pytest.mark.parametrize("has_columns", [False, True])
def test_rows_that_contradict_each_other_have_no_solution(has_columns: bool) -> None:
    program = Program()
    expression = program.binary() if has_columns else ONE
    program.equal(expression, ONE)
    program.at_most(expression, ZERO)
    solution = minimised(program, expression)
    assert (solution.status, solution.values, solution.gap) == ("infeasible", None, inf)


def test_costs_of_any_size_are_told_apart() -> None:
    for unit in (1e-9, 1.0, 1e9):
        program = Program()
        near, far = program.binary(), program.binary()
        program.equal(near + far, ONE)
        solution = minimised(program, weighted([(1.0 * unit, near), (1.001 * unit, far)]))
        assert solution.objective == pytest.approx(unit, rel=1e-6)
