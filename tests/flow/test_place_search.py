"""The search of plans for several devices by measured errors, on made-up models that differ from their studies."""

import random
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from taglio.cluster.devices import Cluster, Device, Link
from taglio.cluster.planning.describe import predicted_error
from taglio.error.measure import Evidence
from taglio.error.model import BlockNoise, EdgeNoise, ErrorModel, OutputModel
from taglio.errors import Infeasible
from taglio.flow import place as module
from taglio.flow.place import Candidate, place
from taglio.lab.kept import Kept
from taglio.lab.work import Work
from taglio.model.graph import Graph
from taglio.plan.result import Limits, Plan
from taglio.quantize.precision import Assignment
from tests.plan.made_up import Sketch, choosers, error_of, forms, profile_of

LIMIT = 0.025
LINKS = (Link("near", "far", 1e6, latency_s=2e-5), Link("far", "near", 1e6, latency_s=2e-5))
CLUSTER = Cluster(
    "near", (Device("near", profile="profile.json"), Device("far", profile="profile.json", scale=0.4)), LINKS
)


class MadeUpWork:
    """As a Work, of a model without operators: its errors are those of `truth`, and `measured` counts them."""

    def __init__(self, graph: Graph, truth: ErrorModel) -> None:
        self.graph, self.truth, self.kept, self.name = graph, truth, Kept(), "made up"
        self.measured = 0

    def telling(self, _: object) -> "MadeUpWork":
        return self

    in_place = settled = switchable = telling

    def meter(self, *_: object) -> "MadeUpWork":
        return self

    def evidence(self, assignment: Assignment) -> Evidence:
        """As an ErrorMeter."""
        self.measured += 1
        error = self.truth.predict(self.graph, assignment)
        return Evidence(assignment, error, error, {"conv7.0": error})

    def answers(self, plan: Plan) -> SimpleNamespace:
        """As Answers."""
        self.measured += 1
        error = predicted_error(self.truth, self.graph, plan)
        return SimpleNamespace(judged=error, error=error, parts=(SimpleNamespace(name="conv7.0", loss=error),))


@pytest.fixture(autouse=True)
def made_up_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    def answers(work: MadeUpWork, plan: Plan, _: Limits) -> SimpleNamespace:
        return work.answers(plan)

    monkeypatch.setattr(module, "answers", answers)


def candidate(factor: float, limit: float | None = LIMIT, *, seed: int = 1) -> Candidate:
    """Eight convolutions in a row, whose errors are `factor` times as large as their study says."""
    sketch, rng = Sketch(), random.Random(seed)
    tensor = sketch.input("x")
    for _ in range(8):
        tensor = sketch.conv(tensor)
    graph = sketch.graph()
    times = {
        (block.name, form): float(rng.randint(60, 99) if form == "float32" else rng.randint(20, 70))
        for block in graph.blocks
        for form in forms(block)
    }
    profile = profile_of(graph, times, {tensor.name: (0.0, 0.0, 3.0, 3.0) for tensor in graph.tensors})
    own = tuple(BlockNoise(block.name, "int8", 2e-4 * rng.lognormvariate(0.0, 1.0)) for block in choosers(graph))
    edges = tuple(EdgeNoise(flow.name, reader, 3e-5) for flow in graph.flows for _, reader in flow.readers if reader)
    error = error_of(graph, (OutputModel("conv7.0", own, edges, 0.0, 1.0),), 0.3)
    work = cast(Work, MadeUpWork(graph, error.scaled(factor)))
    return Candidate(f"model {seed}", work, profile, error, Limits(limit), None, {})


def measured(candidate: Candidate) -> int:
    return cast(MadeUpWork, candidate.work).measured


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
def test_a_limit_is_used_though_the_study_is_off(factor: float) -> None:
    model = candidate(factor)
    plan = place(model, CLUSTER, time_limit_s=1.0).plans[0]
    truth = predicted_error(cast(MadeUpWork, model.work).truth, model.work.graph, plan)
    assert plan.measured_error == truth and 0.75 * LIMIT < truth <= LIMIT
    assert measured(model) <= 5


def test_each_of_several_models_has_a_limit_of_its_own() -> None:
    """The first errs half as much as predicted, the second twice as much, the third has no limit."""
    models = [candidate(0.5), candidate(2.0, seed=2), candidate(1.0, None, seed=3)]
    answer = place(models, CLUSTER, time_limit_s=1.0)
    errors = [plan.measured_error for plan in answer.plans]
    assert all(error is not None for error in errors)
    assert 0.5 * LIMIT < cast(float, errors[0]) <= LIMIT and cast(float, errors[1]) <= LIMIT
    assert measured(models[2]) == 1  # only to say what the plan's error is


def test_what_was_measured_is_not_measured_again() -> None:
    model = candidate(1.0)
    first = place(model, CLUSTER, time_limit_s=1.0)
    count = measured(model)
    second = place(model, CLUSTER, precisions_of=first.plans, time_limit_s=1.0)
    assert measured(model) == count and second.plans[0].placements == first.plans[0].placements


def test_precisions_that_hold_may_stay_though_they_are_predicted_to_break_the_limit() -> None:
    """Their error is half of what the study says; nothing but this plan was measured."""
    model = candidate(0.5)
    plans = place(model, CLUSTER, time_limit_s=1.0).plans
    assert predicted_error(model.error, model.work.graph, plans[0]) > LIMIT
    answer = place(candidate(0.5), CLUSTER, precisions_of=plans, time_limit_s=1.0)
    assert answer.plans[0].placements == plans[0].placements
    with pytest.raises(Infeasible):
        place(candidate(2.0), CLUSTER, precisions_of=plans, time_limit_s=1.0)


def test_a_limit_that_no_plan_keeps_is_named_with_its_model() -> None:
    pinned = candidate(9.0, seed=2)
    blocks = tuple(block.name for block in pinned.work.graph.blocks)
    pinned = replace(pinned, limits=replace(pinned.limits, int8_blocks=blocks))
    with pytest.raises(
        Infeasible, match=r"no plan tried keeps the error limit of model 2; the best has .* x the limit"
    ):
        place([candidate(1.0), pinned], CLUSTER, time_limit_s=10.0)
