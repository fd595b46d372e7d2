"""The study: measure the error of blocks alone and of subsets. Fits nothing (combine.py).

Blocks alone give every term its starting value (terms.py). A few dozen subsets correct the terms and give the interval;
more bring almost nothing.

A planner does not choose at random: it picks what the model considers harmless, and so what it underestimates. So some
of the subsets are picked as a planner would, after the random ones: near the limit if there is one, since errors of
20 % say little about plans within 1 %.
"""

import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from taglio.error.combine import Measured, fit_outputs
from taglio.error.measure import ErrorMeter, ErrorReading
from taglio.error.terms import design
from taglio.model.graph import Graph
from taglio.progress import Progress, reported
from taglio.quantize.effective import effective
from taglio.quantize.mixes import draw_mixes
from taglio.quantize.precision import BFLOAT16, Assignment, Forms, Precision, key_of


@dataclass(frozen=True, slots=True)
class StudyAim:
    """What the error model is for: plans `near` a limit on the error (None: any), which save `saved_s` seconds by
    (block, form) (None: as many as their FLOPs say). Subsets are drawn with `seed`."""

    near: float | None = None
    saved_s: Mapping[tuple[str, str], float] | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class StudyBudget:
    """How much to measure: seconds for the whole stage, and subsets within it.

    Blocks alone are always measured, one evaluation each, unless that takes more than `alone_s` seconds: then several
    neighbours share one evaluation. The minimum of subsets may take half as long.
    """

    seconds: float = 45.0
    minimum_subsets: int = 32
    maximum_subsets: int = 96
    alone_s: float = 100.0

    def subsets(self, left_s: float, each_s: float) -> int:
        """How many subsets to measure in `left_s` seconds at `each_s` seconds each; fewer than the minimum only if that
        would take more than half of `alone_s`."""
        affordable = int(0.5 * self.alone_s / max(each_s, 1e-6))
        least = min(self.minimum_subsets, max(8, affordable))  # with fewer, the accuracy of the fit is unknown
        return max(least, min(self.maximum_subsets, int(left_s / max(each_s, 1e-6))))


def measure(
    graph: Graph,
    precisions: Sequence[Precision],
    meter: ErrorMeter,
    budget: StudyBudget,
    aim: StudyAim,
    progress: Progress | None = None,
) -> Measured:
    """The measurements that the fit needs, within the budget."""
    columns = design(graph, precisions)
    forms = {precision.name: precision for precision in precisions}
    # By block int8, or its only form.
    main = {name: forms[form] for name, form in reversed(columns.own) if forms[form] != BFLOAT16}
    names = [*dict.fromkeys(name for name, _ in columns.own if name in main)]
    start = time.perf_counter()
    singles: list[dict[str, Precision]] = []
    readings: list[ErrorReading] = []

    def alone(wanted: Sequence[dict[str, Precision]], what: str) -> None:
        for assignment in reported(wanted, what, progress):
            readings.append(meter.read(assignment))
            singles.append(assignment)

    if names:
        alone([{names[0]: main[names[0]]}], "each block alone")
        group = max(1, round((time.perf_counter() - start) * len(names) / budget.alone_s))
        runs = [names[index : index + group] for index in range(1, len(names), group)]
        alone([{name: main[name] for name in run} for run in runs], "each block alone")
    each_s = (time.perf_counter() - start) / len(singles) if singles else meter.evaluation_s
    low = [name for name, form in columns.own if forms[form] == BFLOAT16]
    # Its errors are small: neighbours share an evaluation.
    size = max(1, math.ceil(each_s * len(low) / (0.25 * budget.alone_s)))
    parts = [low[index : index + size] for index in range(0, len(low), size)]
    alone([dict.fromkeys(part, BFLOAT16) for part in parts], "neighbours in bfloat16")
    other_forms = [{name: forms[form]} for name, form in columns.own if forms[form] not in (BFLOAT16, main.get(name))]
    if each_s * len(other_forms) < 0.3 * budget.seconds:
        alone(other_forms, "each other form alone")
    count = budget.subsets(budget.seconds - (time.perf_counter() - start), each_s)
    subsets: list[Assignment] = []
    subset_readings: list[ErrorReading] = []

    def together(wanted: Sequence[Assignment], what: str) -> Measured:
        for subset in reported(wanted, what, progress):
            subset_readings.append(meter.read(subset))
            subsets.append(subset)
        return Measured(columns, tuple(precisions), singles, readings, [*subsets], [*subset_readings])

    share = 0.5 if aim.near is None else 0.75  # of subsets picked as a planner would
    drawn = random_subsets(graph, precisions, count - int(share * count), aim.seed)
    measured = together(drawn, "random subsets")
    if not drawn:
        return measured
    picks = picked_subsets(graph, measured, count - len(drawn), aim)
    return together(picks, "subsets as a planner picks them")


def picked_subsets(graph: Graph, measured: Measured, count: int, aim: StudyAim) -> list[dict[str, Precision]]:
    """Unmeasured subsets that a planner would pick by what is `measured` so far.

    Each has a random limit, near `aim.near` if there is one, and random savings per block and form, drawn around
    `aim.saved_s` or FLOPs. Forms are given to blocks in order of noise per saving, least first, while the predicted
    error keeps the limit; a block keeps the first that it gets.
    """
    rng = random.Random(aim.seed + 2)
    before = {key_of(subset) for subset in measured.subsets}
    forms = {
        precision.name: precision
        for precision in measured.precisions
        if precision.form == "whole" or precision.uncalibrated
    }
    whole = next(form for form in forms.values() if form.form == "whole")
    columns = measured.columns
    choices = [(graph.block(block), forms[form]) for block, form in columns.own if form in forms]
    outputs = list(fit_outputs(measured, unseen=False).terms.values())
    # A row at a time: all of them would take gigabytes on a network of thousands of blocks.
    alone = (columns.row({block.name: form}) for block, form in choices if outputs)
    worst = np.array([max(float(row @ terms.noise) for terms in outputs) for row in alone])

    def predicted(assignment: Assignment) -> float:
        row = columns.row(assignment)[None]
        return max(float(terms.predict(row)[0]) for terms in outputs)

    def together(indices: Sequence[int]) -> Assignment:
        assignment: dict[str, Precision] = {}
        for index in indices:
            block, form = choices[index]
            assignment.setdefault(block.name, form)
        return effective(graph, assignment, whole)

    largest = predicted({block.name: form for block, form in choices if form is whole}) if len(worst) else 0.0
    worth = np.array([block.flops + 1.0 for block, _ in choices])
    if aim.saved_s is not None:
        # Blocks that save nothing count as saving a little: a neighbour in int8 may make them worth it.
        least = max(aim.saved_s.values(), default=0.0) * 1e-3 or 1.0
        worth = np.array([max(aim.saved_s.get((block.name, form.name), 0.0), least) for block, form in choices])
    picked: dict[Forms, dict[str, Precision]] = {}
    for _ in range(4 * count if largest > 0.0 else 0):
        if len(picked) == count:
            break
        low, high = 0.05 * largest, 0.95 * largest
        if aim.near is not None and aim.near < high:
            low, high = aim.near / 2.0, min(high, aim.near * 2.0)
        bound = math.exp(rng.uniform(math.log(low), math.log(high)))
        saved = [rng.lognormvariate(0.0, 1.0) * saving for saving in worth]
        order = np.argsort(worst / saved, kind="stable").tolist()
        fits, breaks = 0, len(order) + 1
        while breaks - fits > 1:
            middle = (fits + breaks) // 2
            fits, breaks = (middle, breaks) if predicted(together(order[:middle])) <= bound else (fits, middle)
        chosen = together(order[:fits])
        if chosen and key_of(chosen) not in before:
            picked.setdefault(key_of(chosen), dict(chosen))
    return list(picked.values())


def random_subsets(graph: Graph, precisions: Sequence[Precision], count: int, seed: int) -> list[dict[str, Precision]]:
    """Distinct random mixes: repeats would leak across folds."""
    subsets: dict[Forms, dict[str, Precision]] = {}
    for mix in islice(draw_mixes(graph, precisions, seed + 1), 4 * count):
        if len(subsets) == count:
            break
        if mix:
            subsets.setdefault(key_of(mix), mix)
    return list(subsets.values())
