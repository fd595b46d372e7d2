"""Several forms, and tensors quantised for the wire alone, on one switchable graph."""

import random

import numpy as np
import pytest

from taglio.error.switchable import Switchable, quantizable_flows
from taglio.errors import BadOption
from taglio.quantize.precision import FLOAT32, Precision
from taglio.quantize.scheme import DEFAULT_SCHEME
from taglio.runtimes.onnxruntime import SessionOptions
from tests.components.cases import ANCHOR, INT8, digits, outputs

FORMS = (FLOAT32, INT8, ANCHOR)


def test_mixed_forms_and_wires_are_the_model_built_so() -> None:
    network, rng = digits(), random.Random(0)
    graph, sample, names = network.graph, network.held_out.samples[0], network.model.outputs
    wires = dict.fromkeys(quantizable_flows(graph), DEFAULT_SCHEME)
    switchable = Switchable(graph, network.builder, FORMS, SessionOptions(1), wires=wires)
    (plain,) = switchable.run({}, sample)
    distances = []
    for travelling in ([], *([name for name in wires if rng.random() < 0.3] for _ in range(5))):
        chosen: dict[str, Precision] = {}
        for block in graph.candidates():
            if not block.movement and rng.random() < 0.7:
                chosen[block.name] = rng.choice([form for form in FORMS[1:] if form.fits(block)])
        readers = [(name, block.name) for block in graph.blocks for name in block.inputs if name in travelling]
        readers += [(name, "") for name in graph.outputs if name in travelling]
        (built,) = outputs(network.builder.build(chosen, dict.fromkeys(readers, DEFAULT_SCHEME)), sample, names)
        (switched,) = switchable.run(chosen, sample, travelling)
        distances.append(float(np.linalg.norm(switched - built) / np.linalg.norm(plain)))
        assert distances[-1] < 2.0 * float(np.linalg.norm(switched - plain) / np.linalg.norm(plain))
    # Float kernels may differ in the last bit, and where that bit decides a rounding, all later rounding is drawn anew:
    # seldom, and then it is another draw of the same noise.
    assert np.median(distances) < 1e-4
    with pytest.raises(BadOption, match="tensor nothing has no wire switch"):
        switchable.run({}, sample, ["nothing"])
