"""What was measured becomes a model: also where a block ruins the output, and where outputs differ."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from taglio.error.combine import Measured, fit_outputs, monotone
from taglio.error.measure import ErrorReading
from taglio.error.terms import design
from taglio.quantize.precision import Assignment, Precision
from tests.error.test_model import model
from tests.plan.made_up import ANCHOR, INT8, Sketch

BLOCKS = 6


def world(outputs: int = 1, ruined: Sequence[str] = ()) -> Measured:
    """A chain of blocks whose differences are vectors; a block in `ruined` makes everything NaN."""
    sketch = Sketch()
    tensor = sketch.input("x")
    for _ in range(BLOCKS):
        tensor = sketch.conv(tensor)
    graph = sketch.graph()
    columns = design(graph, (INT8, ANCHOR))
    rng = np.random.default_rng(0)
    own = {block: rng.standard_normal((outputs, 400)) * 10 ** rng.uniform(-3, -2) for block, _ in columns.own}
    edge = {flow: 0.3 * rng.standard_normal((outputs, 400)) * 1e-3 for flow, _ in columns.edge}

    def read(assignment: Assignment) -> ErrorReading:
        row = columns.row(assignment)
        vector = np.zeros((outputs, 400))
        for value, (block, _) in zip(row, columns.own):
            vector += value * own[block]
        for value, (flow, _) in zip(row[len(columns.own) :], columns.edge):
            vector += value * edge[flow]
        l2 = np.linalg.norm(vector, axis=1)
        if set(assignment) & set(ruined):
            l2 = np.full(outputs, np.inf)
        return ErrorReading(l2, l2)

    names = [block for block, _ in columns.own]
    singles: list[Assignment] = [{name: INT8} for name in names]
    subsets: list[dict[str, Precision]] = []
    while len(subsets) < 40:
        chosen: dict[str, Precision] = {name: INT8 for name in names if rng.random() < rng.random()}
        if chosen:
            subsets.append(chosen)
    readings, subset_readings = [read(single) for single in singles], [read(subset) for subset in subsets]
    return Measured(columns, (INT8, ANCHOR), singles, readings, subsets, subset_readings)


@pytest.mark.parametrize("outputs", [1, 3])
def test_unseen_subsets_of_a_world_of_vectors_are_predicted(outputs: int) -> None:
    measured = world(outputs)
    truth = np.array([reading.l2.max() for reading in measured.subset_readings])
    assert np.median(np.abs(fit_outputs(measured).unseen / truth - 1.0)) < 0.05


def test_a_block_that_ruins_the_output_is_never_predicted_to_be_harmless() -> None:
    measured = world(ruined=["conv2"])
    terms = fit_outputs(measured).terms[0]
    rows = np.array([measured.columns.row(subset) for subset in measured.subsets])
    predicted = terms.predict(rows)
    ruined = np.array(["conv2" in subset for subset in measured.subsets])
    assert np.isfinite(predicted).all()
    assert predicted[ruined].min() > 1.0 > predicted[~ruined].max()


def test_of_many_outputs_those_with_the_largest_errors_are_fitted() -> None:
    """A fit per output would take minutes for a hundred heads."""
    few, many = world(6), world(40)
    assert len(fit_outputs(few).terms) <= 6
    fitted = fit_outputs(many)
    truth = np.array([reading.l2.max() for reading in many.subset_readings])
    worst = {int(reading.l2.argmax()) for reading in many.subset_readings}
    assert len(fitted.terms) == 8
    assert len(worst & set(fitted.terms)) >= min(len(worst), 6)
    assert np.median(np.abs(fitted.unseen / truth - 1.0)) < 0.1


def test_any_measurements_give_a_rising_link() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        knots = monotone([*rng.random(30)], [*rng.integers(0, 4, 30) / 4])
        noises, losses = zip(*knots, strict=True)
        assert (np.diff(noises) > 0).all() and (np.diff(losses) >= 0).all() and knots[0] == (0.0, 0.0)


def test_a_bound_on_the_loss_is_a_bound_on_the_noise() -> None:
    stepped = replace(model(), steps=((0.0, 0.0), (0.1, 0.0), (0.2, 0.5)), upper_add=0.1)
    # 0.25 less the margin of 0.1 is reached at 0.13.
    assert stepped.noise_target(0.25) == pytest.approx(0.13, rel=0.02)
    assert stepped.after_steps(stepped.noise_target(0.25)) + stepped.upper_add <= 0.25
    # The margin alone is more than the bound: what is predicted to hold is tried, and measured.
    assert stepped.after_steps(stepped.noise_target(0.05)) <= 0.05
    assert model(upper_log=0.5).noise_target(2.0) == pytest.approx(2.0 / np.exp(0.5))
