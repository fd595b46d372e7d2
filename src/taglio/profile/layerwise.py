"""Time every block alone, as a separate model: the research notes' profile, kept for comparison (see measure.py).

A sum of layers has no boundaries and no layouts shared with neighbours, and every layer pays the session overhead. An
int8 layer ends behind its QuantizeLinear and begins at one of two cuts:

    upstream      float input → QuantizeLinear → DequantizeLinear → operators → QuantizeLinear → int8 output
    downstream                    int8 input   → DequantizeLinear → operators → QuantizeLinear → int8 output

Nodes and scales are those that `QdqBuilder` uses in the whole model. An int8 anchor has a float output.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

import numpy as np
import onnx
from onnx import helper

from taglio.errors import BadOption, plural
from taglio.model.captures import node_inputs
from taglio.model.derived import empty_like
from taglio.model.graph import Block, Graph
from taglio.model.inputs import Feed
from taglio.model.load import Model
from taglio.model.observe import tensor_values
from taglio.profile.rounds import run_once
from taglio.progress import Progress, reported
from taglio.quantize.emitter import Emitter
from taglio.quantize.precision import FLOAT32, Assignment, Precision, form_of
from taglio.quantize.qdq import QdqBuilder
from taglio.runtimes.onnxruntime import SessionOptions, open_session

Cut = Literal["upstream", "downstream"]
Array = np.ndarray


@dataclass(frozen=True, slots=True)
class LayerTime:
    """Mean seconds of one block run alone in one precision."""

    block: str
    precision: str
    seconds: float


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """Times of every block of one model alone, in every precision that it has.

    `sessions` is the number of models opened; `wall_s` is the total time of building, loading and timing.
    """

    model_sha256: str
    cut: Cut
    warmup: int
    runs: int
    layers: tuple[LayerTime, ...]
    sessions: int
    wall_s: float

    def seconds(self) -> dict[tuple[str, str], float]:
        """Seconds by (block, precision name)."""
        return {(layer.block, layer.precision): layer.seconds for layer in self.layers}


def layer_times(
    model: Model,
    graph: Graph,
    builder: QdqBuilder,
    precisions: Sequence[Precision],
    options: SessionOptions,
    sample: Feed,
    *,
    cut: Cut = "upstream",
    warmup: int = 1,
    runs: int = 10,
    progress: Progress | None = None,
) -> LayerTimes:
    """Time each block alone in each of `precisions` that it has, one session at a time, on random inputs; where values
    or shapes matter, inputs are those that the model computes for `sample`.

    Raises BadOption for fewer than 1 run, BadModel if ONNX Runtime refuses a layer, MeasurementFailed if one fails.
    """
    if runs < 1 or warmup < 0:
        raise BadOption(
            f"{plural(runs, 'run')} after {plural(warmup, 'warm-up')}: give at least 1 run and no negative warm-up"
        )
    start = time.perf_counter()
    cutter = LayerCutter(model, graph, builder)
    # For indices, shapes and tensors of unknown shape random values are unsuitable.
    input_names = dict.fromkeys(name for block in graph.blocks for name in block.inputs)
    computed = [name for name in input_names if not cutter.may_be_random(name)]
    (observed,) = tensor_values(model, computed, [sample], "the sample")
    pairs = [(block, precision) for block in graph.blocks for precision in precisions if precision.fits(block)]
    layers = []
    for done, (block, precision) in enumerate(reported(pairs, "timing layers", progress)):
        proto = cutter.layer(block, precision, cut, observed)
        seconds = _mean_seconds(proto, _feed(proto, observed, done), options, warmup, runs)
        layers.append(LayerTime(block.name, precision.name, seconds))
    sessions = len(pairs) + bool(observed)
    return LayerTimes(model.sha256, cut, warmup, runs, tuple(layers), sessions, time.perf_counter() - start)


def predict_sum(times: LayerTimes, graph: Graph, assignment: Assignment) -> float:
    """Predicted seconds of one inference: the sum of its layers alone (the notes' layer sum: boundaries cost nothing).

    Raises BadOption if a block was not timed in its assigned precision.
    """
    seconds, total = times.seconds(), 0.0
    for block in graph.blocks:
        name = form_of(assignment, block.name)
        if (block.name, name) not in seconds:
            have = ", ".join(layer.precision for layer in times.layers if layer.block == block.name) or "none"
            raise BadOption(f"block {block.name} was not timed alone in {name} (only: {have}): profile it in {name}")
        total += seconds[block.name, name]
    return total


def speedups(times: LayerTimes) -> dict[str, float]:
    """Float seconds divided by int8 seconds, for every block that was timed in both."""
    seconds = times.seconds()
    return {
        block: seconds[block, FLOAT32.name] / value
        for (block, name), value in seconds.items()
        if name == "int8" and (block, FLOAT32.name) in seconds
    }


class LayerCutter:
    """Makes separate models of the blocks of one model."""

    def __init__(self, model: Model, graph: Graph, builder: QdqBuilder) -> None:
        proto = model.proto.graph
        self._model = model
        self._builder = builder
        self._initializers = model.initializers()
        self._tensors = graph.tensor_map()
        self._values: dict[str, onnx.ValueInfoProto] = {
            value.name: value for value in (*proto.input, *proto.value_info, *proto.output)
        }

    def layer(
        self, block: Block, precision: Precision, cut: Cut, observed: Mapping[str, Array] | None = None
    ) -> onnx.ModelProto:
        """A model of `block` alone in `precision`; inputs in `observed` take type and shape from the array there."""
        emitter = self._builder.emitter()
        self._builder.emit(emitter, block, precision)
        outputs = [self._output(emitter, name) for name in block.outputs]
        seen = observed or {}
        inputs = [_typed(name, seen[name]) if name in seen else self._values[name] for name in block.inputs]
        if cut == "downstream":
            inputs = self._drop_quantizers(emitter, inputs)
        read_names = {name for node in emitter.nodes for name in node_inputs(node)}
        weights = [tensor for name, tensor in self._initializers.items() if name in read_names]
        constants = [tensor for name, tensor in emitter.initializers.items() if name in read_names]
        proto = empty_like(self._model.proto, block.name)
        proto.graph.node.extend(emitter.nodes)
        proto.graph.initializer.extend([*weights, *constants])
        proto.graph.input.extend(inputs)
        proto.graph.output.extend(outputs)
        return proto

    def may_be_random(self, name: str) -> bool:
        """Whether random values suit the tensor `name`: it is float, with a shape known before running."""
        value = self._values.get(name)
        if value is None or not value.type.tensor_type.HasField("shape"):
            return False
        tensor = value.type.tensor_type
        floating = tensor.elem_type in (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE)
        return floating and all(dim.dim_value > 0 for dim in tensor.shape.dim)

    def _output(self, emitter: Emitter, name: str) -> onnx.ValueInfoProto:
        """The block's output: int8 behind the QuantizeLinear of its pair, or the float tensor."""
        if name not in emitter.written:
            return self._values.get(name, onnx.ValueInfoProto(name=name))
        behind = self._builder.read_float(emitter, name)
        index = next(i for i, node in enumerate(emitter.nodes) if behind in node.output)
        dequantize = emitter.nodes.pop(index)
        return self._stored(emitter, dequantize.input[0], dequantize.input[2], name)

    def _drop_quantizers(self, emitter: Emitter, inputs: Iterable[onnx.ValueInfoProto]) -> list[onnx.ValueInfoProto]:
        """Remove the QuantizeLinears of `inputs`, and make their outputs the inputs instead."""
        new_inputs: dict[str, onnx.ValueInfoProto] = {}
        for value in inputs:
            readers = [node for node in emitter.nodes if value.name in node_inputs(node)]
            for node in readers:
                if node.op_type == "QuantizeLinear":
                    new_inputs[node.output[0]] = self._stored(emitter, node.output[0], node.input[2], value.name)
                    emitter.nodes.remove(node)
                else:
                    new_inputs[value.name] = value
        return list(new_inputs.values())

    def _stored(self, emitter: Emitter, stored: str, zero_point: str, tensor: str) -> onnx.ValueInfoProto:
        shape = self._tensors[tensor].shape
        return helper.make_tensor_value_info(stored, emitter.initializers[zero_point].data_type, shape)


def _typed(name: str, array: Array) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


def _feed(proto: onnx.ModelProto, observed: Mapping[str, Array], seed: int) -> dict[str, Array]:
    """A feed of observed arrays, or else standard-normal floats and integers over the whole range of their type."""
    rng = np.random.default_rng(seed)
    feed: dict[str, Array] = {}
    for value in proto.graph.input:
        if value.name in observed:
            feed[value.name] = observed[value.name]
            continue
        tensor = value.type.tensor_type
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        shape = [dim.dim_value for dim in tensor.shape.dim]
        if dtype.kind == "f":
            feed[value.name] = rng.standard_normal(shape).astype(dtype)
        else:
            info = np.iinfo(dtype)
            feed[value.name] = rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    return feed


def _mean_seconds(
    proto: onnx.ModelProto, feed: Mapping[str, Array], options: SessionOptions, warmup: int, runs: int
) -> float:
    label = f"block {proto.graph.name} alone"
    session = open_session(proto, options, label=label)
    for _ in range(warmup):
        run_once(label, session, [feed])
    return fmean(run_once(label, session, [feed]) for _ in range(runs))
