"""Time every block alone, as a separate model, for comparison with taglio's profile.

A sum of layers has no boundaries and no layouts shared with neighbours, and every layer pays the session overhead. An
int8 layer reads float and quantises it, and ends behind its own QuantizeLinear; an int8 anchor has a float output.
Nodes and scales are those that `QdqBuilder` uses in the whole model.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean

import numpy as np
import onnx
from onnx import helper

from taglio.model.derived import part_of
from taglio.model.graph import Block, Graph
from taglio.model.inputs import Feed
from taglio.model.observe import tensor_values
from taglio.profile.rounds import run_once
from taglio.quantize.emitter import Emitter
from taglio.quantize.precision import FLOAT32, Precision
from taglio.quantize.qdq import QdqBuilder
from taglio.runtimes.onnxruntime import SessionOptions, open_session

Array = np.ndarray
# Mean seconds of one block run alone, by block and name of the precision.
LayerTimes = Mapping[tuple[str, str], float]
_WARMUP, _RUNS = 1, 10


def layer_times(
    builder: QdqBuilder, graph: Graph, precisions: Sequence[Precision], options: SessionOptions, sample: Feed
) -> LayerTimes:
    """Time each block of `graph` alone in each of `precisions` that it has, one session at a time, on random inputs;
    where values or shapes matter, inputs are those that the model computes for `sample`.

    Raises BadModel if ONNX Runtime refuses a layer, MeasurementFailed if one fails.
    """
    cutter = LayerCutter(builder, graph)
    # For indices, shapes and tensors of unknown shape random values are unsuitable.
    input_names = dict.fromkeys(name for block in graph.blocks for name in block.inputs)
    computed = [name for name in input_names if not cutter.may_be_random(name)]
    (observed,) = tensor_values(builder.model, computed, [sample], "the sample")
    pairs = [(block, precision) for block in graph.blocks for precision in precisions if precision.fits(block)]
    seconds_of = {}
    for seed, (block, precision) in enumerate(pairs):
        proto = cutter.layer(block, precision, observed)
        seconds_of[block.name, precision.name] = _mean_seconds(proto, _feed(proto, observed, seed), options)
    return seconds_of


def speedups(times: LayerTimes) -> dict[str, float]:
    """Float seconds divided by int8 seconds, for every block that was timed in both."""
    return {
        block: times[block, FLOAT32.name] / seconds
        for (block, name), seconds in times.items()
        if name == "int8" and (block, FLOAT32.name) in times
    }


class LayerCutter:
    """Makes separate models of the blocks of one model."""

    def __init__(self, builder: QdqBuilder, graph: Graph) -> None:
        proto = builder.model.proto.graph
        self._builder = builder
        self._tensors = graph.tensor_map()
        self._values: dict[str, onnx.ValueInfoProto] = {
            value.name: value for value in (*proto.input, *proto.value_info, *proto.output)
        }

    def layer(self, block: Block, precision: Precision, observed: Mapping[str, Array] | None = None) -> onnx.ModelProto:
        """A model of `block` alone in `precision`; inputs in `observed` take type and shape from the array there."""
        emitter = self._builder.emitter()
        self._builder.emit(emitter, block, precision)
        outputs = [self._output(emitter, name) for name in block.outputs]
        seen = observed or {}
        inputs = [_typed(name, seen[name]) if name in seen else self._values[name] for name in block.inputs]
        proto = part_of(self._builder.model.proto, block.name, emitter.nodes, inputs, outputs)
        proto.graph.initializer.extend(emitter.initializers.values())
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
        dtype, shape = emitter.initializers[dequantize.input[2]].data_type, self._tensors[name].shape
        return helper.make_tensor_value_info(dequantize.input[0], dtype, shape)


def _typed(name: str, array: Array) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


def _feed(proto: onnx.ModelProto, observed: Mapping[str, Array], seed: int) -> dict[str, Array]:
    """A feed of observed arrays, or else of standard-normal floats."""
    rng = np.random.default_rng(seed)
    feed: dict[str, Array] = {}
    for value in proto.graph.input:
        if value.name in observed:
            feed[value.name] = observed[value.name]
            continue
        tensor = value.type.tensor_type
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        feed[value.name] = rng.standard_normal([dim.dim_value for dim in tensor.shape.dim]).astype(dtype)
    return feed


def _mean_seconds(proto: onnx.ModelProto, feed: Feed, options: SessionOptions) -> float:
    label = f"block {proto.graph.name} alone"
    session = open_session(proto, options, label=label)
    for _ in range(_WARMUP):
        run_once(label, session, [feed])
    return fmean(run_once(label, session, [feed]) for _ in range(_RUNS))
