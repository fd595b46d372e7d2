"""Workspaces whose components were built from a graph, without a plan."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import onnx

from taglio import artifact
from taglio.components.build import Manifest, State, write
from taglio.components.cut import Component
from taglio.data.dataset import Sample
from taglio.deploy.write import SAMPLES_FOLDER, Answered, write_samples
from taglio.flow.workspace import COMPONENTS, DEPLOY, SETUP
from taglio.lab.setup import Setup
from taglio.runtimes.onnxruntime import NAME
from taglio.runtimes.way import Way
from tests.models import parsed

SCALE = np.arange(1.0, 5.0, dtype=np.float32)


def product() -> onnx.ModelProto:
    """y = x · scale, of any number of rows; `index` has the largest column of each row."""
    return parsed("""(float[batch, 4] x) => (float[batch, 4] y, int64[batch] index) <float[4] scale = {1, 2, 3, 4}> {
        [mul] y = Mul (x, scale)
        [argmax] index = ArgMax <axis = 1, keepdims = 0> (y)
    }""")


def workspace(
    folder: Path,
    proto: onnx.ModelProto,
    states: Sequence[State] = (),
    shapes: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
    samples: Sequence[Sample] = (),
    way: Way = Way(1),  # noqa: B008 - a value
    runtime: str = NAME,
) -> Path:
    """`proto` as the built components of a workspace, planned for inputs of these `shapes`, to run in `way`, with
    `samples` in deploy/."""
    inputs, outputs = (tuple(value.name for value in values) for values in (proto.graph.input, proto.graph.output))
    part = Component("0-local", "local", ("all",), proto, inputs, outputs, shapes)
    manifest = Manifest("0" * 64, inputs, outputs, (), states=tuple(states))
    write(folder / COMPONENTS, manifest, [part], {"local": runtime})
    setup = Setup("m.onnx", {}, "d.npz", "", 0, way.threads, "all", spinning=way.spinning, runtime=runtime)
    setup = replace(setup, at_once=way.at_once, joined=way.joined)
    artifact.save(folder / f"{SETUP}.json", SETUP, "0" * 64, setup)
    if samples:
        write_samples(folder / DEPLOY / SAMPLES_FOLDER, [Answered(sample, {}) for sample in samples])
    return folder
