"""On the embedded model one session is every subset: float with all flags off, the quantised model with any on."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from taglio.error.measure import ErrorMeter
from taglio.error.parts import whole
from taglio.error.switchable import FormSwitch, Switchable, switchable_graph
from taglio.errors import BadData
from taglio.quantize.effective import effective
from taglio.quantize.precision import precisions, uncalibrated_forms
from taglio.quantize.scheme import DEFAULT_SCHEME
from taglio.runtimes.onnxruntime import SessionOptions
from tests.components.cases import CHOICES, INT8, Case, tiny
from tests.models import Sketch, residual

SAMPLES = 3


@pytest.fixture(scope="module")
def switchable(network: Case) -> Switchable:
    return Switchable(network.graph, network.builder, CHOICES, SessionOptions(1))


@pytest.fixture
def meter(network: Case, switchable: Switchable) -> ErrorMeter:
    return ErrorMeter(switchable, network.held_out.samples[:SAMPLES], whole(network.model.outputs))


def test_errors_do_not_depend_on_what_was_measured_before(network: Case, meter: ErrorMeter) -> None:
    chosen = network.every(3)
    before = meter.error(chosen)
    meter.error(network.all_int8())
    assert meter.error(chosen) == before and meter.error({}) == 0.0


def test_samples_that_the_float_model_cannot_take_are_refused(network: Case, switchable: Switchable) -> None:
    wrong = {"image": np.full((1, 1, 32, 32), np.nan, np.float32)}
    with pytest.raises(BadData, match="output logits of the float model is NaN or infinite on the data"):
        ErrorMeter(switchable, [network.held_out.samples[0], wrong], whole(network.model.outputs))


def test_an_output_that_is_a_constant_is_there(tmp_path: Path) -> None:
    proto = residual()
    proto.graph.initializer.append(numpy_helper.from_array(np.arange(3, dtype=np.float32), "version"))
    proto.graph.output.append(helper.make_tensor_value_info("version", TensorProto.FLOAT, [3]))
    case = tiny(proto, tmp_path)
    session = Switchable(case.graph, case.builder, CHOICES, SessionOptions(1))
    *_, constant = session.run({}, case.held_out.samples[0])
    assert constant.tolist() == [0, 1, 2]


def test_weights_that_several_blocks_read_are_held_once(tmp_path: Path) -> None:
    """As the steps of an unrolled LSTM do: a copy per step and form took gigabytes."""
    g = Sketch(2)
    x, matrix = g.input("x", 1, 160), g.weight(160, 160)
    for _ in range(8):
        x = g.op("Tanh", g.op("Gemm", x, matrix, g.constant(g.rng.normal(0, 0.1, 160)), transB=1))
    case = tiny(g.model(g.rename(x, "y")), tmp_path)
    narrow = uncalibrated_forms(reduced_range=True)["int8-dynamic"]
    forms = (*precisions(replace(DEFAULT_SCHEME, uncalibrated=("int8-weights",))), narrow)
    switches = [FormSwitch(b.name, p) for b in case.graph.blocks for p in forms[1:] if p.fits(b)]
    proto = switchable_graph(case.graph, case.builder, switches)
    assert proto.ByteSize() < 24 * 160 * 160  # of 58 with a copy for each of 8 steps

    session = Switchable(case.graph, case.builder, forms, SessionOptions(1))
    gemms = [block.name for block in case.graph.blocks if block.kind.startswith("Gemm")]
    several = {name: forms[1 + index % (len(forms) - 1)] for index, name in enumerate(gemms)}
    several = {name: form for name, form in several.items() if form.fits(case.graph.block(name))}
    several = effective(case.graph, several, INT8)
    for chosen in ({}, case.all_int8(), case.every(2), several):
        for sample in case.held_out.samples:
            (switched,), (whole,) = session.run(chosen, sample), case.whole(chosen, sample)
            np.testing.assert_allclose(switched, whole, rtol=0, atol=1e-5)
