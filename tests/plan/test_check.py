"""The checker accepts what the planner makes, and no plan that was changed."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given

from taglio.plan.check import PlanIsWrong, check
from taglio.plan.one_machine import make_plan, noise_limits
from taglio.plan.result import Limits, Plan
from taglio.plan.tables import Tables
from taglio.quantize.effective import effective
from tests.examples import examples
from tests.plan import made_up
from tests.plan.made_up import INT8, Problem, Sketch, assignments, error_of, forms, profile_of


@examples(60)
@given(made_up.problems(5))
def test_it_reckons_every_assignment_as_the_profile_does(problem: Problem) -> None:
    for chosen in assignments(problem.graph, Limits(None)):
        plan = Tables(problem.graph, problem.profile, problem.error).describe(Limits(None), chosen)
        noise = {output.output: output.noise(problem.graph, chosen) for output in problem.error.outputs}
        check(problem.graph, problem.profile, problem.error, plan, noise)


@examples(30)
@given(made_up.problems(5))
def test_a_noise_above_its_limit_is_refused(problem: Problem) -> None:
    chosen = effective(problem.graph, {block.name: INT8 for block in made_up.choosers(problem.graph)}, INT8)
    plan = Tables(problem.graph, problem.profile, problem.error).describe(Limits(None), chosen)
    for output in problem.error.outputs:
        noise = output.noise(problem.graph, chosen)
        if noise > 0.0:
            with pytest.raises(PlanIsWrong, match=f"output {output.output}: the plan's noise"):
                check(problem.graph, problem.profile, problem.error, plan, {output.output: 0.99 * noise})


def in_form(block: str, form: str) -> Callable[[Plan], Plan]:
    """A change of a plan: another form of one block."""

    def changed(plan: Plan) -> Plan:
        placed = (
            replace(placement, precision=form) if placement.block == block else placement
            for placement in plan.placements
        )
        return replace(plan, placements=tuple(placed))

    return changed


def limited(limits: Limits) -> Callable[[Plan], Plan]:
    """A change of a plan: other limits than it was made for."""
    return lambda plan: replace(plan, limits=limits)


def slower(plan: Plan) -> Plan:
    return replace(plan, predicted_latency_s=plan.predicted_latency_s.times(1.001))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (slower, "the plan takes"),
        (in_form("conv0", "float32"), "move3 moves conv0.0 but changes its type"),
        (in_form("join1", "float32"), "join1 is float32 between int8 blocks"),
        (in_form("conv2", "int8-anchor"), "conv2 has no form int8-anchor: it has no activation behind its anchor"),
        (in_form("conv2", "int9"), "conv2 has no form int9: unknown"),
        (in_form("refused4", "int8"), "refused4 has no form int8: no int8 kernel"),
        (limited(Limits(None, float_blocks=("conv2",))), "conv2 is pinned to float"),
        (limited(Limits(None, int8_blocks=("refused4",))), "refused4 is pinned to int8"),
        (lambda plan: replace(plan, placements=plan.placements[1:]), "places 4 blocks of 5"),
    ],
)
def test_a_plan_that_was_changed_is_refused(change: Callable[[Plan], Plan], words: str) -> None:
    sketch = Sketch()
    first = sketch.conv(sketch.input("x"))
    sketch.conv(sketch.join(first))
    sketch.refused(sketch.move(first)[0])
    graph = sketch.graph()
    times = {(block.name, name): 1.0 if name == "int8" else 9.0 for block in graph.blocks for name in forms(block)}
    flows = dict.fromkeys(tensor.name for tensor in made_up.origins(graph).values())
    profile, error = profile_of(graph, times, dict.fromkeys(flows, (1.0, 1.0, 1.0, 1.0))), error_of(graph, ())
    plan = make_plan(Tables(graph, profile, error), Limits(1.0))
    check(graph, profile, error, plan, noise_limits(error, 1.0, 1.0))
    with pytest.raises(PlanIsWrong, match=words):
        check(graph, profile, error, change(plan), {})
