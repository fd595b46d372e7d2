"""Layer rows of ONNX Runtime, one per block, measured with taglio's own tools: time and error of each block alone."""

import time
from collections.abc import Mapping
from pathlib import Path

from taglio import artifact
from taglio.compare.request import Known
from taglio.compare.row import MOST_ALONE, NOT_ALONE, Layer
from taglio.compare.variants import Source, int8
from taglio.error.measure import ErrorMeter
from taglio.error.switchable import Switchable
from taglio.model.graph import Block, Tensor
from taglio.profile.layerwise import layer_times
from taglio.progress import Progress, reported
from taglio.quantize.precision import FLOAT32
from taglio.quantize.scheme import Scheme
from taglio.runtimes.onnxruntime import SessionOptions

SCHEME = Scheme(activation_symmetry="symmetric")
_MOST_SAMPLES = 4
# Seconds for the errors of all but the largest blocks.
_ERRORS_S = 120.0


def known_blocks(source: Source, folder: Path, *, alone: bool) -> tuple[Known, ...]:
    """Every block, for workers; with `alone`, also write models with only one of the largest blocks in int8 below
    `folder`."""
    builder, tensors = source.builder(), source.graph.tensor_map()
    computing = [block for block in source.graph.candidates() if not block.movement]
    largest = (
        {block.name for block in sorted(computing, key=lambda block: -block.flops)[:MOST_ALONE]} if alone else set()
    )
    folder.mkdir()
    blocks = []
    for index, block in enumerate(source.graph.blocks):
        file = folder / f"{index}.onnx" if block.name in largest else None
        if file:
            artifact.write_model(file, builder.build({block.name: int8(SCHEME)}))
        sizes = (block.flops, *_bytes(block, tensors))
        names = (block.name, block.kind, block.operators, block.outputs)
        blocks.append(Known(*names, *sizes, block.refusal, str(file or "")))
    return tuple(blocks)


def _bytes(block: Block, tensors: Mapping[str, Tensor]) -> tuple[int, int | None]:
    """Bytes of a block's outputs in float, and in int8 if it has that form."""
    outputs = [tensors[name] for name in block.outputs]
    int8_bytes = sum(tensor.int8_bytes for tensor in outputs) if block.quantizable else None
    return sum(tensor.float_bytes for tensor in outputs), int8_bytes


def onnxruntime_layers(source: Source, progress: Progress | None = None) -> tuple[Layer, ...]:
    """Every block: its time as a separate model in float32 and in int8 under SCHEME, and the model's error with only
    this block in int8, on at most four held-out samples; for a slow model only of the largest blocks."""
    model, graph, builder, precision = source.model, source.graph, source.builder(), int8(SCHEME)
    samples = source.data.held_out.samples[:_MOST_SAMPLES]
    alone = layer_times(model, graph, builder, (FLOAT32, precision), source.options, samples[0], progress=progress)
    times = alone.seconds()
    switchable = Switchable(model, graph, builder, (precision,), SessionOptions(source.options.threads, spinning=True))
    meter = ErrorMeter(switchable, samples, model.outputs)
    errors: dict[str, float] = {}
    quantizable = sorted((block for block in graph.blocks if block.quantizable), key=lambda block: -block.flops)
    begun = time.perf_counter()
    for index, block in enumerate(reported(quantizable, "each block alone in int8", progress)):
        if index >= MOST_ALONE and time.perf_counter() - begun > _ERRORS_S:
            break
        errors[block.name] = float(meter.read({block.name: precision}, sketch=False).loss.max())
    tensors = graph.tensor_map()
    layers = []
    for block in graph.blocks:
        float_s, int8_s = (times.get((block.name, form)) for form in (FLOAT32.name, precision.name))
        note = block.refusal or ("" if block.name in errors else NOT_ALONE)
        what = ("onnxruntime", block.name, block.kind, block.flops, *_bytes(block, tensors))
        layers.append(Layer(*what, float_s, int8_s, errors.get(block.name), note))
    return tuple(layers)
