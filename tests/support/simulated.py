"""A simulated machine: a lab on which a whole search runs without sessions, the same for the same seed.

Its truth is the tables of a network and, for each variant, a residual that the tables do not explain. What it measures
has noise: an offset by opening, scatter of runs, a drifting clock, spells of other programs' load, and a spread of
errors over inputs.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import exp, pi, sin
from pathlib import Path
from random import Random
from statistics import fmean, median
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from taglio.conformal import conformal_quantile
from taglio.data.dataset import Dataset, Sample, Split, assemble
from taglio.data.spec import InputSpec
from taglio.error.model import ErrorModel
from taglio.error.parts import whole
from taglio.errors import BadModel
from taglio.lab.as_written import Agreement
from taglio.lab.lab import Lab
from taglio.lab.setup import Setup
from taglio.lab.work import Work
from taglio.memory import Shelf
from taglio.model.load import Model
from taglio.plan.one_machine import make_plan
from taglio.plan.result import Limits
from taglio.plan.tables import Tables
from taglio.profile.attribution import Attributor
from taglio.profile.busy import BusyWatch
from taglio.profile.effort import MIXES, Effort
from taglio.profile.fit import MeasuredRun, fit, left_out
from taglio.profile.measure import covering_mixes, pure_assignments
from taglio.profile.result import Profile, WholeRun, flow_seconds, predict
from taglio.profile.stopwatch import Timed, Timings
from taglio.profile.wall_time import WallTime
from taglio.quantize.precision import Assignment, form_of
from taglio.runtimes.onnxruntime import NAME, SessionOptions
from tests.support.networks import FORMS, SCHEME, Network, perturbed
from tests.support.recorded import Residuals

SIZE = 16  # values of an output
HELD_OUT, UNSEEN = 22, 10
_FORMS_KEY = "forms"


@dataclass(frozen=True, slots=True)
class Noise:
    """How far a simulated machine is from its tables, as standard deviations of logarithms: the residuals of seconds
    and errors by variant, the offset of an opening, the scatter of runs, and the spread of errors over inputs, common
    to all variants and of each alone. `drift` is the amplitude of the clock's slow change, `busy` the share of runs
    beside which another program works. The tables that a search begins with are off by `tables_s` and `tables_error`
    from the true ones. Files err `built` times as much as the switchable graph."""

    seconds: float = 0.03
    errors: float = 0.2
    opening: float = 0.02
    run: float = 0.02
    inputs: float = 0.3
    inputs_alone: float = 0.1
    drift: float = 0.03
    busy: float = 0.02
    tables_s: float = 0.0
    tables_error: float = 0.3
    built: float = 1.0


@dataclass(eq=False)
class Machine:
    """A machine with one network. `refuses` says which assignments its runtime does not load. `residuals` are those of
    a recorded network, which take the place of the `noise` of seconds, errors, openings and of files as built."""

    network: Network
    seed: int
    noise: Noise = field(default_factory=Noise)
    refuses: Callable[[Assignment], bool] = lambda _: False
    residuals: Residuals | None = None
    now_s: float = 0.0

    def __post_init__(self) -> None:
        self._rng = Random(f"machine {self.seed}")

    def seconds(self, assignment: Assignment) -> float:
        """The true seconds of a run, at the clock's usual speed."""
        return predict(self.network.seconds, self.network.graph, assignment).total_s * self._residual_s(assignment)

    def error(self, assignment: Assignment) -> float:
        """The true error of the file as built, over all inputs that there could be."""
        return max((built for _, built in self.errors(assignment)), default=0.0)

    def errors(self, assignment: Assignment) -> list[tuple[float, float]]:
        """The true errors by output: on the switchable graph, and of the file as built."""
        graph, rng = self.network.graph, self._drawn("error", assignment)
        models = {model.output: model for model in self.network.errors.outputs}
        known = [models.get(name) for name in graph.outputs]
        noises = [model.from_noise(model.noise(graph, assignment)) if model else 0.0 for model in known]
        predicted = [min(noise, self.network.errors.largest) for noise in noises]
        if self.residuals:
            factors = self.residuals.error_factors(rng)
        else:
            off = exp(rng.gauss(0.0, self.noise.errors))
            factors = ((off, off * self.noise.built),) * len(predicted)
        return [(error * there, error * here) for error, (there, here) in zip(predicted, factors, strict=True)]

    def optimum_s(self, limits: Limits) -> float:
        """Seconds of the fastest variant within the limit by the true tables, without residuals."""
        graph, seconds, errors = self.network.graph, self.network.seconds, replace(self.network.errors, upper_log=0.0)
        return make_plan(Tables(graph, seconds, errors), limits).predicted_latency_s.value

    def _drawn(self, what: str, assignment: Assignment, *more: object) -> Random:
        forms = sorted((block, form.name) for block, form in assignment.items())
        return Random(f"{what} {self.seed} {forms} {more}")

    def _residual_s(self, assignment: Assignment) -> float:
        if not assignment:
            return 1.0
        rng = self._drawn("seconds", assignment)
        return self.residuals.seconds_factor(rng) if self.residuals else exp(rng.gauss(0.0, self.noise.seconds))

    def _opening(self) -> float:
        """A factor of all runs of one opening."""
        rng = self._rng
        return self.residuals.opening_factor(rng) if self.residuals else exp(rng.gauss(0.0, self.noise.opening))

    @property
    def lab(self) -> Lab:
        """What a search measures with."""
        return Lab(lambda *_: _Stopwatch(self), self._switchable, self._open, self._openings)  # type: ignore[arg-type]

    def answer(self, assignment: Assignment, feed: Sample, *, as_built: bool) -> list[np.ndarray]:
        """The outputs of a variant for an input, which holds its own number: of the file as built, or on the switchable
        graph."""
        number = int(next(iter(feed.values())).flat[0])
        reference = self.reference(number)
        if not assignment:
            return [reference] * len(self.network.graph.outputs)
        noise, input_rng = self.noise, Random(f"input {self.seed} {number}")
        rng = self._drawn("answer", assignment, number)
        spread = noise.inputs**2 + noise.inputs_alone**2
        log_factor = input_rng.gauss(0.0, noise.inputs) + rng.gauss(0.0, noise.inputs_alone) - spread
        direction = np.array([rng.gauss(0.0, 1.0) for _ in range(SIZE)])
        step = exp(log_factor) * np.linalg.norm(reference) / np.linalg.norm(direction) * direction
        return [(reference + errors[as_built] * step).astype(np.float32) for errors in self.errors(assignment)]

    def reference(self, number: int) -> np.ndarray:
        """The float model's answer to an input."""
        values = np.random.default_rng([self.seed, number]).standard_normal((1, SIZE))
        return (values / np.linalg.norm(values)).astype(np.float32)

    def _speed(self) -> float:
        """How many times as long as usual a run takes now: other programs, and a clock that changes in minutes."""
        busy = self._rng.uniform(1.3, 3.0) if self._rng.random() < self.noise.busy else 1.0
        return busy * (1.0 + self.noise.drift * sin(2.0 * pi * self.now_s / 20.0 + self.seed))

    def runs(self, assignments: Sequence[Assignment], rounds: int) -> list[list[float]]:
        """Seconds of runs in one opening of each of several variants, in turn."""
        usual = [self.seconds(forms) * self._opening() for forms in assignments]
        runs: list[list[float]] = [[] for _ in assignments]
        for _ in range(rounds):
            for seconds, run in zip(usual, runs, strict=True):
                run.append(seconds * self._speed() * exp(self._rng.gauss(0.0, self.noise.run)))
                self.now_s += run[-1]
        return runs

    def time(
        self,
        models: Mapping[str, Callable[[], onnx.ModelProto]],
        effort: Effort,
        *,
        kernels: bool,
        loss: Callable[[Any], float] | None = None,
    ) -> Timings:
        """As Stopwatch.time."""
        variants, losses, refused = dict[str, Assignment](), dict[str, float | None](), dict[str, str]()
        for name, build in models.items():
            forms = forms_in(build())
            if self.refuses(forms):
                refused[name] = "the runtime has no kernel"
                continue
            losses[name] = None if loss is None else loss(_Session(self, forms))
            variants[name] = forms
        total_s = sum(map(self.seconds, variants.values()))
        rounds = max(effort.minimum, min(effort.maximum, int(effort.budget_s / (1.5 * total_s))))
        runs = self.runs([*variants.values()], rounds)
        self.now_s += 0.5 * rounds * total_s if kernels else 0.0
        timed = {
            name: Timed(
                self.proto(forms),
                _wall(taken),
                self._kernels(forms, median(taken)) if kernels else {},
                loss=losses[name],
            )
            for (name, forms), taken in zip(variants.items(), runs, strict=True)
        }
        return Timings(timed, refused)

    def _kernels(self, assignment: Assignment, wall_s: float) -> dict[str, float]:
        """Seconds by operator of a run that took `wall_s`."""
        seconds, graph = self.network.seconds, self.network.graph
        times, glue = seconds.block_times(), seconds.glue_map()
        parts = {block.operators[0]: times[block.name, form_of(assignment, block.name)] for block in graph.blocks}
        parts |= {_glue_node(flow.name): flow_seconds(glue[flow.name], flow, assignment) for flow in graph.flows}
        scale = wall_s / (sum(parts.values()) + seconds.overhead_s)
        return {name: scale * part_s * exp(self._rng.gauss(0.0, 0.02)) for name, part_s in parts.items() if part_s > 0}

    def _switchable(self, *_: object) -> Any:
        return _Switchable(self)

    def _open(self, path: Path, _: SessionOptions) -> "_Session":
        forms = forms_in(onnx.load(path))
        if self.refuses(forms):
            raise BadModel(f"{path.name}: the runtime has no kernel")
        return _Session(self, forms)

    def _openings(self, _inputs: Sequence[Sample]) -> "_Race":
        return _Race(self)

    @cached_property
    def work(self) -> Work:
        """The opened network, with held-out inputs that hold their own numbers."""
        graph, proto = self.network.graph, self.proto({})
        spec = InputSpec(graph.inputs[0], (1, 1), "float32")
        model = Model("simulated", graph.model_sha256, 17, (spec,), graph.outputs, proto)
        parts = [_dataset(spec.name, range(start, start + count)) for start, count in _PARTS]
        setup = Setup(
            model="", shapes={}, data="", preprocess="", seed=0, threads=1, optimization="all",
            runtime=NAME, run_s=self.seconds({}),
        )  # fmt: skip
        work = Work(setup, proto, model, graph, Split(parts[0], parts[1], parts[2]), lab=self.lab)
        work.kept.put(("agreement",), Agreement())
        work.kept.put(("floats", replace(SCHEME, uncalibrated=())), {})
        work.kept.put(("ranges", ""), None)
        work.kept.put(("builder", SCHEME), _Builder(self))
        for data in parts:
            answers = (self.answer({}, sample, as_built=True) for sample in data.samples)
            work.kept.put(("answers", data.sha256), Shelf(answers))
            work.kept.put(("parts", data.sha256), whole(graph.outputs))
        return work

    def tables(self) -> tuple[Profile, ErrorModel]:
        """The tables that a search begins with: a profile fitted to simulated runs, and what a study on a few inputs
        says of errors."""
        known = perturbed(self.network, Random(f"tables {self.seed}"), self.noise.tables_s, self.noise.tables_error)
        graph = self.network.graph
        pure = {"float32": {}, **pure_assignments(graph, FORMS)}
        mixes = covering_mixes(graph, FORMS, MIXES, self.seed)
        assignments = {name: forms for name, forms in (pure | mixes).items() if not self.refuses(forms)}
        # A profile that is wrong is right for a machine with other tables.
        models = {name: partial(self.proto, forms) for name, forms in assignments.items()}
        timed = Machine(known, self.seed, self.noise).time(models, Effort(budget_s=1.2), kernels=True).all()
        attributor = Attributor(self.work.model, graph)
        runs = [
            MeasuredRun(name, dict(forms), run.wall, attributor.attribute(run.optimized, run.kernels), name in mixes)
            for name, forms in assignments.items()
            for run in [timed[name]]
        ]
        fitted, unseen = fit(runs, graph), left_out(runs, graph)
        ratio = conformal_quantile([abs(unseen[run.name] / run.wall_s - 1.0) for run in runs if run.mixed])
        whole_runs = tuple(
            WholeRun(
                run.name,
                {block: form.name for block, form in run.assignment.items()},
                run.wall,
                run.attribution,
                run.mixed,
                unseen.get(run.name, run.wall_s),
            )
            for run in runs
        )
        profile = replace(
            self.network.seconds,
            blocks=fitted.blocks,
            glue=fitted.glue,
            overhead_s=fitted.overhead_s,
            interval_ratio=min(1.0, ratio),
            runs=whole_runs,
        )
        return profile, replace(known.errors, samples=8)

    def proto(self, assignment: Assignment) -> onnx.ModelProto:
        """A file that says which variant it is; no runtime can run it."""
        graph = self.network.graph
        nodes = []
        for block in graph.blocks:
            read: Sequence[str] = block.inputs
            for operator in block.operators:
                made = block.outputs if operator == block.operators[-1] else [f"{operator}.inner"]
                kind = block.anchor if operator == block.operators[0] else "Sigmoid"
                nodes.append(helper.make_node(kind, read, made, name=operator))
                read = made
        nodes += [
            helper.make_node("QuantizeLinear", [flow.name], [_glue_node(flow.name)], name=_glue_node(flow.name))
            for flow in graph.flows
            if assignment
        ]
        values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 1]) for name in graph.inputs]
        outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, SIZE]) for name in graph.outputs]
        proto = helper.make_model(helper.make_graph(nodes, "simulated", values, outputs))
        forms = {block: form.name for block, form in assignment.items()}
        helper.set_model_props(proto, {_FORMS_KEY: json.dumps(forms)})
        return proto


# The first number and the count of the inputs that calibrate, are held out, and unseen.
_PARTS = ((0, 8), (100, HELD_OUT), (200, UNSEEN))


def forms_in(proto: onnx.ModelProto) -> dict[str, Any]:
    """The assignment that a file says it is."""
    by_name = {form.name: form for form in FORMS}
    (value,) = [entry.value for entry in proto.metadata_props if entry.key == _FORMS_KEY]
    return {block: by_name[form] for block, form in json.loads(value).items()}


def _glue_node(flow: str) -> str:
    return f"{flow}/quantize"


def _dataset(name: str, numbers: range) -> Dataset:
    samples = [{name: np.array([[number]], np.float32)} for number in numbers]
    return assemble("simulated", samples, [*map(str, numbers)], None)


def _wall(runs: Sequence[float]) -> WallTime:
    middle = median(runs)
    spread = median(abs(run_s - middle) for run_s in runs)
    return WallTime(middle, spread, max(runs), fmean(runs), len(runs), middle)


@dataclass(frozen=True, slots=True)
class _Stopwatch:
    """As a Stopwatch."""

    machine: Machine

    def time(self, *models_and_effort: Any, kernels: bool, loss: Any, places: object = None) -> Timings:
        del places
        return self.machine.time(*models_and_effort, kernels=kernels, loss=loss)


@dataclass(frozen=True, slots=True)
class _Builder:
    """As a QdqBuilder."""

    machine: Machine

    def build(self, assignment: Assignment, _wires: object = None) -> onnx.ModelProto:
        return self.machine.proto(assignment)


@dataclass(frozen=True, slots=True)
class _Session:
    machine: Machine
    forms: Assignment

    def run(self, _names: object, feed: Sample) -> list[np.ndarray]:
        return self.machine.answer(self.forms, feed, as_built=True)


@dataclass(frozen=True, slots=True)
class _Switchable:
    """As a Switchable."""

    machine: Machine

    def run(self, assignment: Assignment, feed: Sample) -> list[np.ndarray]:
        self.machine.now_s += self.machine.seconds({})
        return self.machine.answer(assignment, feed, as_built=False)


@dataclass(frozen=True, slots=True)
class _Race:
    """As a Bench of delivered folders."""

    machine: Machine

    def __enter__(self) -> "_Race":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def watch(self) -> BusyWatch:
        return BusyWatch(lambda: (0.0, 0.0, 0.0))

    def opening(self, folders: Sequence[Path], seconds: float, pairs: tuple[int, int]) -> list[list[float]]:
        machine = self.machine
        variants = [forms_in(onnx.load(folder / "model.onnx")) for folder in folders]
        rounds = int(seconds / sum(map(machine.seconds, variants)))
        return machine.runs(variants, min(pairs[1], max(pairs[0], rounds)))
