"""Fit a profile's tables to attributed whole-model runs. Pure: no clock, no session."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from taglio.model.graph import Flow, Graph
from taglio.profile.attribution import Attribution
from taglio.profile.result import BlockTime, Glue, changes, conversions, reads, writes, written_costs
from taglio.profile.wall_time import WallTime
from taglio.quantize.precision import Assignment, Precision, form_of

# Typical session overhead besides kernels: tens of microseconds, hundreds if it copies large outputs.
_SESSION_S = 2e-4


@dataclass(frozen=True, slots=True)
class RunForms:
    """The forms of a run: of each block, with the flows that it reads or writes and that change type; and of each flow,
    whether it is written in int8, its number of type changes, and of conversions between float32 and bfloat16.
    `converting` are the blocks that read or write a flow that is converted."""

    blocks: tuple[tuple[str, str, tuple[str, ...]], ...]
    flows: tuple[tuple[Flow, bool, int, int], ...]
    converting: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """One whole-model run: its assignment, wall time, and the attribution of its kernels.

    `weight` is its weight in the fit's means: larger the closer it is to the plan to predict. `forms` are derived from
    its assignment once (with_forms) for several fits."""

    name: str
    assignment: dict[str, Precision]
    wall: WallTime
    attribution: Attribution
    mixed: bool
    weight: float = 1.0
    forms: RunForms = RunForms((), ())

    @property
    def wall_s(self) -> float:
        """Median wall seconds."""
        return self.wall.median_s


# Pairs (value, weight).
_Weighted = list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class FitTables:
    """The fitted part of a profile; the fields are those of `Profile`."""

    blocks: tuple[BlockTime, ...]
    glue: tuple[Glue, ...]
    overhead_s: float


def fit(runs: Sequence[MeasuredRun], graph: Graph) -> FitTables:
    """Block and glue seconds as weighted means over `runs`, scaled to add up to wall time."""
    unexplained = _unexplained(runs)
    runs = [_to_wall(run, unexplained) for run in with_forms(runs, graph)]
    blocks, surplus = _block_times(runs)
    glue = _glue(runs, graph, surplus)
    sums = parts(FitTables(blocks, glue, 0.0), runs)
    rest_s = _mean([(run.wall_s - sum(run_parts), run.weight) for run, run_parts in zip(runs, sums, strict=True)])
    # The session overhead of a run, plus orphan kernels. Anything more is noise and is added to blocks: every component
    # pays the session overhead, so with a large one no component would be worth another device.
    orphans_s = _mean([(run.attribution.orphans_s, run.weight) for run in runs])
    session_s = min(max(0.0, rest_s), max(unexplained, _SESSION_S) + orphans_s)
    blocks_s = _mean([(run_parts[0], run.weight) for run, run_parts in zip(runs, sums, strict=True)])
    share = max(0.1, 1.0 + (rest_s - session_s) / max(blocks_s, 1e-12))
    blocks = tuple(replace(block_time, seconds=share * block_time.seconds) for block_time in blocks)
    return FitTables(blocks, glue, session_s)


def with_forms(runs: Sequence[MeasuredRun], graph: Graph) -> list[MeasuredRun]:
    """The runs with their `forms`, where these are not known yet."""
    moving = graph.flows
    incoming: dict[str, list[Flow]] = {}
    outgoing: dict[str, list[Flow]] = {}
    for flow in moving:
        if flow.producer is not None:
            outgoing.setdefault(flow.producer, []).append(flow)
        for reader in dict.fromkeys(block for _, block in flow.readers if block):
            incoming.setdefault(reader, []).append(flow)

    def forms(assignment: Assignment) -> RunForms:
        counts = {flow.name: changes(flow, assignment) for flow in moving}
        converted = {flow.name: conversions(flow, assignment) for flow in moving}
        blocks = []
        for block in graph.blocks:
            read = reads(assignment, block.name)
            changed = [f.name for f in incoming.get(block.name, ()) if writes(assignment, f.producer) != read]
            changed += [f.name for f in outgoing.get(block.name, ()) if counts[f.name]]
            blocks.append((block.name, form_of(assignment, block.name), tuple(changed)))
        flows = ((flow, writes(assignment, flow.producer), counts[flow.name], converted[flow.name]) for flow in moving)
        around = (
            block for flow in moving if converted[flow.name] for block in (flow.producer, *(b for _, b in flow.readers))
        )
        return RunForms(tuple(blocks), tuple(flows), frozenset(block for block in around if block))

    return [run if run.forms.blocks else replace(run, forms=forms(run.assignment)) for run in runs]


def _block_times(runs: Sequence[MeasuredRun]) -> tuple[tuple[BlockTime, ...], dict[tuple[str, str], float]]:
    """Seconds of every block without type changes on what it reads or writes; and, by (run, flow), the seconds that a
    type change added (other layouts, colder caches) or saved, which count as part of the boundary."""
    calm: dict[tuple[str, str], _Weighted] = {}
    every: dict[tuple[str, str], _Weighted] = {}
    across: list[tuple[str, tuple[str, str], tuple[str, ...], float]] = []  # run, key, flows that change, seconds
    for run in runs:
        for block, form, changed in run.forms.blocks:
            seconds, key = run.attribution.blocks_s.get(block, 0.0), (block, form)
            every.setdefault(key, []).append((seconds, run.weight))
            if changed:
                across.append((run.name, key, changed, seconds))
            elif block not in run.forms.converting:
                calm.setdefault(key, []).append((seconds, run.weight))
    # Means, not medians: times are right-skewed, and only means add up to the mean of the whole model.
    base = {key: _mean(calm.get(key, values)) for key, values in every.items()}
    surplus: dict[tuple[str, str], float] = {}
    for run_name, key, changed, seconds in across:
        if key in calm:
            for flow_name in changed:
                place = (run_name, flow_name)
                surplus[place] = surplus.get(place, 0.0) + (seconds - base[key]) / len(changed)
    return tuple(BlockTime(*key, seconds) for key, seconds in base.items()), surplus


def parts(tables: FitTables, runs: Sequence[MeasuredRun]) -> list[tuple[float, float, float]]:
    """Predicted seconds of each run (with its forms): of its blocks, of its type changes, and of the rest. A block that
    was never measured in a precision takes its time in another."""
    times = {(block_time.block, block_time.precision): block_time.seconds for block_time in tables.blocks}
    fallback: dict[str, float] = {}
    for block_time in tables.blocks:
        fallback.setdefault(block_time.block, block_time.seconds)
    glue = {flow_glue.flow: flow_glue for flow_glue in tables.glue}
    predicted = []
    for run in runs:
        blocks = sum(times.get((block, form), fallback.get(block, 0.0)) for block, form, _ in run.forms.blocks)
        costs = [
            (*written_costs(glue[flow.name], is_int8=is_int8), count) for flow, is_int8, count, _ in run.forms.flows
        ]
        changing, still = sum(change_s * count for _, change_s, count in costs), sum(base_s for base_s, _, _ in costs)
        changing += sum(glue[flow.name].convert_s * count for flow, _, _, count in run.forms.flows)
        predicted.append((blocks, changing, still + tables.overhead_s))
    return predicted


def _to_wall(run: MeasuredRun, unexplained: float) -> MeasuredRun:
    """The run with all kernels scaled to add up to the wall time minus `unexplained`: kernels and wall times are
    measured separately, at different speeds of the machine, and recording a kernel takes a few microseconds."""
    attribution = run.attribution
    kernels_s = sum(attribution.blocks_s.values()) + sum(attribution.tensors_s.values()) + attribution.orphans_s
    factor = max(0.0, run.wall_s - unexplained) / max(kernels_s, 1e-12)
    scaled = Attribution(
        {name: factor * value for name, value in attribution.blocks_s.items()},
        {name: factor * value for name, value in attribution.tensors_s.items()},
        factor * attribution.orphans_s,
    )
    return replace(run, attribution=scaled)


def _unexplained(runs: Sequence[MeasuredRun]) -> float:
    """The seconds β of a run outside kernels: wall ≈ α · Σ kernels + β, by relative least squares with priors at α = 1
    (weak) and β = 0 (strong, since kernels explain nearly everything; stronger the more runs scatter, so that β does
    not fit noise).

    On a busy machine walls may fall where kernels take longer. A scale below 1/4 or above 4 is such noise."""
    kernels_s = [sum(run.attribution.blocks_s.values()) + sum(run.attribution.tensors_s.values()) for run in runs]
    rows = [[seconds / run.wall_s, 1.0 / run.wall_s] for run, seconds in zip(runs, kernels_s, strict=True)]
    typical, explained = median(run.wall_s for run in runs), np.array([row[0] for row in rows])
    scatter = float(np.std(explained / explained.mean()))
    rows += [[0.1, 0.0], [0.0, max(1.5, scatter * typical / _SESSION_S) / typical]]
    alpha, beta = np.linalg.lstsq(np.array(rows), np.array([1.0] * len(runs) + [0.1, 0.0]), rcond=None)[0]
    return max(0.0, float(beta)) if 0.25 <= alpha <= 4.0 else 0.0


def _glue(runs: Sequence[MeasuredRun], graph: Graph, surplus: Mapping[tuple[str, str], float]) -> tuple[Glue, ...]:
    tensors, moving = graph.tensor_map(), graph.flows
    elements = {flow.name: max(tensors[name].elements for name in flow.tensors) for flow in moving}
    pure: dict[tuple[str, bool], _Weighted] = {}  # by flow, and whether it is written in int8
    mixed: list[tuple[tuple[str, bool], int, float, float]] = []  # the same, type changes, seconds, weight
    converted: list[tuple[str, int, float]] = []  # flow, conversions, seconds
    for run in runs:
        for flow, is_int8, count, converting in run.forms.flows:
            seconds = sum(run.attribution.tensors_s.get(name, 0.0) for name in flow.tensors)
            if count:
                seconds += surplus.get((run.name, flow.name), 0.0)
                mixed.append(((flow.name, is_int8), count, seconds, run.weight))
            elif converting:
                converted.append((flow.name, converting, seconds))
            else:
                pure.setdefault((flow.name, is_int8), []).append((seconds, run.weight))
    base = {key: _mean(values) for key, values in pure.items()}
    samples: dict[tuple[str, bool], _Weighted] = {}
    for key, count, seconds, weight in mixed:
        samples.setdefault(key, []).append(((seconds - base.get(key, 0.0)) / count, weight))
    rates = {is_int8: _rate(samples, elements, is_int8) for is_int8 in (False, True)}
    points = [(elements[name], (seconds - base.get((name, False), 0.0)) / count) for name, count, seconds in converted]
    conversion_s, conversion_rate = _line(points) if points else (0.0, 0.0)

    def cost(flow: Flow, is_int8: bool) -> float:
        fixed, per_element = rates[is_int8]
        values = samples.get((flow.name, is_int8), [])
        guess = fixed + per_element * elements[flow.name]
        # The general rate, weighted as a fraction of a sample, steadies flows with few samples.
        return _mean([*values, (guess, 0.05)])

    return tuple(
        Glue(
            flow.name,
            base.get((flow.name, False), 0.0),
            base.get((flow.name, True), 0.0),
            cost(flow, False),
            cost(flow, True),
            (conversion_s + conversion_rate * elements[flow.name]) * (tensors[flow.name].dtype == "float32"),
        )
        for flow in moving
    )


def _mean(values: _Weighted) -> float:
    return sum(value * weight for value, weight in values) / sum(weight for _, weight in values)


def _rate(
    samples: Mapping[tuple[str, bool], _Weighted], elements: Mapping[str, int], is_int8: bool
) -> tuple[float, float]:
    """Fixed seconds and seconds per element of a type change of what is written in int8, or in float."""
    return _line(
        [(elements[name], value) for (name, side), values in samples.items() if side == is_int8 for value, _ in values]
    )


def _line(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Fixed seconds and seconds per element, from pairs of elements and seconds: least squares, neither negative."""
    if len(points) < 2:
        return 0.0, points[0][1] / max(1, points[0][0]) if points else 0.0
    size, seconds = np.array([p[0] for p in points], float), np.array([p[1] for p in points])
    slope, fixed = np.polyfit(size, seconds, 1) if np.ptp(size) > 0 else (0.0, float(seconds.mean()))
    if fixed < 0:
        slope, fixed = float(size @ seconds / (size @ size)), 0.0
    if slope < 0:
        slope, fixed = 0.0, float(seconds.mean())
    return max(0.0, float(fixed)), max(0.0, float(slope))


def left_out(runs: Sequence[MeasuredRun], graph: Graph) -> dict[str, float]:
    """The seconds of each mixed run, predicted by a fit of the others."""
    runs, predicted = with_forms(runs, graph), {}
    for index, run in enumerate(runs):
        if run.mixed:
            (run_parts,) = parts(fit([*runs[:index], *runs[index + 1 :]], graph), [run])
            predicted[run.name] = sum(run_parts)
    return predicted
