"""The link between a sum of noises and an error, by hand."""

from dataclasses import replace
from math import exp, inf

import pytest

from taglio.error.loss import RELATIVE
from taglio.error.model import BlockNoise, ErrorModel, OutputModel, Subset
from taglio.error.tally import RUINED, PartLoss
from taglio.quantize.scheme import DEFAULT_SCHEME
from tests.plan.made_up import INT8, Sketch


def model(*outputs: OutputModel, upper_log: float = 0.0) -> ErrorModel:
    return ErrorModel("model", "data", DEFAULT_SCHEME, RELATIVE, outputs, upper_log, 1, 1, (), ())


@pytest.mark.parametrize("exponent", [0.3, 0.8, 1.0, 1.5])
@pytest.mark.parametrize("level", [-2.0, 0.0, 1.0])
def test_a_bound_on_error_is_a_bound_on_noise(level: float, exponent: float) -> None:
    output = OutputModel("y", (), (), level, exponent)
    for error in (1e-6, 0.01, 1.0, 30.0):
        limit = output.noise_limit(error)
        assert output.from_noise(limit) == pytest.approx(error)
        assert output.from_noise(0.99 * limit) < error < output.from_noise(1.01 * limit)
    assert output.from_noise(1.0) == pytest.approx(exp(level))


def test_no_noise_is_no_error_and_bounds_beyond_numbers_stay_numbers() -> None:
    output = OutputModel("y", (), (), 0.5, 0.3)
    assert output.from_noise(0.0) == 0.0 == output.noise_limit(0.0)
    assert 0.0 <= output.noise_limit(1e-300) < 1e-300
    assert 1e300 < output.noise_limit(1e200) < inf and 1e300 < output.noise_limit(inf) < inf


def test_the_error_is_the_largest_over_outputs_and_the_upper_end_a_factor() -> None:
    sketch = Sketch()
    sketch.conv(sketch.input("x"))
    graph = sketch.graph()
    small, large = (
        OutputModel(name, (BlockNoise("conv0", "int8", n),), (), 0.0, 1.0) for name, n in (("a", 1.0), ("b", 9.0))
    )
    both = model(small, large, upper_log=0.5)
    assert both.predict(graph, {"conv0": INT8}) == pytest.approx(3.0)
    assert both.upper(3.0) == pytest.approx(3.0 * exp(0.5))
    assert model().predict(graph, {"conv0": INT8}) == 0.0


def test_no_prediction_is_larger_than_what_was_measured() -> None:
    """The sum of all blocks predicted 10,061 % where all of them in int8 had 150 %."""
    sketch = Sketch()
    sketch.conv(sketch.input("x"))
    graph = sketch.graph()
    far = model(OutputModel("y", (BlockNoise("conv0", "int8", 1e4),), (), 0.0, 1.0))
    assert far.predict(graph, {"conv0": INT8}) == pytest.approx(100.0)
    measured = replace(far, subsets=(Subset({}, RUINED, 2.0), Subset({}, 0.2, 0.2)), parts=(PartLoss("y", 1.5),))
    assert measured.predict(graph, {"conv0": INT8}) == 1.5
    assert replace(measured, parts=()).predict(graph, {"conv0": INT8}) == 0.2
