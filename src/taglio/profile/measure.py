"""Profile a model by attribution: whole-model runs in float, in int8 and in random mixes. Decides nothing.

Each mix is a whole quantised model, so fusion, layouts and caches are as they will be; kernels are then joined to
blocks. Running each block alone would miss all three (see layerwise.py).
"""

import random
from collections.abc import Mapping, Sequence

import numpy as np

from taglio.graph import Graph
from taglio.model import Model
from taglio.profile.attribution import Attributor
from taglio.profile.fit import Run, conformal_ratio, fit, leave_one_out
from taglio.profile.machine import describe
from taglio.profile.result import Conditions, Profile, WholeRun
from taglio.profile.stopwatch import Effort, Progress, time_models
from taglio.quantize.effective import effective
from taglio.quantize.precision import Assignment, Precision, precisions
from taglio.quantize.qdq import QdqBuilder
from taglio.runtimes import onnxruntime
from taglio.runtimes.onnxruntime import SessionOptions
from taglio.scheme import Scheme

# Nine mixes: the largest of nine leave-one-out errors bounds a tenth with probability 0.9.
MIXES = 9


def profile(
    model: Model,
    graph: Graph,
    builder: QdqBuilder,
    scheme: Scheme,
    feed: Mapping[str, np.ndarray],
    options: SessionOptions,
    effort: Effort | None = None,
    *,
    seed: int = 0,
    progress: Progress | None = None,
) -> Profile:
    """Measure `model` on this machine: float, all int8, all int8 anchors, and `MIXES` random mixes, interleaved."""
    choices = precisions(scheme)
    assignments = {"float32": {}, **pure_assignments(graph, choices), **random_mixes(graph, choices, MIXES, seed)}
    timed = time_models(
        {name: builder.build(assignment) for name, assignment in assignments.items()},
        feed,
        options,
        effort or Effort(),
        kernels=True,
        progress=progress,
    )
    attributor = Attributor(model, graph)
    runs = [
        Run(
            name,
            dict(assignments[name]),
            result.wall.median_s,
            attributor.attribute(result.optimized, result.kernels),
            name.startswith("mix"),
        )
        for name, result in timed.items()
    ]
    tables = fit(runs, graph)
    unseen = leave_one_out(runs, graph)
    errors = [unseen[run.name] / run.wall_s - 1.0 for run in runs if run.name in unseen]
    whole = tuple(
        WholeRun(
            run.name,
            {block: precision.name for block, precision in run.assignment.items()},
            timed[run.name].wall,
            sum(timed[run.name].kernels.values()),
            unseen.get(run.name, run.wall_s),
        )
        for run in runs
    )
    conditions = Conditions(
        describe(),
        onnxruntime.NAME,
        onnxruntime.version(),
        options.threads,
        options.spinning,
        options.optimization.value,
    )
    return Profile(
        model.sha256,
        conditions,
        scheme,
        choices,
        tables.blocks,
        tables.glue,
        tables.overhead_s,
        tables.kernel_scale,
        tables.kernel_overhead_s,
        tables.quantize_s_per_element,
        tables.dequantize_s_per_element,
        conformal_ratio(errors),
        whole,
    )


def pure_assignments(graph: Graph, choices: Sequence[Precision]) -> dict[str, Assignment]:
    """Every candidate in int8, and every candidate with its anchor alone in int8 where it has that form."""
    whole = next(choice for choice in choices if choice.form == "whole")
    anchor = next((choice for choice in choices if choice.form == "anchor"), None)
    candidates = graph.candidates()
    result: dict[str, Assignment] = {"int8": {block.name: whole for block in candidates}}
    if anchor is not None and any(anchor.fits(block) for block in candidates):
        result["int8-anchor"] = {block.name: anchor if anchor.fits(block) else whole for block in candidates}
    return {name: effective(graph, assignment, whole) for name, assignment in result.items()}


def random_mixes(graph: Graph, choices: Sequence[Precision], count: int, seed: int) -> dict[str, Assignment]:
    """Random assignments for fitting: half with every block drawn alone, half in runs of neighbours, as plans are;
    densities from sparse to dense."""
    rng = random.Random(seed)
    whole = next(choice for choice in choices if choice.form == "whole")
    mixes: dict[str, Assignment] = {}
    for index in range(count):
        density = (0.5, 0.3, 0.7)[index % 3]
        stay = 0.0 if index % 2 == 0 else 0.8
        assignment: dict[str, Precision] = {}
        current: Precision | None = None
        for block in graph.candidates():
            if rng.random() >= stay:
                current = rng.choice([choice for choice in choices if choice.form != "float"])
                current = current if rng.random() < density else None
            if current is not None:
                assignment[block.name] = current if current.fits(block) else whole
        mixes[f"mix{index}"] = effective(graph, assignment, whole)
    return mixes
