"""The whole flow on one machine: profile, error, plan, build, time. What it wrote replaces an older run at the end."""

import resource
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import isfinite
from pathlib import Path

from taglio import artifact, weights
from taglio.components.build import Manifest, write
from taglio.components.cut import Wires, cut
from taglio.components.placed import placed
from taglio.errors import BadOption
from taglio.flow import workspace
from taglio.flow.answers import Answers, of_answers
from taglio.flow.choose_scheme import SchemeResult, choose, float_where_none_loads
from taglio.flow.decide import Decision, decide, same_assignment, timing_of
from taglio.flow.error import error_stage, loss_limits, open_switchable
from taglio.flow.outcome import Outcome, Point, Variant
from taglio.flow.transaction import changing, drop
from taglio.flow.workspace import COMPONENTS, MADE_FROM, OUTCOME, PLAN, PROFILE, Setup, Work
from taglio.model.graph import Graph
from taglio.plan.result import Limits, Plan
from taglio.plan.search import best
from taglio.profile.layerwise import Cut, LayerTimes, layer_times
from taglio.profile.measure import FLOAT_RUN, profile
from taglio.profile.result import Profile
from taglio.profile.stopwatch import FEEDS, Effort, Progress, Timed
from taglio.quantize.precision import precisions
from taglio.quantize.qdq import QdqBuilder
from taglio.quantize.scheme import Scheme
from taglio.runtimes.onnxruntime import NAME

LAYERS = "layers"
# The whole quantised model, with the placement in its own metadata, beside the components of several devices.
PLACED = "placed.onnx"


def optimize(
    folder: Path,
    setup: Setup,
    limits_of: Callable[[Graph], Limits],
    *,
    confidence: float = 0.9,
    effort: float = 1.0,
    progress: Progress | None = None,
) -> Outcome:
    """The fastest model under the limits that `limits_of` gives for its blocks, built into `folder`. `effort` scales
    the time given to measuring.

    The plan that is returned held the bound when measured on held-out inputs and was the fastest of the finalists
    when timed beside float and all-int8; where nothing in int8 is both, it is the float model. Raises Busy where
    another command works in `folder`.
    """
    with changing(folder, create=True) as staged:
        return _optimize(staged, setup, limits_of, confidence, effort, progress)


def _optimize(
    folder: Path,
    setup: Setup,
    limits_of: Callable[[Graph], Limits],
    confidence: float,
    effort: float,
    progress: Progress | None,
) -> Outcome:
    clock = _Clock()
    work = workspace.open_only(folder, setup)
    limits = loss_limits(work, limits_of(work.graph))
    if limits.max_error is None:
        raise BadOption("--max-error: give the worst that is allowed, such as 0.01 for 1 %")
    workspace.keep(work)
    clock.lap("load")
    scheme, schemes = setup.scheme, tuple[SchemeResult, ...]()
    if scheme is None:
        scheme, schemes = choose(work, limits.max_error, limits.metric, progress=progress)
        work = float_where_none_loads(work, schemes)
        clock.lap("scheme")
    work = work.settled(scheme, progress)
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
    plan = replace(winner.plan, measured_error=winner.error, shapes=work.measured_shapes)
    if winner.name:
        solved = best([each for each in decision.tried if not each.name], 1)
        ahead = solved[0].plan.predicted_latency_s.value if solved else plan.predicted_latency_s.value
        plan = replace(plan, gap=max(0.0, plan.predicted_latency_s.value / ahead - 1.0))
    artifact.save(folder / f"{PLAN}.json", PLAN, work.model.sha256, plan)
    manifest = build_stage(work, builder, plan)
    clock.lap("build")
    notes = model.notes + of_answers(decision.answers, decision.winner, limits)
    outcome = replace(_outcome(work, plan, schemes, builder, decision, manifest, clock), notes=notes)
    artifact.save(folder / f"{OUTCOME}.json", OUTCOME, work.model.sha256, outcome)
    return outcome


def profile_stage(
    work: Work, scheme: Scheme, builder: QdqBuilder, effort: float = 1.0, progress: Progress | None = None
) -> Profile:
    """Measure times and keep them in the folder."""
    result = profile(
        work.model,
        work.graph,
        builder,
        scheme,
        work.typical[:FEEDS],
        work.setup.options(),
        Effort(budget_s=16.0 * effort),
        seed=work.setup.seed,
        progress=progress,
        limit_bytes=work.memory_bytes,
    )
    drop(work.folder, *MADE_FROM[PROFILE])
    artifact.save(work.folder / f"{PROFILE}.json", PROFILE, work.model.sha256, result)
    return result


def refuse_layers(setup: Setup) -> None:
    """Raises BadOption where layers alone would not be what runs: `taglio compare --layers` tells OpenVINO's parts."""
    if setup.runtime != NAME:
        raise BadOption(f"--layers times ONNX Runtime, not {setup.runtime}: leave --layers or --runtime out")


def layers_stage(work: Work, scheme: Scheme, cut_at: Cut, progress: Progress | None = None) -> LayerTimes:
    """Time every layer alone, the notes' way, and keep the times in the folder. See `refuse_layers`."""
    builder = work.builder(scheme, progress)
    options, forms = work.setup.options(), precisions(scheme)
    result = layer_times(
        work.model, work.graph, builder, forms, options, work.typical[0], cut=cut_at, progress=progress
    )
    artifact.save(work.folder / f"{LAYERS}.json", LAYERS, work.model.sha256, result)
    return result


def build_stage(work: Work, builder: QdqBuilder, plan: Plan) -> Manifest:
    """Build the plan's components into the folder."""
    quantized = builder.build(plan.assignment(), plan.wire_only(work.graph))
    wires = Wires(plan.start, plan.copies()) if plan.crossings else None
    parts = cut(work.model, work.graph, quantized, plan.devices(), wires, plan.stages())
    inputs = [spec.name for spec in work.model.inputs]
    folder = work.folder / COMPONENTS
    (folder / PLACED).unlink(missing_ok=True)
    if len(parts) > 1:
        owner = {operator: block.name for block in work.graph.blocks for operator in block.operators}
        artifact.write_model(folder / PLACED, placed(quantized, parts, plan, owner))
    return write(folder, work.model.sha256, inputs, work.model.outputs, parts, plan.fingerprint())


def _outcome(
    work: Work,
    plan: Plan,
    schemes: tuple[SchemeResult, ...],
    builder: QdqBuilder,
    decision: Decision,
    manifest: Manifest,
    clock: "_Clock",
) -> Outcome:
    final, timed, answered = decision.finalists, decision.timed, decision.answers

    def variant(label: str, name: str, size_bytes: int) -> Variant:
        each = final[name]
        return Variant(
            label,
            timing_of(name, timed).wall,
            each.plan.predicted_latency_s.value,
            answered[name].error,
            each.plan.predicted_error.value,
            size_bytes,
            len(each.plan.assignment()),
            answered[name].accuracy,
            answered[name].parts,
            answered[name].interval,
        )

    float_size = weights.size_bytes(work.model.proto)
    int8_size = weights.size_bytes(builder.build(final["int8"].plan.assignment()))
    points = []
    for index, each in enumerate(decision.tried):
        name = next((name for name, other in final.items() if same_assignment(each, other)), "")
        error = answered[name].error if name in answered else each.error
        if not isfinite(error):  # lost what it told: nowhere between speed and error
            continue
        points.append(
            Point(
                name or each.name or f"tried {index + 1}",
                each.plan.predicted_latency_s.value,
                timing_of(name, timed).wall.median_s if name else None,
                error,
                len(each.plan.assignment()),
                each.holds,
            )
        )
    assert plan.limits.max_error is not None
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
        variant("float32", FLOAT_RUN, float_size)
        if FLOAT_RUN in final
        else _float_only(timed, answered[FLOAT_RUN], float_size),
        variant("int8", "int8", int8_size),
        variant("plan", decision.winner, sum(piece.size_bytes for piece in manifest.pieces)),
        tuple(points),
        dict(clock.laps),
        _peak_memory_bytes(),
        plan.fingerprint(),
        plan.limits.metric,
        decision.doubt(),
    )


def _float_only(timed: Mapping[str, Timed], answered: Answers, size_bytes: int) -> Variant:
    wall = timed[FLOAT_RUN].wall
    return Variant("float32", wall, wall.median_s, answered.error, 0.0, size_bytes, 0, answered.accuracy)


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
