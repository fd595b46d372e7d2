"""Several int8 schemes, and tensors quantised for the wire alone, on one switchable graph."""

import random

import numpy as np
import pytest

from taglio.error.switchable import Switchable, quantizable_flows
from taglio.errors import BadOption
from taglio.quantize.precision import FLOAT32, Assignment, Precision
from taglio.quantize.scheme import DEFAULT_SCHEME, parse_scheme
from taglio.runtimes.onnxruntime import SessionOptions
from tests.components.cases import ANCHOR, INT8, Case, digits, outputs

SYMMETRIC = Precision("int8-sym", parse_scheme("qdq-u8s8-sym-pt"), "whole")
FORMS = (FLOAT32, INT8, ANCHOR, SYMMETRIC)


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


def test_mixed_schemes_and_wires_are_the_model_built_so(
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
