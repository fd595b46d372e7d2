"""Whether requests of a model may share a batch, tried on samples. Queues nothing."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx

from taglio.components.build import Manifest
from taglio.data.dataset import chosen, shapes_of, typical
from taglio.data.spec import InputSpec, Shape
from taglio.model.inputs import random_feed
from taglio.model.inputs import spec_of as declared
from taglio.model.rows import why_rows_mix
from taglio.runtimes.way import Way

Feed = Mapping[str, np.ndarray]
# Samples of one shape that batches are made of.
_TRIED = 4
# The most rows of a batch if the way of running does not say.
ROWS = 8


def most_rows(way: Way) -> int:
    """The most rows of a batch. A way of one run at a time and one item in it was chosen for latency, and says nothing
    of requests that wait: to join them keeps none waiting for longer."""
    return ROWS if way.at_once == way.joined == 1 else way.joined


def why_alone(
    components: Path,
    manifest: Manifest,
    inputs: Sequence[InputSpec],
    run: Callable[[Feed], Feed],
    samples: Sequence[Feed],
) -> str:
    """Why requests must not be joined, in one line; "" if they may be. `inputs` are as the files declare them; `run`
    answers a feed. It is tried on some of the `samples`, and on random values where they are fewer than four."""
    if manifest.states:
        return "it keeps a state from step to step"
    models = [onnx.load(components / piece.file, load_external_data=False) for piece in manifest.pieces]
    return why_rows_mix(models, inputs, _of_one_shape(manifest, inputs, samples), run)


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


def _of_one_shape(manifest: Manifest, inputs: Sequence[InputSpec], samples: Sequence[Feed]) -> list[Feed]:
    """Four feeds of one shape: some of the `samples`, and random ones."""
    frequent = chosen(samples, typical(samples))[:_TRIED] if samples else []
    shapes = {name: (1, *shape[1:]) for name, shape in manifest.planned.items() if shape}
    if frequent:
        shapes = shapes_of(frequent[0])
    sized = [replace(spec, shape=shapes.get(spec.name, spec.shape)) for spec in inputs]
    constant = constant_inputs(samples[:_TRIED])
    return [*frequent, *({**random_feed(sized, seed), **constant} for seed in range(_TRIED - len(frequent)))]
