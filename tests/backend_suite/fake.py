"""A second opinion on the error of int8: every tensor through its own range, in float. Shares no code with quantize."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from taglio.flow.work import Work
from taglio.quantize.precision import Assignment
from taglio.runtimes.onnxruntime import Optimization, SessionOptions, open_session

_OPTIONS = SessionOptions(1, Optimization.NONE)
_WIDER = (1.0, 1.01, 1.02, 1.05, 1.1)


def own_ranges_error(
    work: Work, assignment: Assignment, distance: Callable[[Sequence[Sequence[Any]]], float]
) -> float | None:
    """The error where every float tensor that a block of `assignment` reads or writes is rounded to 8 bits of the range
    that it has itself on the calibration inputs, and weights to 8 bits of theirs; None where that does not run.

    The largest of several, each with ranges a little wider: where 1 / sqrt(E[x²] − E[x]²) or an ArgMax makes much of
    little, one rounding says nothing of another.
    """
    blocks = [block for block in work.graph.blocks if block.name in assignment]
    constants = work.model.initializers()
    tensors = [
        name for name in dict.fromkeys(t for b in blocks for t in (*b.inputs, *b.outputs)) if name not in constants
    ]
    try:
        ranges = _ranges(work, tensors)
        weights = {name for block in blocks for name in block.weights}
        feeds = [
            {f"{name}/raw" if name in ranges else name: value for name, value in feed.items()}
            for feed in work.data.held_out.samples
        ]
        errors = []
        for wider in _WIDER:
            widened = {name: (low * wider, high * wider) for name, (low, high) in ranges.items()}
            session = open_session(_rounded(work.model.proto, widened, weights), _OPTIONS)
            errors.append(distance([session.run(list(work.model.outputs), feed) for feed in feeds]))
        return max(errors)
    except Exception:
        return None


def _ranges(work: Work, tensors: Sequence[str]) -> dict[str, tuple[float, float]]:
    model = onnx.ModelProto()
    model.CopyFrom(work.model.proto)
    inputs = {value.name for value in model.graph.input}
    seen = [name for name in tensors if name not in inputs]
    have = {value.name for value in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in seen if name not in have)
    session = open_session(model, _OPTIONS)
    ranges: dict[str, tuple[float, float]] = {}
    for feed in work.data.calibration.samples:
        values = dict(zip(seen, session.run(seen, dict(feed)), strict=True)) if seen else {}
        for name in tensors:
            value = np.asarray(values[name] if name in values else feed[name])
            if value.dtype == np.float32 and value.size:
                low, high = ranges.get(name, (0.0, 0.0))
                ranges[name] = (min(low, float(value.min())), max(high, float(value.max())))
    return ranges


def _rounded(proto: onnx.ModelProto, ranges: dict[str, tuple[float, float]], weights: set[str]) -> onnx.ModelProto:
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    graph = model.graph
    for value in graph.input:
        value.name = f"{value.name}/raw" if value.name in ranges else value.name
    nodes = []
    for value in graph.input:
        nodes += _round(value.name.removesuffix("/raw"), ranges, graph)
    for node in graph.node:
        written = [name for name in node.output if name in ranges]
        node.output[:] = [f"{name}/raw" if name in ranges else name for name in node.output]
        nodes.append(node)
        for name in written:
            nodes += _round(name, ranges, graph)
    del graph.value_info[:]
    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(kept)
    for tensor in graph.initializer:
        if tensor.name in weights and tensor.data_type == TensorProto.FLOAT:
            values = numpy_helper.to_array(tensor)
            step = float(np.abs(values).max(initial=0.0)) / 127.0 or 1.0
            tensor.CopyFrom(numpy_helper.from_array((np.rint(values / step) * step).astype(np.float32), tensor.name))
    return model


def _round(name: str, ranges: dict[str, tuple[float, float]], graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    if name not in ranges:
        return []
    low, high = ranges[name]
    step = (high - low) / 255.0 or 1.0
    graph.initializer.extend(
        [
            numpy_helper.from_array(np.asarray(step, np.float32), f"{name}/step"),
            numpy_helper.from_array(np.clip(np.rint(-low / step), 0, 255).astype(np.uint8), f"{name}/zero"),
        ]
    )
    how = [f"{name}/step", f"{name}/zero"]
    return [
        helper.make_node("QuantizeLinear", [f"{name}/raw", *how], [f"{name}/byte"], name=f"{name}/round"),
        helper.make_node("DequantizeLinear", [f"{name}/byte", *how], [name], name=f"{name}/back"),
    ]
