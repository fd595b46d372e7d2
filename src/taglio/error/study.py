"""The study: measure the error of blocks alone and of subsets. Fits nothing (combine.py).

Blocks alone give every term its starting value (terms.py). A few dozen subsets correct the terms and give the interval;
more bring almost nothing.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from taglio.error.combine import Measured
from taglio.error.measure import ErrorMeter, ErrorReading
from taglio.error.terms import design
from taglio.model.graph import Graph
from taglio.progress import Progress, reported
from taglio.quantize.mixes import draw_mixes
from taglio.quantize.precision import BFLOAT16, Assignment, Forms, Precision, key_of


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
    seed: int = 0,
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

    for subset in reported(random_subsets(graph, precisions, count, seed), "random subsets", progress):
        subset_readings.append(meter.read(subset))
        subsets.append(subset)
    return Measured(columns, tuple(precisions), singles, readings, subsets, subset_readings)


def random_subsets(graph: Graph, precisions: Sequence[Precision], count: int, seed: int) -> list[dict[str, Precision]]:
    """Distinct random mixes: repeats would leak across folds."""
    subsets: dict[Forms, dict[str, Precision]] = {}
    for mix in islice(draw_mixes(graph, precisions, seed + 1), 4 * count):
        if len(subsets) == count:
            break
        if mix:
            subsets.setdefault(key_of(mix), mix)
    return list(subsets.values())
