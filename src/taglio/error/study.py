"""The error stage: measure every block alone, then random subsets, then fit. The measuring is the meter's."""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log

import numpy as np

from taglio.data import Dataset
from taglio.error.fit import Terms, fit_terms
from taglio.error.measure import ErrorMeter
from taglio.error.model import Alone, BlockNoise, EdgeNoise, ErrorModel, OutputModel, Subset
from taglio.graph import Flow, Graph, flows
from taglio.model import Model
from taglio.profile.result import reads, writes
from taglio.profile.stopwatch import Progress
from taglio.quantize.effective import effective
from taglio.quantize.precision import Assignment, Precision
from taglio.scheme import Scheme

# Share of a lone block's squared error that starts as its inputs' quantisation rather than its own.
_EDGE_SHARE = 0.3
_ANCHOR_SHARE = 0.5
# What was measured alone is exact for that subset, but says little about large ones.
_ALONE_WEIGHT = 0.5
_FOLDS = 6
# An output whose error never reached this share of the largest cannot break a bound.
_NEAR = 0.5
_TINY = 1e-9


@dataclass(frozen=True, slots=True)
class Budget:
    """How much to measure: seconds for the whole stage, and random subsets within it."""

    seconds: float = 45.0
    minimum_subsets: int = 32
    maximum_subsets: int = 160


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """Errors by output, shape [assignments, outputs], of lone blocks and of random subsets."""

    singles: list[dict[str, Precision]]
    single_errors: np.ndarray
    subsets: list[dict[str, Precision]]
    subset_errors: np.ndarray


@dataclass(frozen=True, slots=True)
class _Design:
    """Columns of the fit: own noise by (block, precision), then edge noise by (flow, reader)."""

    own: tuple[tuple[str, str], ...]
    edge: tuple[tuple[str, str], ...]
    flows: tuple[Flow, ...]

    def row(self, assignment: Assignment) -> np.ndarray:
        index = {key: i for i, key in enumerate((*self.own, *self.edge))}
        row = np.zeros(len(index))
        for block, precision in assignment.items():
            if (block, precision.name) in index:
                row[index[block, precision.name]] = 1.0
        for flow in self.flows:
            if not writes(assignment, flow.producer):
                for _, reader in flow.readers:
                    if reader and reads(assignment, reader) and (flow.name, reader) in index:
                        row[index[flow.name, reader]] = 1.0
        return row


def study(
    model: Model,
    graph: Graph,
    scheme: Scheme,
    precisions: Sequence[Precision],
    meter: ErrorMeter,
    held_out: Dataset,
    budget: Budget,
    *,
    confidence: float = 0.9,
    seed: int = 0,
    progress: Progress | None = None,
) -> ErrorModel:
    """Measure with `meter` and fit. Blocks alone come first; subsets fill the budget that is left."""
    start = time.perf_counter()
    whole = next(each for each in precisions if each.form == "whole")
    anchor = next((each for each in precisions if each.form == "anchor"), None)
    blocks = [block for block in graph.candidates() if not block.movement]
    if not blocks:  # nothing can be int8, so nothing changes the output
        return ErrorModel(
            model.sha256, held_out.sha256, scheme, "relative-l2", (), 0.0, confidence, meter.samples, 0, (), ()
        )
    singles: list[dict[str, Precision]] = [{block.name: whole} for block in blocks]
    single_errors = meter.table(singles, _step(progress, "each block alone"))
    each_s = (time.perf_counter() - start) / max(1, len(singles))
    soft = [block for block in blocks if anchor is not None and anchor.fits(block)]
    if anchor is not None and each_s * len(soft) < 0.3 * budget.seconds:
        extra: list[dict[str, Precision]] = [{block.name: anchor} for block in soft]
        single_errors = np.concatenate([single_errors, meter.table(extra, _step(progress, "each anchor alone"))])
        singles += extra
    left = budget.seconds - (time.perf_counter() - start)
    count = max(budget.minimum_subsets, min(budget.maximum_subsets, int(left / max(each_s, 1e-6))))
    subsets = random_subsets(graph, precisions, count, seed)
    subset_errors = meter.table(subsets, _step(progress, "random subsets"))
    measured = Measured(singles, single_errors, subsets, subset_errors)
    return fit_model(model, graph, scheme, precisions, measured, meter=meter, held_out=held_out, confidence=confidence)


def random_subsets(graph: Graph, precisions: Sequence[Precision], count: int, seed: int) -> list[dict[str, Precision]]:
    """Random assignments of every size: half with each block drawn alone, half in runs of neighbours."""
    rng = random.Random(seed + 1)
    whole = next(each for each in precisions if each.form == "whole")
    forms = [each for each in precisions if each.form != "float"]
    result: dict[tuple[tuple[str, str], ...], dict[str, Precision]] = {}
    for index in range(4 * count):  # empty and repeated ones teach nothing, and repeats would leak across folds
        if len(result) == count:
            break
        density = rng.uniform(0.03, 1.0)
        stay = 0.0 if index % 2 == 0 else 0.8
        assignment: dict[str, Precision] = {}
        current: Precision | None = None
        for block in graph.candidates():
            if block.movement:
                continue
            if rng.random() >= stay:
                current = rng.choice(forms) if rng.random() < density else None
            if current is not None:
                assignment[block.name] = current if current.fits(block) else whole
        drawn = effective(graph, assignment, whole)
        key = tuple((block, precision.name) for block, precision in drawn.items())
        if key:
            result.setdefault(key, drawn)
    return list(result.values())


def fit_model(
    model: Model,
    graph: Graph,
    scheme: Scheme,
    precisions: Sequence[Precision],
    measured: Measured,
    *,
    meter: ErrorMeter,
    held_out: Dataset,
    confidence: float,
) -> ErrorModel:
    """Terms of every output that matters, from what was measured; the interval by cross-validation."""
    alone = {
        (block, precision.name): row
        for single, row in zip(measured.singles, measured.single_errors, strict=True)
        for block, precision in single.items()
    }
    design = _design(graph, precisions)
    single_rows = np.array([design.row(single) for single in measured.singles]).reshape(len(alone), -1)
    rows = np.array([design.row(subset) for subset in measured.subsets])
    truth = measured.subset_errors.max(axis=1)
    everything = np.concatenate([measured.single_errors, measured.subset_errors])
    close = (everything >= _NEAR * np.maximum(everything.max(axis=1, keepdims=True), _TINY)).any(axis=0)
    outputs, guesses = [], []
    for index in np.flatnonzero(close):
        start = _start(design, precisions, {key: float(row[index]) for key, row in alone.items()})
        singles, subsets = measured.single_errors[:, index], measured.subset_errors[:, index]
        terms = _fit(single_rows, singles, rows, subsets, start)
        guesses.append(_cross_validate(single_rows, singles, rows, subsets, start))
        own, edge = terms.noise[: len(design.own)], terms.noise[len(design.own) :]
        outputs.append(
            OutputModel(
                meter.names[index],
                tuple(BlockNoise(block, name, float(v)) for (block, name), v in zip(design.own, own, strict=True)),
                tuple(EdgeNoise(flow, to, float(v)) for (flow, to), v in zip(design.edge, edge, strict=True)),
                terms.level,
                terms.exponent,
            )
        )
    predicted = np.max(guesses, axis=0) if guesses else np.zeros(len(truth))
    ratios = [log(e / p) for e, p in zip(truth, predicted, strict=True) if e > _TINY and p > _TINY]
    return ErrorModel(
        model.sha256,
        held_out.sha256,
        scheme,
        "relative-l2",
        tuple(outputs),
        _upper(ratios, confidence),
        confidence,
        meter.samples,
        len(alone) + len(measured.subsets),
        tuple(Alone(block, name, float(row.max())) for (block, name), row in alone.items()),
        tuple(
            Subset({block: precision.name for block, precision in subset.items()}, float(error), float(guess))
            for subset, error, guess in zip(measured.subsets, truth, predicted, strict=True)
        ),
    )


def _design(graph: Graph, precisions: Sequence[Precision]) -> _Design:
    moving = flows(graph)
    blocks = {block.name: block for block in graph.candidates() if not block.movement}
    own = [(name, p.name) for name, block in blocks.items() for p in precisions if p.scheme and p.fits(block)]
    edge = dict.fromkeys((flow.name, reader) for flow in moving for _, reader in flow.readers if reader in blocks)
    return _Design(tuple(own), tuple(edge), moving)


def _start(design: _Design, precisions: Sequence[Precision], alone: dict[tuple[str, str], float]) -> np.ndarray:
    """Starting noises: a lone block's squared error, shared between itself and what it reads."""
    whole = next(each.name for each in precisions if each.form == "whole")
    count: dict[str, int] = {}
    for _, reader in design.edge:
        count[reader] = count.get(reader, 0) + 1
    start = []
    for block, name in design.own:
        known = alone.get((block, name))
        square = known**2 if known is not None else _ANCHOR_SHARE * alone[block, whole] ** 2
        start.append(square * (1.0 - _EDGE_SHARE))
    start += [alone[reader, whole] ** 2 * _EDGE_SHARE / count[reader] for _, reader in design.edge]
    return np.array(start)


def _cross_validate(
    single_rows: np.ndarray, single_errors: np.ndarray, rows: np.ndarray, errors: np.ndarray, start: np.ndarray
) -> np.ndarray:
    predicted = np.zeros(len(errors))
    for fold in range(min(_FOLDS, len(errors))):
        out = np.arange(len(errors)) % _FOLDS == fold
        predicted[out] = _fit(single_rows, single_errors, rows[~out], errors[~out], start).predict(rows[out])
    return predicted


def _fit(
    single_rows: np.ndarray, single_errors: np.ndarray, rows: np.ndarray, errors: np.ndarray, start: np.ndarray
) -> Terms:
    weights = np.concatenate([np.full(len(single_errors), _ALONE_WEIGHT), np.ones(len(errors))])
    return fit_terms(np.concatenate([single_rows, rows]), np.concatenate([single_errors, errors]), start, weights)


def _upper(ratios: Sequence[float], confidence: float) -> float:
    """One-sided conformal quantile of log(measured / predicted), not below 0."""
    ordered = sorted(ratios)
    rank = min(len(ordered), ceil((len(ordered) + 1) * confidence))
    return max(0.0, ordered[rank - 1]) if ordered else log(2.0)


def _step(progress: Progress | None, what: str):  # type: ignore[no-untyped-def]
    return (lambda done, total: progress(what, done, total)) if progress else None
