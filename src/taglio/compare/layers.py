"""Layer rows, one per block: those of ONNX Runtime measured with taglio's own tools, each block alone."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from taglio.compare.row import MOST_ALONE, NOT_ALONE, Layer
from taglio.compare.variants import Source, int8
from taglio.error.measure import ErrorMeter
from taglio.error.switchable import Switchable
from taglio.model.graph import Block, Graph, Tensor
from taglio.profile.layerwise import layer_times
from taglio.progress import Progress, reported
from taglio.quantize.precision import FLOAT32
from taglio.quantize.scheme import Scheme
from taglio.runtimes.onnxruntime import SessionOptions

SCHEME = Scheme(activation_symmetry="symmetric")
_MOST_SAMPLES = 4
# Seconds for the errors of all but the largest blocks.
_ERRORS_S = 120.0


def owners(graph: Graph) -> dict[str, str]:
    """The block of every operator, and of every tensor that a block writes, by name."""
    return {name: block.name for block in graph.blocks for name in (*block.operators, *block.outputs)}


def described(layers: Sequence[Layer], graph: Graph) -> list[Layer]:
    """Layers with the names of the blocks of `graph`, for a back end that reports only times."""
    blocks, tensors = {block.name: block for block in graph.blocks}, graph.tensor_map()

    def filled(layer: Layer) -> Layer:
        if (block := blocks.get(layer.name)) is None:
            return layer
        float_bytes, int8_bytes = _bytes(block, tensors)
        return replace(
            layer,
            kind=block.kind,
            flops=block.flops,
            float_bytes=float_bytes,
            int8_bytes=int8_bytes,
            int8_s=layer.int8_s if block.quantizable else None,
            note=block.refusal or layer.note,
        )

    return [filled(layer) for layer in layers]


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
