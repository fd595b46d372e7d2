"""The whole flow on one machine: profile, error, plan, build, time. Each stage's artifact is written as it ends."""

import resource
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from taglio import artifact, workspace
from taglio.choose_scheme import SchemeResult, choose
from taglio.components.build import Manifest, write
from taglio.components.cut import Wires, cut
from taglio.components.placed import placed
from taglio.error.measure import ErrorMeter
from taglio.error.model import ErrorModel
from taglio.error.study import Budget, study
from taglio.error.switchable import Switchable
from taglio.errors import BadOption, Infeasible
from taglio.outcome import Outcome, Point, Variant
from taglio.plan.result import Limits, Plan
from taglio.plan.search import Tried, best, exclude_worst, search, unsolved
from taglio.profile.layerwise import Cut, LayerTimes, layer_times
from taglio.profile.measure import FLOAT_RUN, profile, pure_assignments, refine
from taglio.profile.result import Profile
from taglio.profile.stopwatch import Effort, Progress, Timed, time_models
from taglio.quantize.effective import effective
from taglio.quantize.precision import Assignment, precisions
from taglio.quantize.qdq import QdqBuilder
from taglio.runtimes.onnxruntime import SessionOptions
from taglio.scheme import Scheme
from taglio.workspace import COMPONENTS, ERROR, PLAN, PROFILE, Setup, Work

OUTCOME = "outcome"
LAYERS = "layers"
# The whole quantised model, with the placement in its own metadata, beside the components of several devices.
PLACED = "placed.onnx"
# Plans timed before the profile is refined, and again at the end.
_FINALISTS = 3
_VERIFY_SAMPLES = 32
# Medians closer than this on an idle machine do not say which is faster.
_NOISE = 1.015


def optimize(
    folder: Path,
    setup: Setup,
    limits: Limits,
    *,
    confidence: float = 0.9,
    effort: float = 1.0,
    progress: Progress | None = None,
) -> Outcome:
    """The fastest model under `limits`, built into `folder`. `effort` scales the time given to measuring.

    The plan that is returned held the bound when measured on held-out inputs and was the fastest of the finalists
    when timed beside float and all-int8; where nothing in int8 is both, it is the float model.
    """
    if limits.max_error is None or not limits.max_error >= 0.0:
        raise BadOption(f"--max-error {limits.max_error}: give a number of at least 0, such as 0.01 for 1 %")
    clock = _Clock()
    work = workspace.create(folder, setup)
    clock.lap("load")
    scheme, schemes = setup.scheme, tuple[SchemeResult, ...]()
    if scheme is None:
        scheme, schemes, _ = choose(work, limits.max_error, progress=progress)
        clock.lap("scheme")
    builder = work.builder(scheme, progress)
    clock.lap("calibrate")
    measured = profile_stage(work, scheme, builder, effort, progress)
    clock.lap("profile")
    switchable = open_switchable(work, builder, scheme)
    model = error_stage(work, scheme, switchable, confidence, effort, progress)
    clock.lap("error")
    decision = decide(work, builder, switchable, measured, model, limits, effort=effort, progress=progress)
    artifact.save(folder / f"{PROFILE}.json", PROFILE, work.model.sha256, decision.profile)
    clock.lap("plan")
    winner = decision.finalists[decision.winner]
    plan = replace(winner.plan, measured_error=winner.error)
    if winner.name:
        solved = best([each for each in decision.tried if not each.name], 1)
        ahead = solved[0].plan.predicted_latency_s.value if solved else plan.predicted_latency_s.value
        plan = replace(plan, gap=max(0.0, plan.predicted_latency_s.value / ahead - 1.0))
    artifact.save(folder / f"{PLAN}.json", PLAN, work.model.sha256, plan)
    manifest = build_stage(work, builder, plan)
    clock.lap("build")
    outcome = _outcome(work, plan, schemes, builder, switchable, decision=decision, manifest=manifest, clock=clock)
    artifact.save(folder / f"{OUTCOME}.json", OUTCOME, work.model.sha256, outcome)
    return outcome


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """The finalists by name, timed side by side, which of them won, all plans tried, and the refined profile."""

    winner: str
    finalists: dict[str, Tried]
    timed: dict[str, Timed]
    tried: tuple[Tried, ...]
    profile: Profile


def decide(
    work: Work,
    builder: QdqBuilder,
    switchable: Switchable,
    measured: Profile,
    model: ErrorModel,
    limits: Limits,
    *,
    effort: float = 1.0,
    progress: Progress | None = None,
) -> Decision:
    """Plan, time the plans' kernels, refine the profile with them, plan again, and let the clock choose.

    Kernels near the plan are what the plan's prediction hangs on; the random mixes of the profile are far from it.
    """
    meter = verifier(work, switchable)
    full = whole_meter(work, switchable, meter)
    tried = plan_stage(work, measured, model, limits, meter, progress, full=full)
    first = _finalists(tried)
    refined = refine(
        work.model, work.graph, measured, _assignments(first), _time(work, builder, first, effort, progress)
    )
    tried += search(work.graph, refined, model, limits, meter.error, rounds=6, progress=progress)
    final = _verified(_finalists(tried), full, limits)
    if full is not meter and not any(each.holds for each in final.values() if not each.name):
        again = plan_stage(work, refined, model, limits, full, progress)
        final = _verified(_finalists(again), full, limits)
        tried += again
    timed = _time(work, builder, final, effort, progress)
    return Decision(_winner(final, timed), final, timed, tuple(tried), refined)


def profile_stage(
    work: Work, scheme: Scheme, builder: QdqBuilder, effort: float = 1.0, progress: Progress | None = None
) -> Profile:
    """Measure times and keep them in the folder."""
    result = profile(
        work.model,
        work.graph,
        builder,
        scheme,
        work.data.held_out.samples[0],
        work.setup.options(),
        Effort(budget_s=16.0 * effort),
        seed=work.setup.seed,
        progress=progress,
    )
    artifact.save(work.folder / f"{PROFILE}.json", PROFILE, work.model.sha256, result)
    return result


def layers_stage(work: Work, scheme: Scheme, cut_at: Cut, progress: Progress | None = None) -> LayerTimes:
    """Time every layer alone, the notes' way, and keep the times in the folder."""
    builder = work.builder(scheme, progress)
    result = layer_times(
        work.model, work.graph, builder, precisions(scheme), work.setup.options(), cut=cut_at, progress=progress
    )
    artifact.save(work.folder / f"{LAYERS}.json", LAYERS, work.model.sha256, result)
    return result


def open_switchable(work: Work, builder: QdqBuilder, scheme: Scheme) -> Switchable:
    """The switchable graph of the workspace's model. It is not timed, so its threads may spin."""
    options = SessionOptions(work.setup.threads, spinning=True)
    return Switchable(work.model, work.graph, builder, precisions(scheme), options)


def error_stage(
    work: Work,
    scheme: Scheme,
    switchable: Switchable,
    confidence: float = 0.9,
    effort: float = 1.0,
    progress: Progress | None = None,
) -> ErrorModel:
    """Measure errors, fit, and keep the model in the folder."""
    budget = Budget(seconds=32.0 * effort)
    samples = work.data.held_out.samples
    switchable.run({}, samples[0])
    start = time.perf_counter()
    switchable.run({}, samples[0])
    once = time.perf_counter() - start
    evaluations = len(work.graph.candidates()) + budget.minimum_subsets
    count = max(1, min(8, len(samples), int(budget.seconds / max(1e-6, once * evaluations))))
    meter = ErrorMeter(switchable, samples[:count], work.model.outputs)
    result = study(
        work.model,
        work.graph,
        scheme,
        precisions(scheme),
        meter,
        work.data.held_out,
        budget,
        confidence=confidence,
        seed=work.setup.seed,
        progress=progress,
    )
    artifact.save(work.folder / f"{ERROR}.json", ERROR, work.model.sha256, result)
    return result


def verifier(work: Work, switchable: Switchable) -> ErrorMeter:
    """Measures a plan's error while searching: on the first _VERIFY_SAMPLES held-out inputs."""
    return ErrorMeter(switchable, work.data.held_out.samples[:_VERIFY_SAMPLES], work.model.outputs)


def plan_stage(
    work: Work,
    measured: Profile,
    model: ErrorModel,
    limits: Limits,
    meter: ErrorMeter,
    progress: Progress | None = None,
    *,
    full: ErrorMeter | None = None,
) -> list[Tried]:
    """Float, all-int8 and the plans of the search, each with its measured error.

    Where nothing holds on `meter`, `full` decides. Raises Infeasible where nothing holds there either.
    """
    tried = search(work.graph, measured, model, limits, meter.error, progress=progress)
    everything = pure_assignments(work.graph, measured.precisions)["int8"]
    whole = next(each for each in measured.precisions if each.form == "whole")
    kept = {name for name in limits.float_blocks if not work.graph.block(name).movement}
    pinned = {name: precision for name, precision in everything.items() if name not in limits.float_blocks}
    pinned = effective(work.graph, pinned, whole)
    others: dict[str, tuple[Assignment, float]] = {"int8": (pinned, meter.error(pinned))}
    if not limits.int8_blocks:
        others[FLOAT_RUN] = ({}, 0.0)
    chosen, _ = exclude_worst(model, limits, pinned, lambda each: meter.error(effective(work.graph, each, whole)))
    chosen = effective(work.graph, chosen, whole)
    if chosen and set(chosen) != set(pinned):
        others["worst excluded"] = (chosen, meter.error(chosen))
    for name, (assignment, value) in others.items():
        candidate = unsolved(name, work.graph, measured, model, limits, assignment, value)
        # ONNX Runtime runs a weightless float block between int8 ones in int8: not what a pin to float asks for.
        tried.append(replace(candidate, holds=candidate.holds and not kept & set(assignment)))
    if not any(each.holds for each in tried):
        if full is not None and full is not meter:
            return plan_stage(work, measured, model, limits, full, progress)
        reached = min(each.error for each in tried)
        raise _infeasible(limits, reached)
    return tried


def build_stage(work: Work, builder: QdqBuilder, plan: Plan) -> Manifest:
    """Build the plan's components into the folder."""
    quantized = builder.build(plan.assignment(), plan.wire_only(work.graph))
    wires = Wires(plan.start, plan.copies()) if plan.crossings else None
    parts = cut(work.model, work.graph, quantized, plan.devices(), wires)
    inputs = [spec.name for spec in work.model.inputs]
    folder = work.folder / COMPONENTS
    (folder / PLACED).unlink(missing_ok=True)
    if len(parts) > 1:
        owner = {operator: block.name for block in work.graph.blocks for operator in block.operators}
        artifact.write_bytes(folder / PLACED, placed(quantized, parts, plan, owner).SerializeToString())
    return write(folder, work.model.sha256, inputs, work.model.outputs, parts, plan.fingerprint())


def top1(work: Work, switchable: Switchable, assignment: Assignment) -> float | None:
    """Share of held-out samples whose first output is largest at the label; None without labels that fit."""
    labels = work.data.held_out.labels
    if labels is None or labels.ndim != 1:
        return None
    hits = 0
    for sample, label in zip(work.data.held_out.samples, labels, strict=True):
        scores = np.asarray(switchable.run(assignment, sample)[0])
        if scores.ndim != 2 or scores.shape[0] != 1:
            return None
        hits += int(scores[0].argmax()) == int(label)
    return hits / len(labels)


def whole_meter(work: Work, switchable: Switchable, searched: ErrorMeter) -> ErrorMeter:
    """A meter of all held-out inputs; `searched` itself where it already is."""
    samples = work.data.held_out.samples
    if searched.samples == len(samples):
        return searched
    return ErrorMeter(switchable, samples, work.model.outputs)


def _verified(finalists: dict[str, Tried], full: ErrorMeter, limits: Limits) -> dict[str, Tried]:
    """The finalists with their error on all held-out inputs, and whether they hold there."""
    result = {}
    for name, each in finalists.items():
        error = full.error(each.plan.assignment())
        holds = each.holds and (limits.max_error is None or error <= limits.max_error)
        result[name] = replace(each, error=error, holds=holds, plan=replace(each.plan, measured_error=error))
    return result


def _infeasible(limits: Limits, reached: float) -> Infeasible:
    pins = f"with {len(limits.int8_blocks)} blocks held in int8 " if limits.int8_blocks else ""
    return Infeasible(
        f"no plan {pins}keeps the error within {limits.max_error:.4%}: the best reaches {reached:.4%}; "
        "allow that much with --max-error, or hold fewer blocks in int8"
    )


def _finalists(tried: list[Tried]) -> dict[str, Tried]:
    """Float and all-int8 by name, and the fastest plans that hold; identical assignments once."""
    names: dict[str, Tried] = {}
    seen: set[tuple[tuple[str, str], ...]] = set()
    solved = [each for each in tried if not each.name]
    for each in best(solved, 100):
        key = _key(each.plan.assignment())
        if key not in seen and key and len(names) < _FINALISTS:
            seen.add(key)
            names[f"plan {len(seen)}"] = each
    return names | {each.name: each for each in tried if each.name}


def _key(assignment: Assignment) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((block, precision.name) for block, precision in assignment.items()))


def _assignments(finalists: Mapping[str, Tried]) -> dict[str, Assignment]:
    result: dict[str, Assignment] = {FLOAT_RUN: {}}
    return result | {
        f"finalist {name}": each.plan.assignment() for name, each in finalists.items() if name != FLOAT_RUN
    }


def _time(
    work: Work, builder: QdqBuilder, finalists: Mapping[str, Tried], effort: float, progress: Progress | None
) -> dict[str, Timed]:
    models = {name: partial(builder.build, assignment) for name, assignment in _assignments(finalists).items()}
    return time_models(
        models,
        work.data.held_out.samples[0],
        work.setup.options(),
        Effort(budget_s=8.0 * effort),
        kernels=True,
        progress=progress,
    )


def _winner(finalists: Mapping[str, Tried], timed: Mapping[str, Timed]) -> str:
    """The fastest by the clock among those that hold the bound; float or all-int8 where a plan gains only noise."""
    seconds = {name: _timed(name, timed).wall.median_s for name, each in finalists.items() if each.holds}
    fastest = min(seconds, key=lambda each: seconds[each])
    plain = [name for name in (FLOAT_RUN, "int8") if seconds.get(name, float("inf")) <= seconds[fastest] * _NOISE]
    return min(plain, key=lambda each: seconds[each]) if plain else fastest


def _timed(name: str, timed: Mapping[str, Timed]) -> Timed:
    return timed[FLOAT_RUN if name == FLOAT_RUN else f"finalist {name}"]


def _outcome(
    work: Work,
    plan: Plan,
    schemes: tuple[SchemeResult, ...],
    builder: QdqBuilder,
    switchable: Switchable,
    *,
    decision: Decision,
    manifest: Manifest,
    clock: "_Clock",
) -> Outcome:
    final, timed = decision.finalists, decision.timed

    def variant(label: str, name: str, size_bytes: int) -> Variant:
        each = final[name]
        assignment = each.plan.assignment()
        return Variant(
            label,
            _timed(name, timed).wall,
            each.plan.predicted_latency_s.value,
            each.error,
            each.plan.predicted_error.value,
            size_bytes,
            len(assignment),
            top1(work, switchable, assignment),
        )

    names = {_key(each.plan.assignment()): name for name, each in final.items()}
    walls = {key: _timed(name, timed).wall.median_s for key, name in names.items()}
    float_size = (work.folder / workspace.FLOAT_MODEL).stat().st_size
    int8_size = len(builder.build(final["int8"].plan.assignment()).SerializeToString())
    points = tuple(
        Point(
            names.get(_key(each.plan.assignment()), f"tried {index + 1}"),
            each.plan.predicted_latency_s.value,
            walls.get(_key(each.plan.assignment())),
            each.error,
            len(each.plan.assignment()),
            each.holds,
        )
        for index, each in enumerate(decision.tried)
    )
    assert plan.limits.max_error is not None
    chosen = variant("plan", decision.winner, sum(piece.size_bytes for piece in manifest.pieces))
    clock.lap("accuracy")
    return Outcome(
        work.model.name,
        work.model.sha256,
        decision.profile.conditions,
        str(plan.scheme),
        schemes,
        plan.limits.max_error,
        plan.status,
        plan.gap,
        len(work.graph.blocks),
        len(work.graph.candidates()),
        len(work.data.calibration.samples),
        len(work.data.held_out.samples),
        variant("float32", FLOAT_RUN, float_size) if FLOAT_RUN in final else _float_only(timed, float_size),
        variant("int8", "int8", int8_size),
        chosen,
        points,
        dict(clock.laps),
        _peak_memory_bytes(),
    )


def _float_only(timed: Mapping[str, Timed], size_bytes: int) -> Variant:
    wall = timed[FLOAT_RUN].wall
    return Variant("float32", wall, wall.median_s, 0.0, 0.0, size_bytes, 0, None)


def _peak_memory_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


class _Clock:
    """Seconds by stage."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self.laps[stage] = self.laps.get(stage, 0.0) + now - self._last
        self._last = now
