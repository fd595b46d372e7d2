"""The fit recovers a made-up machine and tells its own accuracy honestly; a prediction is a sum to do by hand."""

import random
from dataclasses import replace

import numpy as np
import pytest

from taglio.model.graph import Block, Flow, Graph, Tensor, build
from taglio.model.load import load
from taglio.profile import fit as fitting
from taglio.profile.attribution import Attribution
from taglio.profile.calibrate import calibrate
from taglio.profile.fit import FitTables, MeasuredRun, conformal_ratio, fit
from taglio.profile.machine import Machine
from taglio.profile.measure import pure_assignments, random_mixes
from taglio.profile.result import BlockTime, Conditions, Glue, Profile, changes, predict, reads, writes
from taglio.quantize.precision import FLOAT32, Assignment, Precision, precisions
from taglio.quantize.scheme import DEFAULT_SCHEME
from tests.models import digits_model

CHOICES = precisions(DEFAULT_SCHEME)
_, INT8, ANCHOR = CHOICES
MICROSECOND = 1e-6


@pytest.fixture(scope="module")
def graph() -> Graph:
    return build(load(digits_model()))


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


def test_leaving_one_out_predicts_mixes_without_seeing_them(graph: Graph) -> None:
    """Said again the slow way: a fit of the other runs, and two factors from what fits get wrong on the other runs."""
    runs = Imagined(graph, noise=0.02).runs(mixes=24)  # enough that every block is shown in every precision by two
    honest = calibrate(runs, graph)[1]
    assert set(honest) == {f"mix{i}" for i in range(24)}  # not the pure runs: a fit without one could not know it

    rows = []
    for run in runs:
        tables = fit([other_run for other_run in runs if other_run is not run], graph)
        without = as_profile(replace(tables, glue=tuple(flow_glue.times(1.0, 0.0) for flow_glue in tables.glue)), graph)
        whole, still = (predict(p, graph, run.assignment) for p in (as_profile(tables, graph), without))
        rows.append([sum(whole.blocks.values()), whole.total_s - still.total_s, whole.total_s, run.wall_s])
    for index, run in enumerate(runs):
        if run.name in honest:
            table = np.array(rows[:index] + rows[index + 1 :])
            shares = table[:, :2] / table[:, 3:]
            wanted = np.concatenate([1.0 - table[:, 2] / table[:, 3], np.zeros(2)])
            factors = np.linalg.lstsq(np.vstack([shares, np.sqrt(0.1) * np.eye(2)]), wanted, rcond=None)[0]
            own = np.array(rows[index])
            assert honest[run.name] == pytest.approx(own[2] + own[:2] @ factors, rel=1e-6)


def test_forms_are_derived_once_for_all_fits(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fit without each run, of a network of 450 blocks, derived them again every time: eight seconds."""
    flows: list[object] = []

    def counted(flow: Flow, assignment: Assignment) -> int:
        flows.append(flow)
        return changes(flow, assignment)

    monkeypatch.setattr(fitting, "changes", counted)
    runs = Imagined(graph, noise=0.02).runs(mixes=9)
    calibrate(runs, graph)
    assert len(flows) == len(runs) * len(graph.flows)


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
        ([0.05, -0.09, 0.01, 0.02, -0.03, 0.04, 0.06, 0.07, 0.08], 0.9, 0.09),  # ⌈10 · 0.9⌉ = 9th of 9
        ([i / 100 for i in range(1, 20)], 0.9, 0.18),  # ⌈20 · 0.9⌉ = 18th of 19
        ([i / 100 for i in range(1, 100)], 0.9, 0.90),  # 90th of 99
        ([0.01, 0.02, 0.03, 0.04], 0.5, 0.03),  # ⌈5 · 0.5⌉ = 3rd of 4
    ],
)
def test_the_conformal_ratio_by_hand(errors: list[float], coverage: float, expected: float) -> None:
    assert conformal_ratio(errors, coverage) == expected
    assert conformal_ratio(list(reversed(errors)), coverage) == expected


def test_a_prediction_by_hand() -> None:
    """first writes `a`; pool moves it to `b`; second reads `b`, third reads `a`; both write outputs of the model.

    In microseconds: overhead 1000; float 100, int8 40, anchor 70 for each of the three. Glue on every flow: 1 when its
    writer writes float and 2 when int8; 10 to quantise a tensor, 20 to dequantise for a reader.
    """
    blocks = tuple(
        Block(name, kind, (name,), (source,), (target,), (), 0, 0, "", kind == "MaxPool", kind != "MaxPool")
        for name, kind, source, target in (
            ("first", "Conv+Sigmoid+Mul", "x", "a"),
            ("pool", "MaxPool", "a", "b"),
            ("second", "Conv+Sigmoid+Mul", "b", "y"),
            ("third", "Conv+Sigmoid+Mul", "a", "z"),
        )
    )
    tensors = tuple(
        Tensor(name, (1, 4), 4, producer, consumers)
        for name, producer, consumers in (
            ("x", None, ("first",)),
            ("a", "first", ("pool", "third")),
            ("b", "pool", ("second",)),
            ("y", "second", ()),
            ("z", "third", ()),
        )
    )
    graph = Graph("hand", blocks, tensors, ("x",), ("y", "z"))
    assert [flow.name for flow in graph.flows] == ["x", "a", "y", "z"]
    us = MICROSECOND
    times = [("float32", 100 * us), ("int8", 40 * us), ("int8-anchor", 70 * us)]
    tables = FitTables(
        tuple(BlockTime(b, p, s) for b in ("first", "second", "third") for p, s in times),
        tuple(Glue(flow.name, 1 * us, 2 * us, 10 * us, 20 * us) for flow in graph.flows),
        1000 * us,
    )
    profile = as_profile(tables, graph)

    def total(**assignment: Precision) -> float:
        breakdown = predict(profile, graph, assignment)
        parts = breakdown.overhead_s + sum(breakdown.blocks.values()) + sum(breakdown.flows.values())
        assert breakdown.total_s == pytest.approx(parts)
        return round(breakdown.total_s / us, 6)

    assert total() == 1000 + 300 + 4
    # x quantised; `a` read in float twice, as `a` and, moved, as `b`.
    assert total(first=INT8) == 1000 + 240 + (1 + 10) + (2 + 2 * 20) + 1 + 1
    # The float `a` is quantised as `a` and as `b`; the model's caller reads y and z in float.
    assert total(second=INT8, third=INT8) == 1000 + 180 + 1 + (1 + 2 * 10) + (2 + 20) + (2 + 20)
    assert total(second=INT8) == 1000 + 240 + 1 + (1 + 10) + (2 + 20) + 1
    # All int8, the pool too: only the ends of the model change type.
    everything = {"first": INT8, "pool": INT8, "second": INT8, "third": INT8}
    assert total(**everything) == 1000 + 120 + (1 + 10) + 2 + (2 + 20) + (2 + 20)
    # An anchor reads int8 and writes float.
    assert total(first=ANCHOR) == 1000 + 270 + (1 + 10) + 1 + 1 + 1
    assert total(third=ANCHOR) == 1000 + 270 + 1 + (1 + 10) + 1 + 1
