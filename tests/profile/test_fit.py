"""The fit recovers a made-up machine and tells its own accuracy honestly; a prediction is a sum to do by hand."""

import random
from dataclasses import replace

import numpy as np
import pytest

from taglio.conformal import conformal_quantile
from taglio.model.graph import Flow, Graph
from taglio.profile.attribution import Attribution
from taglio.profile.fit import FitTables, MeasuredRun, fit, left_out
from taglio.profile.measure import pure_assignments
from taglio.profile.result import Profile, flow_seconds, predict
from taglio.profile.wall_time import summarize
from taglio.quantize.mixes import random_mixes
from taglio.quantize.precision import Assignment, form_of
from tests.components.cases import CHOICES, digits
from tests.plan.made_up import profile_of, seconds


@pytest.fixture(scope="module")
def graph() -> Graph:
    return digits().graph


class Imagined:
    """A machine whose every time is known. Its profiler slows the clock by `slow`."""

    def __init__(self, graph: Graph, *, noise: float, slow: float = 1.0, seed: int = 0) -> None:
        self.graph, self.noise, self.slow = graph, noise, slow
        self.random = random.Random(seed)
        blocks_us: dict[tuple[str, str], float] = {}
        for block in graph.blocks:
            base_us = 0.0 if block.movement else self.random.uniform(20.0, 400.0)
            for form in (form for form in CHOICES if form.fits(block)):
                ratio = {"float32": 1.0, "int8": 0.5, "int8-anchor": 0.8}[form.name]
                blocks_us[block.name, form.name] = base_us * ratio * self.random.uniform(0.7, 1.3)
        sizes = {tensor.name: tensor.elements * 1e-3 for tensor in graph.tensors}
        glue_us = {
            flow.name: (
                self.random.choice((0.0, 0.0, 15.0)),
                # Where some reader is always float, no run tells this from what dequantising takes, and nothing writes
                # an input in int8: it is 0 there.
                self.random.choice((0.0, 0.0, 10.0)) * self.all_int8(flow),
                2.0 + 0.5 * sizes[flow.name],
                3.0 + 0.3 * sizes[flow.name],
            )
            for flow in graph.flows
        }
        self.truth = profile_of(graph, blocks_us, glue_us, 40.0)

    def all_int8(self, flow: Flow) -> bool:
        return bool(flow.producer) and all(b and self.graph.block(b).quantizable for _, b in flow.readers)

    def wall_s(self, assignment: Assignment) -> float:
        """The truth, without noise, from the readers' side."""
        return seconds(self.graph, self.truth, assignment)

    def run(self, name: str, assignment: Assignment) -> MeasuredRun:
        """What the stop-watch and the profiler would show of one inference."""

        def shake(true_s: float) -> float:
            return true_s * (1.0 + self.noise * self.random.gauss(0.0, 1.0))

        graph, times, glue = self.graph, self.truth.block_times(), self.truth.glue_map()
        blocks = [block.name for block in graph.blocks if not block.movement]
        blocks_s = {name: shake(times[name, form_of(assignment, name)]) for name in blocks}
        flows_s = {flow.name: flow_seconds(glue[flow.name], flow, assignment) for flow in graph.flows}
        flows_s = {name: shake(true_s) for name, true_s in flows_s.items() if true_s > 0.0}
        attribution = Attribution(
            {block: block_s / self.slow for block, block_s in blocks_s.items()},
            {flow: flow_s / self.slow for flow, flow_s in flows_s.items()},
            0.0,
        )
        wall_s = self.truth.overhead_s + sum(blocks_s.values()) + sum(flows_s.values())
        return MeasuredRun(name, dict(assignment), summarize([wall_s]), attribution, name.startswith("mix"))

    def runs(self, mixes: int, seed: int = 0) -> list[MeasuredRun]:
        chosen = {"float32": {}, **pure_assignments(self.graph, CHOICES)}
        chosen |= random_mixes(self.graph, CHOICES, mixes, seed)
        return [self.run(name, assignment) for name, assignment in chosen.items()]


def as_profile(tables: FitTables, graph: Graph) -> Profile:
    empty = profile_of(graph, {}, {})
    return replace(empty, blocks=tables.blocks, glue=tables.glue, overhead_s=tables.overhead_s)


@pytest.mark.parametrize(("noise", "slow"), [(0.0, 1.0), (0.02, 1.0), (0.02, 0.9)])
def test_predicts_unseen_mixes_of_a_known_machine_within_a_percent(graph: Graph, noise: float, slow: float) -> None:
    machine = Imagined(graph, noise=noise, slow=slow)
    profile = as_profile(fit(machine.runs(mixes=9), graph), graph)

    unseen = random_mixes(graph, CHOICES, 20, seed=99)
    ratios = [predict(profile, graph, mix).total_s / machine.wall_s(mix) for mix in unseen.values()]

    assert max(abs(ratio - 1.0) for ratio in ratios) < 0.01, [f"{ratio:.4f}" for ratio in ratios]
    assert abs(np.mean(ratios) - 1.0) < 0.004


def test_what_no_kernel_explains_is_overhead(graph: Graph) -> None:
    """Over the runs that it saw, a fit is right on average: the rest of the wall time is the session's own."""
    machine = Imagined(graph, noise=0.05)
    runs = [replace(run, wall=summarize([run.wall_s + 500e-6])) for run in machine.runs(mixes=5)]
    tables = fit(runs, graph)

    predicted = [predict(as_profile(tables, graph), graph, run.assignment).total_s for run in runs]
    assert np.mean(predicted) == pytest.approx(np.mean([run.wall_s for run in runs]), rel=1e-9)
    assert tables.overhead_s > 0.0


def test_noise_of_a_large_network_is_not_taken_for_the_sessions_own(graph: Graph) -> None:
    """Seconds that walls scatter by have nothing to do with the tens of microseconds that a session takes."""
    machine, shaken = Imagined(graph, noise=0.05), random.Random(1)
    blocks = tuple(replace(block, seconds=300.0 * block.seconds) for block in machine.truth.blocks)
    machine.truth = replace(machine.truth, blocks=blocks)
    for _ in range(5):
        runs = [replace(run, wall=run.wall.times(shaken.uniform(0.8, 1.25))) for run in machine.runs(mixes=11)]
        tables = fit(runs, graph)
        predicted = [predict(as_profile(tables, graph), graph, run.assignment).total_s for run in runs]
        assert np.mean([run.wall_s for run in runs]) > 1.0
        assert 0.0 <= tables.overhead_s < 1e-3
        assert np.mean(predicted) == pytest.approx(np.mean([run.wall_s for run in runs]), rel=1e-9)


def test_walls_that_fall_where_kernels_take_longer_leave_kernels_their_time(graph: Graph) -> None:
    """As on a busy machine: the clock that would explain them runs backwards."""
    runs = Imagined(graph, noise=0.05).runs(mixes=11)
    middle = float(np.median([run.wall_s for run in runs]))
    runs = [replace(run, wall=summarize([middle * (middle / run.wall_s) ** 4])) for run in runs]
    tables = fit(runs, graph)

    predicted = [predict(as_profile(tables, graph), graph, run.assignment).total_s for run in runs]
    assert np.mean(predicted) == pytest.approx(np.mean([run.wall_s for run in runs]), rel=0.1)


def test_the_interval_holds_for_nine_of_ten_unseen_mixes(graph: Graph) -> None:
    """Over 12 imagined machines with 10 % of noise, the interval of nine mixes covers some 90 % of new runs."""
    covered, total = 0, 0
    for seed in range(12):
        machine = Imagined(graph, noise=0.1, seed=seed)
        runs = machine.runs(mixes=9, seed=seed)
        tables, unseen = fit(runs, graph), left_out(runs, graph)
        ratio = conformal_quantile([abs(unseen[run.name] / run.wall_s - 1.0) for run in runs if run.name in unseen])
        profile = as_profile(tables, graph)
        for name, assignment in random_mixes(graph, CHOICES, 15, seed + 1000).items():
            measured = machine.run(name, assignment).wall_s
            covered += abs(predict(profile, graph, assignment).total_s / measured - 1.0) <= ratio
            total += 1
    assert 0.8 < covered / total <= 1.0
