"""A small recurrent network with a cache: two states, one of which grows by an entry a step."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.end_to_end.command import Case
from tests.models import Sketch

WIDE, STATES = 16, ("hn=h0", "present.0.key=past_key_values.0.key")
PRESENT = "present.0.key"


def network() -> onnx.ModelProto:
    """x -> stem; h and the cache, from the stem; y from both."""
    sketch = Sketch()
    x, h = sketch.input("x", 1, WIDE), sketch.input("h0", 1, WIDE)
    cache = sketch.input("past_key_values.0.key", 1, "past", WIDE)
    stem = sketch.op("Relu", sketch.op("MatMul", x, sketch.weight(WIDE, WIDE)))
    gate = sketch.op("Add", stem, sketch.op("MatMul", h, sketch.weight(WIDE, WIDE, gain=0.5)))
    sketch.nodes.append(helper.make_node("Tanh", [gate], ["hn"], name="cell"))
    row = sketch.op("Unsqueeze", stem, sketch.constant(np.array([1], np.int64)))
    sketch.nodes.append(helper.make_node("Concat", [cache, row], [PRESENT], name="cache", axis=1))
    kept = sketch.op("ReduceMean", PRESENT, axes=[1], keepdims=0)
    both = sketch.op("Add", kept, "hn")
    sketch.nodes.append(helper.make_node("MatMul", [both, sketch.weight(WIDE, 4)], ["y"], name="head"))
    outputs = [
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4]),
        helper.make_tensor_value_info("hn", TensorProto.FLOAT, [1, WIDE]),
        helper.make_tensor_value_info(PRESENT, TensorProto.FLOAT, [1, "grown", WIDE]),
    ]
    graph = helper.make_graph(sketch.nodes, "stateful", sketch.inputs, outputs, sketch.initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def inputs(steps: int) -> np.ndarray:
    """x of every step [steps, 1, wide]."""
    return np.random.default_rng(3).standard_normal((steps, 1, WIDE)).astype(np.float32)


def written(folder: Path, steps: int = 12) -> Case:
    """The model and its data as files."""
    onnx.save(network(), folder / "stateful.onnx")
    np.savez(folder / "steps.npz", x=inputs(steps))
    return Case(folder / "stateful.onnx", folder / "steps.npz")
