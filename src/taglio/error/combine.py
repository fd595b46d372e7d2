"""Readings → an `ErrorModel`: a fit per output, cross-validation, the interval. Measures nothing."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite, log

import numpy as np

from taglio.conformal import conformal_quantile
from taglio.data.dataset import Dataset
from taglio.error.fit import Terms, fit_terms
from taglio.error.measure import ErrorMeter, ErrorReading
from taglio.error.model import Alone, BlockNoise, EdgeNoise, ErrorModel, OutputModel, Subset
from taglio.error.tally import finite
from taglio.error.terms import Design, starting_noises
from taglio.model.load import Model
from taglio.quantize.precision import Assignment, Precision
from taglio.quantize.scheme import Scheme

_FOLDS = 6
_TINY = 1e-9
# The log ratio of error to prediction that is assumed where it is unknown.
_UNKNOWN = log(2.0)


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """Readings of blocks alone (`singles`; groups of neighbours on a large network), and of subsets."""

    columns: Design
    precisions: tuple[Precision, ...]
    singles: Sequence[Assignment]
    single_readings: Sequence[ErrorReading]
    subsets: Sequence[Assignment]
    subset_readings: Sequence[ErrorReading]

    def alone(self) -> Iterator[tuple[tuple[str, str], ErrorReading, float]]:
        """Each (block, form) with its reading, and √n if n blocks share that."""
        for single, reading in zip(self.singles, self.single_readings, strict=True):
            for block, precision in single.items():
                yield (block, precision.name), reading, len(single) ** 0.5


@dataclass(frozen=True, slots=True, eq=False)
class Fitted:
    """`terms` by index of every output whose error may be the largest; `unseen` [subsets] is the L2 error of each
    subset, predicted by cross-validation."""

    terms: dict[int, Terms]
    unseen: np.ndarray


def fit_model(model: Model, scheme: Scheme, measured: Measured, *, meter: ErrorMeter, held_out: Dataset) -> ErrorModel:
    """The error model of `measured`: terms of every output that matters, and the interval by cross-validation."""
    columns, metric = measured.columns, meter.metric
    fitted = fit_outputs(measured)
    outputs = tuple(_output(meter.names[index], columns, terms) for index, terms in fitted.terms.items())
    truth = finite(np.array([float(reading.loss.max()) for reading in measured.subset_readings]))
    predicted, upper_log, upper_add = fitted.unseen, 0.0, 0.0
    steps: tuple[tuple[float, float], ...] = ()
    everything = [*measured.single_readings, *measured.subset_readings]
    if metric.smooth:
        pairs = zip(truth, predicted, strict=True)
        upper_log = _upper([log(error / guess) for error, guess in pairs if min(error, guess) > _TINY], _UNKNOWN)
    else:
        noises = [float(finite(reading.l2).max()) for reading in everything]
        losses = [float(finite(reading.loss).max()) for reading in everything]
        steps = monotone(noises, losses)
        predicted = np.interp(predicted, *np.transpose(steps))
        upper_add = _upper((truth - predicted).tolist(), 1.0)
    alone = {
        key: float(finite(reading.loss if metric.smooth else reading.l2).max()) / share
        for key, reading, share in measured.alone()
    }
    return ErrorModel(
        model_sha256=model.sha256,
        data_sha256=held_out.sha256,
        scheme=scheme,
        metric=metric,
        outputs=outputs,
        upper_log=upper_log,
        samples=meter.samples,
        evaluations=len(everything),
        alone=tuple(Alone(block, name, error) for (block, name), error in alone.items()),
        subsets=tuple(
            Subset({block: precision.name for block, precision in subset.items()}, float(error), float(guess))
            for subset, error, guess in zip(measured.subsets, truth, predicted, strict=True)
        ),
        upper_add=upper_add,
        steps=steps,
    )


def fit_outputs(measured: Measured) -> Fitted:
    """Fit every output whose L2 came near the largest, and cross-validate."""
    subsets = len(measured.subsets)
    everything = np.array([reading.l2 for reading in (*measured.single_readings, *measured.subset_readings)])
    if not len(everything):
        return Fitted({}, np.zeros(subsets))
    everything = finite(everything)
    largest = np.maximum(everything.max(axis=1, keepdims=True), _TINY)
    singles = len(measured.singles)
    rows = np.array([measured.columns.row(assignment) for assignment in (*measured.singles, *measured.subsets)])
    fold = np.concatenate([np.full(singles, -1), np.arange(subsets) % _FOLDS])
    terms: dict[int, Terms] = {}
    guesses = np.zeros(subsets)
    for output in _worst(everything / largest):
        start = _start(measured, int(output))
        errors = everything[:, output]
        terms[int(output)] = fit_terms(rows, errors, start)
        for held_out in range(_FOLDS):
            seen, out = fold != held_out, fold == held_out
            if out.any():
                guess = fit_terms(rows[seen], errors[seen], start).predict(rows[out])
                guesses[out[singles:]] = np.maximum(guesses[out[singles:]], guess)
    return Fitted(terms, guesses)


def _worst(shares: np.ndarray) -> np.ndarray:
    """The outputs to model, in order, from their errors as shares of the largest, [readings, outputs].

    An output whose error never reached half of the largest gets no model: it cannot break a limit. If more than eight
    did, those that most often had the largest error get one: plans are measured on all outputs.
    """
    near = np.flatnonzero((shares >= 0.5).any(axis=0))
    ahead = (shares[:, near] >= 1.0).sum(axis=0) + shares[:, near].mean(axis=0)
    return np.sort(near[np.argsort(-ahead, kind="stable")[:8]])


def _start(measured: Measured, output: int) -> np.ndarray:
    alone = {key: float(finite(reading.l2[output]) / share) for key, reading, share in measured.alone()}
    return starting_noises(measured.columns, measured.precisions, alone)


def _output(name: str, columns: Design, terms: Terms) -> OutputModel:
    own, edge = terms.noise[: len(columns.own)], terms.noise[len(columns.own) :]
    return OutputModel(
        name,
        tuple(BlockNoise(block, form, float(value)) for (block, form), value in zip(columns.own, own, strict=True)),
        tuple(EdgeNoise(flow, reader, float(value)) for (flow, reader), value in zip(columns.edge, edge, strict=True)),
        terms.level,
        terms.exponent,
    )


def monotone(noises: Sequence[float], losses: Sequence[float]) -> tuple[tuple[float, float], ...]:
    """The link from L2 noise to the loss of a metric that moves in steps: knots (noise, loss), both rising, of the
    isotonic regression of `losses` on `noises` (pool adjacent violators).

    Between knots the link is linear; the first knot is (0, 0), the float model.
    """
    pools: list[tuple[float, float, float, float]] = []  # loss, weight, lowest noise, highest noise
    for index in np.argsort(noises, kind="stable"):
        pools.append((float(losses[index]), 1.0, float(noises[index]), float(noises[index])))
        while len(pools) > 1 and pools[-2][0] >= pools[-1][0]:
            above, more, _, high = pools.pop()
            loss, weight, low, _ = pools.pop()
            pools.append(((loss * weight + above * more) / (weight + more), weight + more, low, high))
    knots = [(0.0, 0.0)]
    for loss, _, low, high in pools:
        for noise in (low, high):
            if noise > knots[-1][0]:
                knots.append((noise, max(loss, knots[-1][1])))
    return tuple(knots)


def _upper(misses: Sequence[float], unknown: float) -> float:
    """An upper limit, at least 0, for nine of ten new misses (measured minus predicted); `unknown` without any."""
    upper = conformal_quantile(misses)
    return max(0.0, upper) if isfinite(upper) else unknown
