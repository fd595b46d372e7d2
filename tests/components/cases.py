"""Models opened for cutting: blocks, a builder of quantised models, and samples to run them on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import onnx

from taglio.components.build import Manifest, write
from taglio.components.cut import INT8 as AS_INT8
from taglio.components.cut import Component, Wires
from taglio.components.prove import TOLERANCE, Proof, prove
from taglio.data.dataset import Dataset, split
from taglio.data.files import load
from taglio.embedded import digits_data
from taglio.model.graph import Graph, build
from taglio.model.load import Model
from taglio.model.load import load as load_model
from taglio.quantize.effective import effective
from taglio.quantize.precision import Assignment, Precision, precisions
from taglio.quantize.qdq import QdqBuilder
from taglio.quantize.ranges import calibrate
from taglio.quantize.scheme import DEFAULT_SCHEME
from taglio.runtimes.onnxruntime import SessionOptions, open_session
from tests.models import digits_model, feeds, loaded

CHOICES = precisions(DEFAULT_SCHEME)
FLOAT, INT8, ANCHOR = CHOICES


@dataclass(frozen=True)
class Case:
    """One model with all that a quantised build of it needs; `held_out` was not used for calibration."""

    model: Model
    graph: Graph
    builder: QdqBuilder
    held_out: Dataset

    def all_int8(self) -> dict[str, Precision]:
        return effective(self.graph, {block.name: INT8 for block in self.graph.candidates()}, INT8)

    def every(self, step: int, start: int = 0) -> dict[str, Precision]:
        """Each `step`-th block that computes, in int8."""
        able = [block.name for block in self.graph.candidates() if not block.movement]
        return effective(self.graph, dict.fromkeys(able[start::step], INT8), INT8)

    def wires(self, assignment: Assignment, devices: Mapping[str, str]) -> Wires:
        """What int8 blocks write travels as int8, all else in float."""
        int8 = {block for block, form in assignment.items() if form.int8_output}
        copies = {
            (tensor.name, devices[reader]): frozenset({AS_INT8})
            for tensor in self.graph.tensors
            if tensor.producer in int8
            for reader in tensor.consumers
        }
        return Wires("", copies)

    def whole(self, assignment: Assignment, sample: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Outputs of the whole quantised model in a session of its own."""
        return outputs(self.builder.build(assignment), sample, self.model.outputs)

    def written(self, parts: Sequence[Component], folder: Path) -> Manifest:
        """The components as files."""
        inputs = tuple(spec.name for spec in self.model.inputs)
        return write(folder, Manifest(self.model.sha256, inputs, self.model.outputs, ()), parts)

    def proven(self, parts: Sequence[Component], whole: onnx.ModelProto, folder: Path, samples: int = 2) -> Proof:
        """What running the components one after another shows beside the whole model: no difference but rounding."""
        proof = prove(folder, self.written(parts, folder), whole, self.held_out.samples[:samples])
        assert proof.distance <= TOLERANCE
        return proof


def outputs(proto: onnx.ModelProto, sample: Mapping[str, np.ndarray], names: tuple[str, ...]) -> list[np.ndarray]:
    answers: list[np.ndarray] = open_session(proto, SessionOptions(1)).run(list(names), dict(sample))
    return answers


@cache
def digits() -> Case:
    """The embedded model."""
    model = load_model(digits_model())
    parts = split(load(digits_data(), model.inputs), max_calibration=16, max_held_out=16)
    return _case(model, parts.calibration, parts.held_out)


def tiny(proto: onnx.ModelProto, folder: Path) -> Case:
    """A model of tests/models.py, with random samples."""
    return _tiny(loaded(proto, folder))


@cache  # models are equal where they are the same object
def _tiny(model: Model) -> Case:
    return _case(model, feeds(model, 4), feeds(model, 3, seed=1))


def _case(model: Model, calibration: Dataset, held_out: Dataset) -> Case:
    graph = build(model)
    ranges = calibrate(model, calibration)
    return Case(model, graph, QdqBuilder(model, graph, ranges), held_out)
