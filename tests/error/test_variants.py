"""At full strength: several int8 schemes, float16, tensors quantised for the wire alone, several inputs at once."""

import random

import numpy as np
import onnx
import pytest

from taglio.error.batch import with_free_batch
from taglio.error.measure import ErrorMeter
from taglio.error.switchable import Switchable, quantizable_flows
from taglio.errors import BadOption, CannotQuantize
from taglio.model.graph import build
from taglio.quantize.library import float16
from taglio.quantize.precision import FLOAT16, FLOAT32, Assignment, Precision
from taglio.quantize.qdq import QdqBuilder
from taglio.quantize.scheme import DEFAULT_SCHEME, parse_scheme
from taglio.runtimes.onnxruntime import SessionOptions, open_session, providers_for
from tests.components.cases import ANCHOR, INT8, Case, digits, outputs
from tests.models import Sketch, loaded

SYMMETRIC = Precision("int8-sym", parse_scheme("qdq-u8s8-sym-pt"), "whole")
FORMS = (FLOAT32, INT8, ANCHOR, SYMMETRIC, FLOAT16)


@pytest.fixture(scope="module")
def network() -> Case:
    return digits()


@pytest.fixture(scope="module")
def wires(network: Case) -> tuple[str, ...]:
    return quantizable_flows(network.graph)


@pytest.fixture(scope="module")
def switchable(network: Case, wires: tuple[str, ...]) -> Switchable:
    schemes = dict.fromkeys(wires, DEFAULT_SCHEME)
    return Switchable(network.model, network.graph, network.builder, FORMS, SessionOptions(1), wires=schemes)


def distance(network: Case, switchable: Switchable, assignment: Assignment, travelling: list[str]) -> float:
    """Between the switchable graph and the model built so, relative to the float outputs."""
    sample = network.held_out.samples[0]
    readers = [(name, block.name) for block in network.graph.blocks for name in block.inputs if name in travelling]
    readers += [(name, "") for name in network.graph.outputs if name in travelling]
    built = network.builder.build(assignment, dict.fromkeys(readers, DEFAULT_SCHEME))
    (wanted,) = outputs(built, sample, network.model.outputs)
    (found,) = switchable.run(assignment, sample, travelling)
    (plain,) = switchable.run({}, sample)
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(plain))


def test_mixed_schemes_float16_and_wires_are_the_model_built_so(
    network: Case, switchable: Switchable, wires: tuple[str, ...]
) -> None:
    rng = random.Random(0)
    able = [block for block in network.graph.candidates() if not block.movement]
    sample = network.held_out.samples[0]
    (plain,) = switchable.run({}, sample)
    distances = []
    for travelling in ([], *([name for name in wires if rng.random() < 0.3] for _ in range(5))):
        chosen: dict[str, Precision] = {}
        for block in able:
            if rng.random() < 0.7:
                chosen[block.name] = rng.choice([each for each in FORMS[1:] if each.fits(block)])
        (found,) = switchable.run(chosen, sample, travelling)
        change = float(np.linalg.norm(found - plain) / np.linalg.norm(plain))
        distances.append(distance(network, switchable, chosen, travelling))
        assert distances[-1] < 2.0 * change
    # Float kernels may differ in the last bit, and where that bit decides a rounding, all later rounding is drawn anew:
    # seldom, and then it is another draw of the same noise.
    assert np.median(distances) < 1e-4


def test_a_tensor_may_travel_as_int8_between_float_blocks(
    network: Case, switchable: Switchable, wires: tuple[str, ...]
) -> None:
    sample = network.held_out.samples[0]
    (plain,) = switchable.run({}, sample)
    for name in wires[::6]:
        (found,) = switchable.run({}, sample, [name])
        assert 0.0 < np.linalg.norm(found - plain) < 0.05 * np.linalg.norm(plain)
        assert distance(network, switchable, {}, [name]) < 1e-5
    with pytest.raises(BadOption, match="tensor nothing has no wire switch"):
        switchable.run({}, sample, ["nothing"])


def test_float16_is_what_onnx_runtimes_converter_makes(network: Case, switchable: Switchable) -> None:
    able = [block.name for block in network.graph.candidates() if FLOAT16.fits(block)][:8]
    sample = network.held_out.samples[0]
    (wanted,) = outputs(float16(network.model, network.graph, able), sample, network.model.outputs)
    (found,) = switchable.run(dict.fromkeys(able, FLOAT16), sample)
    (plain,) = switchable.run({}, sample)
    change = float(np.linalg.norm(wanted - plain))
    assert change > 0.0 and np.linalg.norm(found - wanted) < 0.05 * change


def test_a_weight_beyond_float16_is_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    g = Sketch(13)
    proto = g.model(g.op("MatMul", g.input("x", 1, 4), g.constant(np.full((4, 2), 1e5, np.float32))))
    model = loaded(proto, tmp_path_factory.mktemp("large"))
    graph = build(model)
    (block,) = [each.name for each in graph.candidates()]
    with pytest.raises(CannotQuantize, match=r"reaches 1e\+05, float16 ends at 65504"):
        QdqBuilder(model, graph, {}).build({block: FLOAT16})


def test_several_inputs_at_once_answer_as_one_by_one(network: Case) -> None:
    together = network.held_out.samples[:4]
    schemes = dict.fromkeys(quantizable_flows(network.graph), DEFAULT_SCHEME)
    batched = Switchable(
        network.model, network.graph, network.builder, FORMS[:3], SessionOptions(1), wires=schemes, together=together
    )
    assert batched.at_once in (1, 4)  # which is faster is for the clock to say
    feeds = network.held_out.samples[:7]
    for chosen in ({}, network.every(2)):
        for feed, found in zip(feeds, batched.run_all(chosen, feeds), strict=True):
            np.testing.assert_allclose(found[0], batched.run(chosen, feed)[0], rtol=1e-3, atol=1e-4)
    meter = ErrorMeter(batched, feeds, network.model.outputs)
    assert meter.error(network.every(2)) > 0.0 == meter.error({})


def test_a_free_batch_changes_no_answer(network: Case) -> None:
    proto = with_free_batch(network.model.proto)
    assert proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    session = open_session(proto, SessionOptions(1))
    samples = network.held_out.samples[:3]
    (stacked,) = session.run(None, {"image": np.concatenate([each["image"] for each in samples])})
    for row, sample in zip(stacked, samples, strict=True):
        np.testing.assert_allclose(
            row, outputs(network.model.proto, sample, network.model.outputs)[0][0], rtol=1e-3, atol=1e-4
        )
    onnx.checker.check_model(proto)


def test_the_cpu_is_always_there_and_a_gpu_that_is_not_is_said() -> None:
    assert providers_for("cpu") == ("CPUExecutionProvider",)
    assert providers_for("auto")[-1] == "CPUExecutionProvider"
    if "CUDAExecutionProvider" not in providers_for("auto"):
        with pytest.raises(BadOption, match=r"this ONNX Runtime offers .*CPU.*: install onnxruntime-gpu"):
            providers_for("cuda")
