"""From a few dozen measured subsets of the embedded model to the error of any: ranked right, and covered as told."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from taglio.error.combine import Measured, fit_model
from taglio.error.measure import ErrorMeter
from taglio.error.model import ErrorModel
from taglio.error.parts import whole
from taglio.error.study import StudyBudget, measure, random_subsets
from taglio.error.switchable import Switchable
from taglio.quantize.effective import effective
from taglio.quantize.precision import Precision
from taglio.quantize.scheme import DEFAULT_SCHEME
from taglio.runtimes.onnxruntime import SessionOptions
from tests.components.cases import CHOICES, INT8, Case, tiny
from tests.models import Sketch, two_in_two_out

BUDGET = StudyBudget(seconds=0.0, minimum_subsets=48, maximum_subsets=48)


def metered(case: Case, samples: int) -> ErrorMeter:
    switchable = Switchable(case.graph, case.builder, CHOICES, SessionOptions(1))
    return ErrorMeter(switchable, case.held_out.samples[:samples], whole(case.model.outputs))


def fitted(case: Case, meter: ErrorMeter, study: Measured) -> ErrorModel:
    return fit_model(case.model, DEFAULT_SCHEME, study, meter=meter, held_out=case.held_out)


def studied(case: Case, meter: ErrorMeter, budget: StudyBudget) -> ErrorModel:
    return fitted(case, meter, measure(case.graph, CHOICES, meter, budget))


@pytest.fixture(scope="module")
def meter(network: Case) -> ErrorMeter:
    return metered(network, 6)


@pytest.fixture(scope="module")
def study(network: Case, meter: ErrorMeter) -> Measured:
    return measure(network.graph, CHOICES, meter, BUDGET)


@pytest.fixture(scope="module")
def model(network: Case, meter: ErrorMeter, study: Measured) -> ErrorModel:
    return fitted(network, meter, study)


@pytest.fixture(scope="module")
def unseen(network: Case, model: ErrorModel) -> list[dict[str, Precision]]:
    """30 subsets of every size that the study did not measure."""
    measured = [subset.assignment for subset in model.subsets]
    drawn = random_subsets(network.graph, CHOICES, 40, seed=1000)
    fresh = [subset for subset in drawn if subset and {n: p.name for n, p in subset.items()} not in measured]
    return fresh[:30]


def ranks(values: Sequence[float]) -> np.ndarray:
    return np.argsort(np.argsort(values)).astype(float)


def test_unseen_subsets_are_ranked_and_covered(
    network: Case, meter: ErrorMeter, model: ErrorModel, unseen: list[dict[str, Precision]]
) -> None:
    measured = [meter.error(subset) for subset in unseen]
    predicted = [model.predict(network.graph, subset) for subset in unseen]
    assert len(unseen) == 30

    # Spearman's rank correlation
    assert np.corrcoef(ranks(predicted), ranks(measured))[0, 1] > 0.85
    assert np.median(np.abs(np.log(np.divide(predicted, measured)))) < 0.25
    covered = [error <= model.upper(guess) for error, guess in zip(measured, predicted)]
    assert np.mean(covered) >= 0.75
    assert 1.0 <= model.upper(1.0) < 2.0


def test_the_held_back_predictions_are_not_the_fits_own(network: Case, model: ErrorModel) -> None:
    """What is written beside each measured subset comes from a fit without it, or the interval would flatter."""
    subsets = [subset for subset in model.subsets if subset.error > 0.0]
    own = [model.predict(network.graph, {b: named(p) for b, p in subset.assignment.items()}) for subset in subsets]
    honest = [subset.predicted for subset in subsets]
    truth = [subset.error for subset in subsets]
    assert np.mean(np.abs(np.log(np.divide(own, truth)))) < np.mean(np.abs(np.log(np.divide(honest, truth))))


def named(name: str) -> Precision:
    return next(form for form in CHOICES if form.name == name)


def test_random_subsets_are_of_every_size_repeatable_and_as_they_will_run(network: Case) -> None:
    subsets = random_subsets(network.graph, CHOICES, 60, seed=3)
    assert subsets == random_subsets(network.graph, CHOICES, 60, seed=3)
    assert subsets != random_subsets(network.graph, CHOICES, 60, seed=4)
    sizes = [len(subset) for subset in subsets]
    count = len(network.graph.candidates())
    assert min(sizes) < 0.2 * count and max(sizes) > 0.7 * count
    assert {p.name for subset in subsets for p in subset.values()} == {"int8", "int8-anchor"}
    for subset in subsets:
        assert effective(network.graph, subset, INT8) == subset
        assert all(p.fits(network.graph.block(name)) for name, p in subset.items())


def test_no_measurement_is_spent_on_nothing_or_on_what_is_known(model: ErrorModel) -> None:
    drawn = [tuple(sorted(subset.assignment.items())) for subset in model.subsets]
    assert () not in drawn and len(set(drawn)) == len(drawn)


def test_every_output_that_may_be_the_largest_has_its_own_terms(tmp_path: Path) -> None:
    case = tiny(two_in_two_out(), tmp_path)
    meter = metered(case, 3)
    model = studied(case, meter, StudyBudget(0.0, 24, 24))
    assert {each.output for each in model.outputs} <= {"middle", "end"}
    # Nothing behind an output can change it.
    for output in model.outputs:
        if output.output == "middle":
            assert output.from_noise(output.noise(case.graph, {"conv6": INT8})) < 1e-4
    # Few blocks have few subsets: they are all measured many times over, and known.
    errors = [(each.error, each.predicted) for each in model.subsets if each.error > 0.0]
    assert np.median([abs(np.log(guess / error)) for error, guess in errors]) < 0.25


def test_a_model_without_candidates_has_no_error(tmp_path: Path) -> None:
    g = Sketch(13)
    case = tiny(g.model(g.op("Exp", g.op("Softmax", g.input("x", 1, 8)))), tmp_path)
    model = studied(case, metered(case, 2), StudyBudget(0.0, 2, 2))
    assert model.outputs == () and model.predict(case.graph, {}) == 0.0
