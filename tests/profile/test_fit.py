"""The fit recovers a made-up machine and tells its own accuracy honestly; a prediction is a sum to do by hand."""

import random
from dataclasses import replace

import numpy as np
import pytest

from taglio.model.graph import Block, Flow, Graph
from taglio.profile.attribution import Attribution
from taglio.profile.calibrate import calibrate
from taglio.profile.fit import FitTables, MeasuredRun, conformal_ratio, fit
from taglio.profile.machine import Machine
from taglio.profile.measure import pure_assignments, random_mixes
from taglio.profile.result import Conditions, Glue, Profile, changes, predict, reads, writes
from taglio.quantize.precision import FLOAT32, Assignment
from taglio.quantize.scheme import DEFAULT_SCHEME
from tests.components.cases import CHOICES, digits

MICROSECOND = 1e-6


@pytest.fixture(scope="module")
def graph() -> Graph:
    return digits().graph


class Imagined:
    """A machine whose every time is known: a second way to say what `fit` has to find. Its profiler adds `clock_s` to
    every kernel that it records and slows the clock by `slow`."""

    def __init__(self, graph: Graph, *, noise: float, slow: float = 1.0, clock_s: float = 3e-6, seed: int = 0) -> None:
        self.graph, self.noise, self.slow, self.clock_s = graph, noise, slow, clock_s
        self.random = random.Random(seed)
        self.moving = graph.flows
        elements = {tensor.name: tensor.elements for tensor in graph.tensors}
        self.overhead_s = 40e-6
        self.blocks_s = {}
        for block in graph.blocks:
            base = 0.0 if block.movement else self.random.uniform(20e-6, 400e-6)
            for precision in CHOICES:
                if precision.fits(block):
                    ratio = {"float": 1.0, "whole": 0.5, "anchor": 0.8}[precision.form]
                    self.blocks_s[block.name, precision.name] = base * ratio * self.random.uniform(0.7, 1.3)
        self.glue = {
            flow.name: Glue(
                flow.name,
                float_s=self.random.choice((0.0, 0.0, 15e-6)),
                # Where some reader is always float, no run tells this from what dequantising takes, and nothing writes
                # an input in int8: it is 0 there.
                int8_s=self.random.choice((0.0, 0.0, 10e-6)) * self.all_int8(flow),
                quantize_s=2e-6 + 0.5e-9 * elements[flow.name],
                dequantize_s=3e-6 + 0.3e-9 * elements[flow.name],
                measured=0,
            )
            for flow in self.moving
        }

    def all_int8(self, flow: Flow) -> bool:
        return bool(flow.producer) and all(b and self.graph.block(b).quantizable for _, b in flow.readers)

    def flow_s(self, flow: Flow, assignment: Assignment) -> float:
        glue, into_int8 = self.glue[flow.name], {t for t, block in flow.readers if reads(assignment, block)}
        if writes(assignment, flow.producer):
            in_float = [block for _, block in flow.readers if not reads(assignment, block)]
            return glue.int8_s + glue.dequantize_s * len(in_float)
        return glue.float_s + glue.quantize_s * len(into_int8)

    def block_s(self, block: Block, assignment: Assignment) -> float:
        return self.blocks_s[block.name, assignment.get(block.name, FLOAT32).name]

    def wall_s(self, assignment: Assignment) -> float:
        """The truth, without noise."""
        work = sum(self.block_s(block, assignment) for block in self.graph.blocks)
        return self.overhead_s + work + sum(self.flow_s(flow, assignment) for flow in self.moving)

    def run(self, name: str, assignment: Assignment) -> MeasuredRun:
        """What the stop-watch and the profiler would show of one inference."""

        def shake(seconds: float) -> float:
            return seconds * (1.0 + self.noise * self.random.gauss(0.0, 1.0))

        real_blocks = {
            block.name: shake(self.block_s(block, assignment)) for block in self.graph.blocks if not block.movement
        }
        real_glue = {
            flow.name: shake(seconds) for flow in self.moving if (seconds := self.flow_s(flow, assignment)) > 0.0
        }
        kernels = {flow.name: max(1, changes(flow, assignment)) for flow in self.moving if flow.name in real_glue}
        attribution = Attribution(
            {block: (seconds + self.clock_s) / self.slow for block, seconds in real_blocks.items()},
            {flow: (seconds + self.clock_s * kernels[flow]) / self.slow for flow, seconds in real_glue.items()},
            dict.fromkeys(real_blocks, 1),
            kernels,
            0.0,
            (),
        )
        wall = self.overhead_s + sum(real_blocks.values()) + sum(real_glue.values())
        return MeasuredRun(name, dict(assignment), wall, attribution, name.startswith("mix"))

    def runs(self, mixes: int, seed: int = 0) -> list[MeasuredRun]:
        chosen = {"float32": {}, **pure_assignments(self.graph, CHOICES)}
        chosen |= random_mixes(self.graph, CHOICES, mixes, seed)
        return [self.run(name, assignment) for name, assignment in chosen.items()]


def as_profile(tables: FitTables, graph: Graph, interval_ratio: float = 0.0) -> Profile:
    machine = Machine("imagined", 1, (), 0, "none", "3")
    return Profile(
        graph.model_sha256,
        Conditions(machine, "imagined", "0", 1, False, "all"),
        DEFAULT_SCHEME,
        CHOICES,
        tables.blocks,
        tables.glue,
        tables.overhead_s,
        interval_ratio,
        (),
    )


@pytest.mark.parametrize(("noise", "slow", "clock_s"), [(0.0, 1.0, 3e-6), (0.02, 1.0, 3e-6), (0.02, 0.9, 6e-6)])
def test_predicts_unseen_mixes_of_a_known_machine_within_a_percent(
    graph: Graph, noise: float, slow: float, clock_s: float
) -> None:
    machine = Imagined(graph, noise=noise, slow=slow, clock_s=clock_s)
    profile = as_profile(fit(machine.runs(mixes=9), graph), graph)

    unseen = random_mixes(graph, CHOICES, 20, seed=99)
    ratios = [predict(profile, graph, mix).total_s / machine.wall_s(mix) for mix in unseen.values()]

    assert max(abs(ratio - 1.0) for ratio in ratios) < 0.01, [f"{ratio:.4f}" for ratio in ratios]
    assert abs(np.mean(ratios) - 1.0) < 0.004


def test_finds_the_times_of_blocks_and_of_conversions(graph: Graph) -> None:
    machine = Imagined(graph, noise=0.0)
    tables = fit(machine.runs(mixes=9), graph)

    block_times = {(entry.block, entry.precision): entry for entry in tables.blocks}
    for key, truth in machine.blocks_s.items():
        if key in block_times and truth:
            assert block_times[key].seconds == pytest.approx(truth, rel=0.02, abs=MICROSECOND), key
            assert block_times[key].deviation_s <= 1e-6
    assert {key for key in machine.blocks_s if key not in block_times} == set()
    for entry in tables.glue:
        truth_of = machine.glue[entry.flow]
        assert entry.float_s == pytest.approx(truth_of.float_s, rel=0.1, abs=MICROSECOND), entry.flow
        assert entry.int8_s == pytest.approx(truth_of.int8_s, rel=0.1, abs=MICROSECOND), entry.flow
        assert entry.quantize_s == pytest.approx(truth_of.quantize_s, rel=0.1, abs=MICROSECOND), entry.flow
        assert entry.dequantize_s == pytest.approx(truth_of.dequantize_s, rel=0.1, abs=MICROSECOND), entry.flow


def test_what_no_kernel_explains_is_overhead(graph: Graph) -> None:
    """Over the runs that it saw, a fit is right on average: the rest of the wall time is the session's own."""
    machine = Imagined(graph, noise=0.05)
    runs = [replace(run, wall_s=run.wall_s + 500e-6) for run in machine.runs(mixes=5)]
    tables = fit(runs, graph)

    predicted = [predict(as_profile(tables, graph), graph, run.assignment).total_s for run in runs]
    assert np.mean(predicted) == pytest.approx(np.mean([run.wall_s for run in runs]), rel=1e-9)
    assert tables.overhead_s > 0.0


def test_noise_of_a_large_network_is_not_taken_for_the_sessions_own(graph: Graph) -> None:
    """Seconds that walls scatter by have nothing to do with the tens of microseconds that a session takes."""
    machine, shaken = Imagined(graph, noise=0.05), random.Random(1)
    for key in machine.blocks_s:
        machine.blocks_s[key] *= 300.0
    for _ in range(5):
        runs = [replace(run, wall_s=run.wall_s * shaken.uniform(0.8, 1.25)) for run in machine.runs(mixes=11)]
        tables = fit(runs, graph)
        predicted = [predict(as_profile(tables, graph), graph, run.assignment).total_s for run in runs]
        assert np.mean([run.wall_s for run in runs]) > 1.0
        assert 0.0 <= tables.overhead_s < 1e-3
        assert np.mean(predicted) == pytest.approx(np.mean([run.wall_s for run in runs]), rel=1e-9)


def test_walls_that_fall_where_kernels_take_longer_leave_kernels_their_time(graph: Graph) -> None:
    """As on a busy machine: the clock that would explain them runs backwards."""
    runs = Imagined(graph, noise=0.05).runs(mixes=11)
    middle = float(np.median([run.wall_s for run in runs]))
    runs = [replace(run, wall_s=middle * (middle / run.wall_s) ** 4) for run in runs]
    tables = fit(runs, graph)

    predicted = [predict(as_profile(tables, graph), graph, run.assignment).total_s for run in runs]
    assert np.mean(predicted) == pytest.approx(np.mean([run.wall_s for run in runs]), rel=0.1)


def test_what_every_run_gets_wrong_is_corrected(graph: Graph) -> None:
    """Blocks of mixes take 12 % less than the same blocks in pure runs, as warmer caches make them."""
    machine = Imagined(graph, noise=0.0)
    runs = machine.runs(mixes=9)
    fast = [shorter(run, 0.88) if run.mixed else run for run in runs]
    plain, corrected = fit(fast, graph), calibrate(fast, graph)[0]
    unseen = [shorter(machine.run("mix", mix), 0.88) for mix in random_mixes(graph, CHOICES, 20, seed=99).values()]

    def error(tables: FitTables) -> float:
        profile = as_profile(tables, graph)
        return float(np.mean([abs(predict(profile, graph, run.assignment).total_s / run.wall_s - 1) for run in unseen]))

    assert error(corrected) < 0.9 * error(plain)


def shorter(run: MeasuredRun, factor: float) -> MeasuredRun:
    blocks = {name: factor * seconds for name, seconds in run.attribution.blocks_s.items()}
    saved = sum(run.attribution.blocks_s.values()) - sum(blocks.values())
    return replace(run, wall_s=run.wall_s - saved, attribution=replace(run.attribution, blocks_s=blocks))


def test_the_interval_holds_for_nine_of_ten_unseen_mixes(graph: Graph) -> None:
    """Over 12 imagined machines with 10 % of noise, the interval of nine mixes covers some 90 % of new runs."""
    covered, total = 0, 0
    for seed in range(12):
        machine = Imagined(graph, noise=0.1, seed=seed)
        runs = machine.runs(mixes=9, seed=seed)
        tables, unseen = calibrate(runs, graph)
        ratio = conformal_ratio([unseen[run.name] / run.wall_s - 1.0 for run in runs if run.name in unseen])
        profile = as_profile(tables, graph)
        for name, assignment in random_mixes(graph, CHOICES, 15, seed + 1000).items():
            measured = machine.run(name, assignment).wall_s
            covered += abs(predict(profile, graph, assignment).total_s / measured - 1.0) <= ratio
            total += 1
    assert 0.8 < covered / total <= 1.0


@pytest.mark.parametrize(
    ("errors", "coverage", "expected"),
    [
        ([], 0.9, float("inf")),
        ([0.03], 0.9, 0.03),  # ⌈2 · 0.9⌉ = 2 of 1: the largest
        ([-0.04, 0.01, 0.02], 0.9, 0.04),  # the size of an error, whatever its sign
        ([i / 100 for i in range(1, 20)], 0.9, 0.18),  # ⌈20 · 0.9⌉ = 18th of 19
        ([0.01, 0.02, 0.03, 0.04], 0.5, 0.03),  # ⌈5 · 0.5⌉ = 3rd of 4
    ],
)
def test_the_conformal_ratio_by_hand(errors: list[float], coverage: float, expected: float) -> None:
    assert conformal_ratio(errors, coverage) == expected
    assert conformal_ratio(list(reversed(errors)), coverage) == expected
