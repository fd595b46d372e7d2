"""Whether requests of a model may share a batch, tried on samples. Queues nothing."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx

from taglio.components.build import Manifest
from taglio.data.dataset import chosen, shapes_of, typical
from taglio.data.files import load
from taglio.data.preprocess import parse_preprocess
from taglio.data.processor import Beside, files_beside
from taglio.data.spec import InputSpec, Shape
from taglio.errors import TaglioError
from taglio.lab.setup import Setup
from taglio.model.inputs import random_feed
from taglio.model.inputs import spec_of as declared
from taglio.model.rows import why_rows_mix
from taglio.runtimes.way import Way

Feed = Mapping[str, np.ndarray]
# Samples that batches are made of, and samples to choose them from: all have one shape.
_TRIED, _READ = 4, 16
# The most rows of a batch if the way of running does not say.
ROWS = 8


def most_rows(way: Way) -> int:
    """The most rows of a batch. A way of one run at a time and one item in it was chosen for latency, and says nothing
    of requests that wait: to join them keeps none waiting for longer."""
    return ROWS if way.at_once == way.joined == 1 else way.joined


def why_alone(
    components: Path,
    manifest: Manifest,
    setup: Setup,
    inputs: Sequence[InputSpec],
    run: Callable[[Feed], Feed],
    some: Sequence[Feed],
) -> str:
    """Why requests must not be joined, in one line; "" if they may be. `inputs` are as the files declare them; `run`
    answers a feed. `some` samples are tried where the data that the workspace was made with cannot be read."""
    if manifest.states:
        return "it keeps a state from step to step"
    models = [onnx.load(components / piece.file, load_external_data=False) for piece in manifest.pieces]
    return why_rows_mix(models, inputs, _samples(manifest, setup, inputs, some), run)


def constant_inputs(samples: Sequence[Feed]) -> Feed:
    """The inputs that are the same in all of several samples, such as a sampling rate: random values rarely fit."""
    first, *others = samples or ({},)
    return {
        name: value
        for name, value in first.items()
        if others and all(np.array_equal(value, other[name]) for other in others)
    }


def interface(components: Path, manifest: Manifest) -> tuple[list[InputSpec], list[InputSpec]]:
    """The inputs and the outputs of a built model as its files declare them."""
    inputs: dict[str, InputSpec] = {}
    outputs: dict[str, InputSpec] = {}
    for piece in manifest.pieces:
        graph = onnx.load(components / piece.file, load_external_data=False).graph
        inputs = {value.name: declared(value) for value in graph.input} | inputs
        outputs |= {value.name: declared(value) for value in graph.output}
    known = {**inputs, **outputs}
    return [inputs[name] for name in manifest.inputs], [known[name] for name in manifest.outputs]


def batched_inputs(inputs: Sequence[InputSpec], planned: Mapping[str, Shape], *, joined: bool) -> tuple[str, ...]:
    """The inputs of which every request has equally many rows: those whose first dimensions have one name, and where
    requests are `joined`, no name is that name. None where the `planned` shapes contradict it."""
    free = {spec.name: spec.shape[0] for spec in inputs if spec.shape and not isinstance(spec.shape[0], int)}
    batch = next((dim for dim in free.values() if dim), None)
    names = tuple(name for name, dim in free.items() if (dim == batch if dim else joined))
    rows = {planned[name][0] for name in names if planned.get(name)}
    return names if len(rows) <= 1 else ()


def _samples(manifest: Manifest, setup: Setup, inputs: Sequence[InputSpec], some: Sequence[Feed]) -> list[Feed]:
    """Four feeds of one shape: samples of the data that the workspace was made with, where they can be read, or `some`
    others, and random ones."""
    read = _read(setup, inputs) or some
    samples = chosen(read, typical(read))[:_TRIED] if read else []
    shapes = {name: (1, *shape[1:]) for name, shape in manifest.planned.items() if shape}
    if samples:
        shapes = shapes_of(samples[0])
    sized = [replace(spec, shape=shapes.get(spec.name, spec.shape)) for spec in inputs]
    constant = constant_inputs(samples)
    return [*samples, *({**random_feed(sized, seed), **constant} for seed in range(_TRIED - len(samples)))]


def _read(setup: Setup, inputs: Sequence[InputSpec]) -> Sequence[Feed]:
    """Samples of the data; none if it came from memory, was moved or no longer fits."""
    if not setup.data:
        return ()
    try:
        preprocess = parse_preprocess(setup.preprocess) if setup.preprocess else None
        near = files_beside(Path(setup.model)) if setup.model else Beside()
        return load(Path(setup.data), inputs, preprocess, limit=_READ, near=near).samples
    except (TaglioError, OSError):
        return ()
