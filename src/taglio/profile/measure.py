"""Profile a model by attribution: whole-model runs in float, in int8 and in random mixes. Decides nothing.

Each mix is a whole quantised model, so fusion, layouts and caches are as in deployment; its kernels are then joined to
blocks. Running each block alone would miss all three (see layerwise.py).
"""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import exp, isfinite
from statistics import median

import numpy as np

from taglio.data.dataset import shapes_of
from taglio.errors import MeasurementFailed
from taglio.model.graph import Graph
from taglio.model.load import Model
from taglio.profile.attribution import Attributor
from taglio.profile.calibrate import calibrate
from taglio.profile.fit import Run, Tables, conformal_ratio, fit
from taglio.profile.machine import describe
from taglio.profile.result import Conditions, Profile, WholeRun, changes, conversions, writes
from taglio.profile.sessions import sessions_within
from taglio.profile.speed import REFERENCE_S, Speeds, middle_half, waking_seconds
from taglio.profile.stopwatch import Effort, Feed, Timed, run_once, time_models
from taglio.profile.wall_time import WallTime
from taglio.progress import Progress
from taglio.quantize.effective import effective
from taglio.quantize.precision import BFLOAT16, FLOAT32, Assignment, Precision, first_fit, form_of, precisions
from taglio.quantize.qdq import QdqBuilder
from taglio.quantize.scheme import Scheme
from taglio.runtimes.onnxruntime import NAME, SessionOptions, open_session
from taglio.runtimes.session import runtime_version

# Nine are enough for a 90 % interval: the largest of nine errors bounds a tenth.
MIXES = 9
_FEWEST_MIXES = 3
# The budget is for this many different runs; a model of one or two blocks has fewer, and its mixes repeat them.
_DIFFERENT = MIXES + 2
FLOAT_RUN = "float32"
# Half-width of predictions, as a share, where no unseen run says how far they are off: up to twice or half as long.
_UNKNOWN_RATIO = 1.0
_POOL = 30
# Value of covering a state once more, by how often it is covered already; the last also for more.
_WORTH = (1.0, 0.4, 0.1, 0.0)
# In a random mix, the precision of blocks that are not quantised, and those that some of them have too.
_BESIDE_INT8 = ((BFLOAT16,), (FLOAT32, BFLOAT16), (BFLOAT16,), (BFLOAT16, FLOAT32))
# Share of the budget for one measurement of the machine's speed.
_REFERENCE_SHARE = 0.1
# A run's weight falls to 1/e when this share of its blocks differs from the plan, and is never less than _FAR.
_NEAR, _FAR = 0.15, 0.05


def profile(
    model: Model,
    graph: Graph,
    builder: QdqBuilder,
    scheme: Scheme,
    feeds: Sequence[Feed],
    options: SessionOptions,
    effort: Effort | None = None,
    *,
    seed: int = 0,
    most_mixes: int = MIXES,
    progress: Progress | None = None,
    limit_bytes: int | None = None,
    once_s: float = 0.0,
) -> Profile:
    """The profile of `model` on this machine, from interleaved runs of float, all int8, all int8 anchors, and up to
    `most_mixes` random mixes. `once_s` are the seconds of a run (0: unknown): a slow model runs once in each. Raises
    MeasurementFailed if float or a pure form does not run, or most mixes do not."""
    choices, effort = precisions(scheme, options.runtime), effort or Effort()
    pure = {FLOAT_RUN: {}, **pure_assignments(graph, choices)}
    if not once_s:
        once_s = run_once(model.name, open_session(model.proto, replace(options, runtime=NAME)), feeds[0])
    affordable = mixes_within(effort, once_s, len(pure), sessions_within(effort.patience_s, model.proto))
    count = max(_FEWEST_MIXES, min(most_mixes, affordable))
    mixes = covering_mixes(graph, choices, count, seed)
    assignments = {**pure, **mixes}
    speeds = Speeds(options.threads, min(REFERENCE_S, _REFERENCE_SHARE * effort.budget_s))
    refused: dict[str, str] = {}
    timed = time_models(
        {name: partial(builder.build, assignment) for name, assignment in assignments.items()},
        feeds,
        options,
        replace(effort, budget_s=effort.budget_s * _share(assignments.values())),
        kernels=True,
        often=pure,  # the fit depends most on these
        between=speeds.look,
        progress=progress,
        limit_bytes=limit_bytes,
        refused=refused,
        once_s=once_s,
    )
    # OpenVINO fails on a few mixes of some models; the others cover nearly as much.
    reasons = [refused[name] for name in refused if name in pure or len(mixes) - len(refused) < _FEWEST_MIXES]
    if reasons:
        raise MeasurementFailed(reasons[0])
    assignments = {name: assignment for name, assignment in assignments.items() if name in timed}
    reference_times_s = speeds.finish()
    conditions = replace(
        _conditions(model, options, feeds, max(timing.others for timing in timed.values())),
        reference_s=median(reference_times_s),
        waking_s=waking_seconds(options.threads),
        reference_half_s=middle_half(reference_times_s),
    )
    runs = _runs(model, graph, assignments, timed, set(mixes), 1.0)
    return _assemble(model.sha256, graph, conditions, scheme, choices, runs)


def _share(assignments: Iterable[Assignment]) -> float:
    """The share of the budget that these runs need: 1 unless most repeat others."""
    distinct = {tuple((block, form.name) for block, form in assignment.items()) for assignment in assignments}
    return min(1.0, len(distinct) / _DIFFERENT)


def mixes_within(effort: Effort, once_s: float, pure_runs: int, sessions: int) -> int:
    """How many mixes to measure beside `pure_runs` models in one form, if a run takes `once_s`: fewer than `MIXES` if
    one run of each model would exceed the effort's patience, or if they need more than so many `sessions`."""
    return max(_FEWEST_MIXES, min(MIXES, min(sessions, int(effort.patience_s / max(once_s, 1e-9))) - pure_runs))


def of_pure_forms(
    model: Model,
    graph: Graph,
    scheme: Scheme,
    options: SessionOptions,
    timed: Mapping[str, tuple[Assignment, Timed]],
    feeds: Sequence[Feed],
) -> Profile:
    """A profile of whole models in one form each, one of them float as FLOAT_RUN. Without mixes, the error of
    predictions of other models is unknown."""
    assignments = {name: assignment for name, (assignment, _) in timed.items()}
    runs = _runs(model, graph, assignments, {name: timing for name, (_, timing) in timed.items()}, set(), 1.0)
    busy_share = max(timing.others for _, timing in timed.values())
    conditions = _conditions(model, options, feeds, busy_share)
    return _profile(
        model.sha256,
        conditions,
        scheme,
        precisions(scheme, options.runtime),
        runs,
        fit([run for run, _ in runs], graph),
        {},
    )


def refine_near(
    model: Model,
    graph: Graph,
    builder: QdqBuilder,
    prior: Profile,
    feeds: Sequence[Feed],
    options: SessionOptions,
    effort: Effort,
    *,
    near: Assignment,
    limit_bytes: int | None = None,
) -> Profile:
    """`prior` refined for assignments like `near`, by timing `near` beside float, at the machine's present speed.

    `near` is timed as two runs, so that a leave-one-out fit in calibrate.py still has the other; runs of an earlier
    `near` stay.
    """
    earlier = sum(run.name.startswith("near too") for run in prior.runs)
    assignments: dict[str, Assignment] = {FLOAT_RUN: {}, **({"near": near, "near too": near} if near else {})}
    speeds = Speeds(options.threads, min(REFERENCE_S, _REFERENCE_SHARE * effort.budget_s))
    timed = time_models(
        {name: partial(builder.build, assignment) for name, assignment in assignments.items()},
        feeds,
        options,
        effort,
        kernels=True,
        between=speeds.look,
        limit_bytes=limit_bytes,
    )
    reference_times_s = speeds.finish()
    present = replace(
        prior.conditions, reference_s=median(reference_times_s), reference_half_s=middle_half(reference_times_s)
    )
    runs = {name: (assignment, timed[name]) for name, assignment in assignments.items()}
    return refine(model, graph, prior, runs, f" {earlier + 1}", near=near, present=present)


def refine(
    model: Model,
    graph: Graph,
    prior: Profile,
    timed: Mapping[str, tuple[Assignment, Timed]],
    suffix: str,
    *,
    near: Assignment,
    present: Conditions | None = None,
) -> Profile:
    """`prior` with more runs, fitted for assignments like `near`.

    The cost of a type change depends on layouts beyond its neighbours, so runs weigh more the more blocks they share
    with `near`. `timed` must include the float model as FLOAT_RUN: its ratio to `prior` is the machine's drift. The
    drift is removed from the new runs, which are kept under their names plus `suffix`; or, if `present` conditions are
    given, from the runs of `prior`.
    """
    prior_float_s = next(run for run in prior.runs if run.name == FLOAT_RUN).wall.median_s
    drift = prior_float_s / timed[FLOAT_RUN][1].wall.median_s
    prior_factor, new_factor = (1.0, drift) if present is None else (1.0 / drift, 1.0)
    assignments = {name + suffix: assignment for name, (assignment, _) in timed.items() if name != FLOAT_RUN}
    timings = {name + suffix: timing for name, (_, timing) in timed.items()}
    new_runs = _runs(model, graph, assignments, timings, set(assignments), new_factor)
    kept_runs = [run for run in prior.runs if run.name not in assignments]  # a plan found again was timed again
    pairs = [(_run(prior, run, prior_factor), run.wall.times(prior_factor)) for run in kept_runs] + new_runs
    weighted = [(replace(run, weight=_closeness(graph, run.assignment, near)), wall) for run, wall in pairs]
    conditions = prior.conditions if present is None else present
    busiest = max(timing.others for timing in timings.values())  # plans are predicted by these runs above all
    conditions = replace(conditions, others=max(conditions.others, busiest))
    return _assemble(prior.model_sha256, graph, conditions, prior.scheme, prior.precisions, weighted)


def _closeness(graph: Graph, assignment: Assignment, near: Assignment) -> float:
    """The weight of a run: 1 for the same assignment as `near`, less for each block in another precision."""
    blocks = [block.name for block in graph.choices() if not block.movement]
    different_share = sum(assignment.get(name) != near.get(name) for name in blocks) / max(1, len(blocks))
    return max(_FAR, exp(-different_share / _NEAR))


def _runs(
    model: Model,
    graph: Graph,
    assignments: Mapping[str, Assignment],
    timed: Mapping[str, Timed],
    mixed: set[str],
    drift: float,
) -> list[tuple[Run, WallTime]]:
    attributor = Attributor(model, graph)
    runs = []
    for name, assignment in assignments.items():
        timing = timed[name]
        kernels = {node: seconds * drift for node, seconds in timing.kernels.items()}
        attribution = attributor.attribute(timing.optimized, kernels)
        wall_s = timing.wall.median_s * drift
        runs.append((Run(name, dict(assignment), wall_s, attribution, name in mixed), timing.wall.times(drift)))
    return runs


def _run(profile: Profile, run: WholeRun, drift: float) -> Run:
    assignment = {block: profile.precision(name) for block, name in run.assignment.items()}
    return Run(run.name, assignment, run.wall.median_s * drift, run.attribution, run.mixed)


def _assemble(
    sha256: str,
    graph: Graph,
    conditions: Conditions,
    scheme: Scheme,
    choices: tuple[Precision, ...],
    measured: Sequence[tuple[Run, WallTime]],
) -> Profile:
    tables, unseen = calibrate([run for run, _ in measured], graph)
    return _profile(sha256, conditions, scheme, choices, measured, tables, unseen)


def _conditions(model: Model, options: SessionOptions, feeds: Sequence[Feed], busy_share: float) -> Conditions:
    return Conditions(
        machine=describe(),
        runtime=options.runtime,
        runtime_version=runtime_version(options.runtime),
        threads=options.threads,
        spinning=options.spinning,
        optimization=options.optimization.value,
        shapes=tuple(map(shapes_of, feeds)) if any(spec.dynamic for spec in model.inputs) else (),
        others=busy_share,
    )


def _profile(
    sha256: str,
    conditions: Conditions,
    scheme: Scheme,
    choices: tuple[Precision, ...],
    measured: Sequence[tuple[Run, WallTime]],
    tables: Tables,
    unseen: Mapping[str, float],
) -> Profile:
    """The profile from fitted tables; `unseen` are the seconds of mixed runs as predicted by a fit without them."""
    runs = [run for run, _ in measured]
    errors = [unseen[run.name] / run.wall_s - 1.0 for run in runs if run.name in unseen]
    ratio = conformal_ratio(errors, weights=[run.weight for run in runs if run.name in unseen])
    whole_runs = tuple(
        WholeRun(
            run.name,
            {block: precision.name for block, precision in run.assignment.items()},
            wall,
            run.attribution,
            run.mixed,
            unseen.get(run.name, run.wall_s),
        )
        for run, wall in measured
    )
    return Profile(
        model_sha256=sha256,
        conditions=conditions,
        scheme=scheme,
        precisions=choices,
        blocks=tables.blocks,
        glue=tables.glue,
        overhead_s=tables.overhead_s,
        kernel_scale=tables.kernel_scale,
        kernel_overhead_s=tables.kernel_overhead_s,
        quantize_s_per_element=tables.quantize_s_per_element,
        dequantize_s_per_element=tables.dequantize_s_per_element,
        interval_ratio=ratio if isfinite(ratio) else _UNKNOWN_RATIO,
        runs=whole_runs,
    )


def pure_assignments(graph: Graph, choices: Sequence[Precision]) -> dict[str, Assignment]:
    """Assignments with every candidate in int8 and, if any has that form, with anchors alone in int8; and one for each
    form without calibration, with the other blocks in float."""
    int8 = next(choice for choice in choices if choice.form == "whole")
    anchor = next((choice for choice in choices if choice.form == "anchor"), None)
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
    pool = list(random_mixes(graph, choices, _POOL * count, seed).values())
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


def random_mixes(graph: Graph, choices: Sequence[Precision], count: int, seed: int) -> dict[str, Assignment]:
    """Random assignments for fitting: half draw every block independently, half draw runs of neighbours, as plans have;
    densities from sparse to dense."""
    rng = random.Random(seed)
    int8 = next(choice for choice in choices if choice.form == "whole")
    quantized = [choice for choice in choices if choice not in (FLOAT32, BFLOAT16)]
    mixes: dict[str, Assignment] = {}
    for index in range(count):
        density = (0.5, 0.2, 0.8)[index % 3]
        stay = 0.0 if index % 2 == 0 else 0.8
        # A model computes in one precision beside int8, or mixes both.
        others = _BESIDE_INT8[index % len(_BESIDE_INT8)] if BFLOAT16 in choices else (FLOAT32,)
        forms = [*quantized, *others[1:]]
        assignment: dict[str, Precision] = {}
        current: Precision | None = None
        for block in graph.choices():
            if rng.random() >= stay:
                current = rng.choice(forms)
                current = current if rng.random() < density else None
            form = first_fit(block, (current, *forms) if current is not None else others[:1])
            if form is not None and form != FLOAT32:
                assignment[block.name] = form
        mixes[f"mix{index}"] = effective(graph, assignment, int8)
    return mixes
