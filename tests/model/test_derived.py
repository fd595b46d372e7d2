"""Models made from another."""

import json
from pathlib import Path

import numpy as np
import onnx

from taglio.model.derived import with_operators
from taglio.runtimes.onnxruntime import Optimization, SessionOptions, open_session
from tests.models import Sketch


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
    assert [node.op_type for node in extended.graph.node] == ["Relu", "ReduceMax", "Exp", "Neg", "Abs"]
    assert len(proto.graph.node) == 3
    options = SessionOptions(1, Optimization.NONE, lean=True)
    session = open_session(extended, options, profile_prefix=tmp_path / "run")
    session.run(None, {"x": np.ones((1, 4), np.float32)})
    events = json.loads(Path(session.end_profiling()).read_text())
    ran = [event["args"]["op_name"] for event in events if event["name"].endswith("_kernel_time")]
    assert ran == ["Relu", "ReduceMax", "Exp", "Neg", "Abs"]
