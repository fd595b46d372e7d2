"""Random graphs of what networks are made of. A seed gives a graph."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.backend_suite.case import SAMPLES, Case, Feed
from tests.backend_suite.steps import FUNCTIONS, STEPS, Value, Writer, convolution

OPSETS = (13, 15, 17, 19, 21, 23)
IR_VERSION = 10
_BATCH, _LENGTH, _TABLE = 2, 6, 11


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a seed decides before any step."""

    seed: int
    opset: int
    start: str
    steps: int
    free: tuple[str, ...]
    ragged: bool


def recipe(seed: int) -> Recipe:
    """The recipe of a seed."""
    rng = np.random.default_rng([seed, 0])
    free = (("batch",), ("length",), ("batch", "length"))[int(rng.integers(3))] if rng.random() < 0.3 else ()
    start = ("image", "image", "image", "tokens", "sequence", "flat", "two")[int(rng.integers(7))]
    return Recipe(
        seed, OPSETS[int(rng.integers(len(OPSETS)))], start, int(rng.integers(2, 9)), free, bool(rng.random() < 0.5)
    )


def compose(seed: int) -> Case:
    """The graph of `seed`, and its samples."""
    plan = recipe(seed)
    writer = Writer(plan.opset, rng=np.random.default_rng([seed, 1]))
    value = _start(writer, plan)
    for index in range(plan.steps):
        writer.rng = np.random.default_rng([seed, 2, index])
        able = STEPS[len(value.shape)]
        weights = np.array([weight for weight, _ in able], float)
        step = able[int(writer.rng.choice(len(able), p=weights / weights.sum()))][1]
        before = len(writer.nodes)
        value = step(writer, value)
        assert len(writer.nodes) > before
    writer.rng = np.random.default_rng([seed, 3])
    _finish(writer, value)
    return Case(f"graph-{seed}", _model(writer).SerializeToString(), tuple(_feeds(writer, plan)))


def _start(w: Writer, plan: Recipe) -> Value:
    batch: int | str = "batch" if "batch" in plan.free else _BATCH if w.rng.random() < 0.3 else 1
    n = _BATCH if batch == "batch" else int(batch)
    length: int | str = "length" if "length" in plan.free else _LENGTH
    if plan.start in ("image", "two"):
        channels, size = w.pick(1, 3, 4), w.pick(8, 9, 12)
        sides = ["length", "length"] if "length" in plan.free else [size, size]
        w.inputs.append(helper.make_tensor_value_info("image", TensorProto.FLOAT, [batch, channels, *sides]))
        value = Value("image", (n, channels, size, size))
        if plan.start == "two":
            w.inputs.append(helper.make_tensor_value_info("other", TensorProto.FLOAT, [batch, 2, *sides]))
            both = [convolution(w, value, 6, 3), convolution(w, Value("other", (n, 2, size, size)), 6, 1)]
            value = Value(w.op(w.pick("Add", "Mul"), both[0].name, both[1].name), both[0].shape)
        return value
    width = w.pick(8, 12, 16)
    if plan.start == "tokens":
        kind = w.pick(TensorProto.INT64, TensorProto.INT32)
        w.inputs.append(helper.make_tensor_value_info("tokens", kind, [batch, length]))
        table = w.weight(_TABLE, width, fan=1)
        value = Value(w.op("Gather", table, "tokens", axis=0), (n, _LENGTH, width))
        if w.rng.random() < 0.5 and not plan.free:
            value = Value(w.op("Add", value.name, w.weight(1, _LENGTH, width, fan=1)), value.shape)
        return value
    if plan.start == "sequence":
        w.inputs.append(helper.make_tensor_value_info("series", TensorProto.FLOAT, [batch, length, width]))
        return Value("series", (n, _LENGTH, width))
    w.inputs.append(helper.make_tensor_value_info("features", TensorProto.FLOAT, [batch, width]))
    return Value("features", (n, width))


def _finish(w: Writer, value: Value) -> None:
    end = value.name
    if end in {each.name for each in w.inputs}:
        end = w.op("Relu", end)
    w.outputs.append(helper.make_tensor_value_info(end, TensorProto.FLOAT, None))
    draw = w.rng.random()
    if draw < 0.12:
        chosen = w.op("ArgMax", end, axis=-1, keepdims=0)
        w.outputs.append(helper.make_tensor_value_info(chosen, TensorProto.INT64, None))
    elif draw < 0.18:
        chosen = w.op("Greater", end, w.constant(np.float32(0.1)))
        w.outputs.append(helper.make_tensor_value_info(chosen, TensorProto.BOOL, None))
    elif draw < 0.25:
        chosen = w.op("ReduceMax" if w.opset < 18 else "ReduceMean", end, keepdims=0)
        w.outputs.append(helper.make_tensor_value_info(chosen, TensorProto.FLOAT, None))
    elif draw < 0.33:
        inner = [
            name for node in w.nodes for name in node.output[:1] if node.op_type in ("Conv", "MatMul", "Relu", "Add")
        ]
        if inner and inner[0] != end:
            w.outputs.append(onnx.ValueInfoProto(name=inner[0]))


def _model(w: Writer) -> onnx.ModelProto:
    graph = helper.make_graph(w.nodes, "suite", w.inputs, w.outputs, w.weights)
    opsets = [helper.make_opsetid("", w.opset)]
    opsets += [helper.make_opsetid(FUNCTIONS, 1)] if w.functions else []
    return helper.make_model(graph, opset_imports=opsets, functions=w.functions, ir_version=IR_VERSION)


def _feeds(w: Writer, plan: Recipe) -> Iterator[Feed]:
    rng = np.random.default_rng([plan.seed, 4])
    for index in range(SAMPLES):
        vary = plan.ragged and index % 3 == 1
        sizes = {"batch": 1 if vary else _BATCH, "length": (_LENGTH + 3 if vary else _LENGTH)}
        feed = {}
        for value in w.inputs:
            tensor = value.type.tensor_type
            side = sizes["length"] if len(tensor.shape.dim) < 4 else sizes["length"] + 2
            shape = [
                d.dim_value if d.HasField("dim_value") else (side if d.dim_param == "length" else sizes["batch"])
                for d in tensor.shape.dim
            ]
            if tensor.elem_type == TensorProto.FLOAT:
                feed[value.name] = rng.normal(0.0, 1.0, shape).astype(np.float32)
            else:
                feed[value.name] = rng.integers(0, _TABLE, shape).astype(
                    helper.tensor_dtype_to_np_dtype(tensor.elem_type)
                )
        yield feed
