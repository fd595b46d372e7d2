"""Profile a model by attribution: whole-model runs in float, in int8 and in random mixes. Decides nothing.

Each mix is a whole quantised model, so fusion, layouts and caches are as in deployment; its kernels are then joined to
blocks. Running each block alone would miss all three.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import exp, isfinite

import numpy as np

from taglio.conformal import conformal_quantile
from taglio.data.dataset import shapes_of
from taglio.errors import MeasurementFailed
from taglio.model.graph import Graph
from taglio.model.load import Model
from taglio.profile.attribution import Attributor
from taglio.profile.effort import MIXES, MOST_MIXES, Effort
from taglio.profile.fit import MeasuredRun, fit, left_out, with_forms
from taglio.profile.machine import describe
from taglio.profile.result import Conditions, Profile, WholeRun, changes, conversions, writes
from taglio.profile.stopwatch import Stopwatch, Timed
from taglio.quantize.effective import effective
from taglio.quantize.mixes import random_mixes
from taglio.quantize.precision import BFLOAT16, Assignment, Precision, form_of, int8_of, precisions
from taglio.quantize.qdq import QdqBuilder
from taglio.quantize.scheme import Scheme
from taglio.runtimes.onnxruntime import NAME
from taglio.runtimes.session import runtime_version

_FEWEST_MIXES = 3
FLOAT_RUN = "float32"
# Value of covering a state once more, by how often it is covered already; the last also for more.
_WORTH = (1.0, 0.4, 0.1, 0.0)

# Assignments that were timed, by name.
TimedRuns = Mapping[str, tuple[Assignment, Timed]]


def profile(
    builder: QdqBuilder,
    graph: Graph,
    scheme: Scheme,
    stopwatch: Stopwatch,
    effort: Effort,
    *,
    seed: int = 0,
) -> Profile:
    """The profile of the blocks of `graph` on this machine, from interleaved runs of float, all int8, all int8 anchors,
    and up to `effort.mixes` random mixes: half as many without bfloat16, fewer if the model is slow or takes long to
    open. Raises MeasurementFailed if float or a pure form does not run, or most mixes do not."""
    choices = precisions(scheme, stopwatch.options.runtime)
    pure = {FLOAT_RUN: {}, **pure_assignments(graph, choices)}
    most = min(effort.mixes, MOST_MIXES if BFLOAT16 in choices else MIXES)
    count = max(_FEWEST_MIXES, min(most, effort.models() - len(pure)))
    mixes = covering_mixes(graph, choices, count, seed)
    assignments: dict[str, Assignment] = {**pure, **mixes}
    timings = stopwatch.time(
        {name: partial(builder.build, assignment) for name, assignment in assignments.items()},
        effort,
        kernels=True,
    )
    # OpenVINO fails on a few mixes of some models; the others cover nearly as much.
    refused = timings.refused
    reasons = [refused[name] for name in refused if name in pure or len(mixes) - len(refused) < _FEWEST_MIXES]
    if reasons:
        raise MeasurementFailed(reasons[0])
    runs = {name: (assignments[name], timing) for name, timing in timings.timed.items()}
    conditions = _conditions(builder.model, stopwatch, runs)
    measured = _runs(builder.model, graph, runs, mixes.keys())
    return _profile(builder.model.sha256, graph, scheme, conditions, measured)


def of_pure_forms(model: Model, graph: Graph, scheme: Scheme, stopwatch: Stopwatch, runs: TimedRuns) -> Profile:
    """A profile of whole models in one form each, one of them float as FLOAT_RUN. Without mixes, the error of
    predictions of other models is unknown."""
    measured = _runs(model, graph, runs, ())
    return _profile(model.sha256, graph, scheme, _conditions(model, stopwatch, runs), measured)


def refine_near(
    builder: QdqBuilder, graph: Graph, prior: Profile, stopwatch: Stopwatch, effort: Effort, *, near: Assignment
) -> Profile:
    """`prior` refined for assignments like `near`, by timing `near` beside float, at the machine's present speed.

    `near` is timed as two runs, so that a leave-one-out fit in fit.py still has the other; runs of an earlier
    `near` stay.
    """
    number = 1 + sum(run.name.startswith("near too") for run in prior.runs)
    assignments = {FLOAT_RUN: {}, **({f"near {number}": near, f"near too {number}": near} if near else {})}
    timed = stopwatch.time(
        {name: partial(builder.build, assignment) for name, assignment in assignments.items()},
        replace(effort, run_s=_float_run(prior).wall.median_s),
        kernels=True,
    ).all()
    runs = {name: (assignment, timed[name]) for name, assignment in assignments.items()}
    return refine(builder.model, graph, prior, runs, near=near, is_present=True)


def refine(
    model: Model, graph: Graph, prior: Profile, runs: TimedRuns, *, near: Assignment, is_present: bool = False
) -> Profile:
    """`prior` with more runs, fitted for assignments like `near`.

    The cost of a type change depends on layouts beyond its neighbours, so runs weigh more the more blocks they share
    with `near`. `runs` must include the float model as FLOAT_RUN: its ratio to `prior` is the machine's drift. The
    drift is removed from the new runs, or, if the profile is to be of the present speed (`is_present`), from the runs
    of `prior`.
    """
    drift = _float_run(prior).wall.median_s / runs[FLOAT_RUN][1].wall.median_s
    prior_factor, new_factor = (1.0 / drift, 1.0) if is_present else (1.0, drift)
    new = {name: (assignment, timing.times(new_factor)) for name, (assignment, timing) in runs.items()}
    del new[FLOAT_RUN]
    kept_runs = [run for run in prior.runs if run.name not in new]  # a plan found again was timed again
    measured = [_run(prior, run, prior_factor) for run in kept_runs] + _runs(model, graph, new, new.keys())
    measured = [replace(run, weight=_closeness(graph, run.assignment, near)) for run in measured]
    busiest = max(timing.others for _, timing in runs.values())  # plans are predicted by these runs above all
    conditions = replace(prior.conditions, others=max(prior.conditions.others, busiest))
    return _profile(model.sha256, graph, prior.scheme, conditions, measured)


def _float_run(profile: Profile) -> WholeRun:
    return next(run for run in profile.runs if run.name == FLOAT_RUN)


def _closeness(graph: Graph, assignment: Assignment, near: Assignment) -> float:
    """The weight of a run: 1 for the same assignment as `near`, 1/e if 15 % of its blocks are in another precision, and
    never less than 0.05."""
    blocks = [block.name for block in graph.choices() if not block.movement]
    different_share = sum(assignment.get(name) != near.get(name) for name in blocks) / max(1, len(blocks))
    return max(0.05, exp(-different_share / 0.15))


def _runs(model: Model, graph: Graph, runs: TimedRuns, mixed: Collection[str]) -> list[MeasuredRun]:
    """Runs with their kernels attributed, those named in `mixed` marked so."""
    attributor = Attributor(model, graph)
    measured = []
    for name, (assignment, timing) in runs.items():
        attribution = attributor.attribute(timing.optimized, timing.kernels)
        measured.append(MeasuredRun(name, dict(assignment), timing.wall, attribution, name in mixed))
    return measured


def _run(profile: Profile, run: WholeRun, drift: float) -> MeasuredRun:
    assignment = {block: profile.precision(name) for block, name in run.assignment.items()}
    return MeasuredRun(run.name, assignment, run.wall.times(drift), run.attribution, run.mixed)


def _conditions(model: Model, stopwatch: Stopwatch, runs: TimedRuns) -> Conditions:
    options, is_dynamic = stopwatch.options, any(spec.dynamic for spec in model.inputs)
    return Conditions(
        machine=describe(),
        runtime=options.runtime,
        runtime_version=runtime_version(options.runtime),
        threads=options.threads,
        spinning=options.spins and options.runtime == NAME,
        optimization=options.optimization.value,
        shapes=tuple(map(shapes_of, stopwatch.feeds)) if is_dynamic else (),
        others=max(timing.others for _, timing in runs.values()),
    )


def _profile(
    model_sha256: str, graph: Graph, scheme: Scheme, conditions: Conditions, runs: Sequence[MeasuredRun]
) -> Profile:
    """The profile that is fitted to runs."""
    runs = with_forms(runs, graph)
    tables, unseen = fit(runs, graph), left_out(runs, graph)
    errors = [abs(unseen[run.name] / run.wall_s - 1.0) for run in runs if run.name in unseen]
    ratio = conformal_quantile(errors, weights=[run.weight for run in runs if run.name in unseen])
    whole_runs = tuple(
        WholeRun(
            run.name,
            {block: precision.name for block, precision in run.assignment.items()},
            run.wall,
            run.attribution,
            run.mixed,
            unseen.get(run.name, run.wall_s),
        )
        for run in runs
    )
    return Profile(
        model_sha256=model_sha256,
        conditions=conditions,
        scheme=scheme,
        precisions=precisions(scheme, conditions.runtime),
        blocks=tables.blocks,
        glue=tables.glue,
        overhead_s=tables.overhead_s,
        # Where no unseen run says how far predictions are off: up to twice or half as long.
        interval_ratio=ratio if isfinite(ratio) else 1.0,
        runs=whole_runs,
    )


def pure_assignments(graph: Graph, choices: Sequence[Precision]) -> dict[str, Assignment]:
    """Assignments with every candidate in int8 and, if any has that form, with anchors alone in int8; and one for each
    form without calibration, with the other blocks in float."""
    int8 = int8_of(choices)
    anchor = next((choice for choice in choices if choice.name == "int8-anchor"), None)
    candidates = graph.candidates()
    assignment_of: dict[str, Assignment] = {"int8": {block.name: int8 for block in candidates}}
    if anchor is not None and any(anchor.fits(block) for block in candidates):
        assignment_of["int8-anchor"] = {block.name: anchor if anchor.fits(block) else int8 for block in candidates}
    for form in choices:
        if form.uncalibrated:
            assignment_of[form.name] = {block.name: form for block in graph.choices() if form.fits(block)}
    return {name: effective(graph, assignment, int8) for name, assignment in assignment_of.items()}


def covering_mixes(graph: Graph, choices: Sequence[Precision], count: int, seed: int) -> dict[str, Assignment]:
    """The `count` of many random mixes that together cover most states, twice if possible: every flow written in float
    and in int8, with and without a type change, and every block in each precision; larger flows count more.

    A state that no mix covers would be estimated from other flows, which was measured to be off by half or more.
    """
    pool = list(random_mixes(graph, choices, 30 * count, seed).values())
    tensors = graph.tensor_map()
    moving = [(flow, max(tensors[name].elements for name in flow.tensors) / 1e4) for flow in graph.flows]
    weight: dict[tuple[str, ...], float] = {}
    shown: list[list[tuple[str, ...]]] = []
    for mix in pool:
        cells: list[tuple[str, ...]] = [(block, precision.name) for block, precision in mix.items()]
        weight.update(dict.fromkeys(cells, 1.0))
        for flow, size in moving:
            cell: tuple[str, ...] = (
                flow.name,
                "int8" if writes(mix, flow.producer) else form_of(mix, flow.producer or ""),
                "changes" * bool(changes(flow, mix)),
                "converts" * bool(conversions(flow, mix)),
            )
            weight[cell] = max(1.0, size)
            cells.append(cell)
        shown.append(cells)
    columns = {cell: column for column, cell in enumerate(weight)}
    covers = np.zeros((len(pool), len(columns)))  # 1 where a mix shows a state
    for row, cells in zip(covers, shown, strict=True):
        row[[columns[cell] for cell in cells]] = 1.0
    values, seen = np.array([*weight.values()]), np.zeros(len(columns), int)
    chosen: list[int] = []
    while len(chosen) < count:
        gains = covers @ (values * np.take(_WORTH, np.minimum(seen, len(_WORTH) - 1)))
        gains[chosen] = -1.0
        chosen.append(int(np.argmax(gains)))
        seen += covers[chosen[-1]].astype(int)
    return {f"mix{order}": pool[index] for order, index in enumerate(chosen)}
