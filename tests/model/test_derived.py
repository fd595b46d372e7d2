"""Models made from another."""

import json
from pathlib import Path

import numpy as np
import onnx

from taglio.model.derived import with_hard_swish, with_operators
from taglio.model.load import load
from taglio.runtimes.onnxruntime import Optimization, SessionOptions, open_session
from tests.models import Sketch, saved


def kinds(proto: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in proto.graph.node]


def test_hard_swish_is_one_operator_again_and_answers_the_same(tmp_path: Path) -> None:
    g = Sketch()
    y = g.op("HardSwish", g.conv(g.input("x", 1, 3, 8, 8), 3, 8))
    split = load(saved(g.model(y), tmp_path)).proto
    rewritten = with_hard_swish(split)
    assert kinds(split) == ["Conv", "HardSigmoid", "Mul"]
    assert kinds(rewritten) == ["Conv", "HardSwish"]
    feed = {"x": np.random.default_rng(0).normal(0, 3, (1, 3, 8, 8)).astype(np.float32)}
    (one,), (other,) = (open_session(proto, SessionOptions(1)).run(None, feed) for proto in (split, rewritten))
    np.testing.assert_array_equal(one, other)


def test_another_gate_or_one_that_others_read_stays() -> None:
    for slope, opset, shared in ((0.2, 17, False), (1 / 6, 17, True), (1 / 6, 13, False)):
        g = Sketch(opset=opset)
        y = g.input("x", 1, 4)
        gate = g.op("HardSigmoid", y, alpha=slope, beta=0.5)
        outputs = [g.op("Mul", gate, y), *([gate] if shared else [])]
        assert kinds(with_hard_swish(g.model(*outputs))) == ["HardSigmoid", "Mul"]


def test_added_operators_run_as_soon_as_what_they_read_is_there(tmp_path: Path) -> None:
    """Run last, they held every tensor of the model at once: 1.6 GB where a run takes 90 MB."""
    g = Sketch()
    first = g.op("Relu", g.input("x", 1, 4))
    second = g.op("Neg", first)
    proto = g.model(g.op("Abs", second))
    added = [
        onnx.helper.make_node("ReduceMax", [first], ["most"], name="most", keepdims=0),
        onnx.helper.make_node("Exp", ["most"], ["later"], name="later"),
    ]
    extended = with_operators(proto, added, ["later"])
    assert kinds(extended) == ["Relu", "ReduceMax", "Exp", "Neg", "Abs"]
    assert len(proto.graph.node) == 3
    options = SessionOptions(1, Optimization.NONE, lean=True)
    session = open_session(extended, options, profile_prefix=tmp_path / "run")
    session.run(None, {"x": np.ones((1, 4), np.float32)})
    events = json.loads(Path(session.end_profiling()).read_text())
    ran = [event["args"]["op_name"] for event in events if event["name"].endswith("_kernel_time")]
    assert ran == ["Relu", "ReduceMax", "Exp", "Neg", "Abs"]
