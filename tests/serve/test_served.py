"""A workspace as it is opened for serving."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from taglio.serve.served import open_model
from tests.serve.conftest import workspace


def halves() -> onnx.ModelProto:
    """y = x [batch, width] in rows of two halves: it does not run on a width of 1."""
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"], name="halves")]
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "width"])]
    wanted = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 2, "half"])]
    shape = numpy_helper.from_array(np.array([0, 2, -1]), "shape")
    graph = helper.make_graph(nodes, "halves", given, wanted, [shape])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_the_warm_up_runs_on_the_sizes_of_the_plan(tmp_path: Path) -> None:
    """A model that fails on images or lines of size 1 was served without batches."""
    assert open_model(workspace(tmp_path / "a", halves(), shapes={"x": (3, 6)}), "m", "1").batches
    assert not open_model(workspace(tmp_path / "b", halves(), shapes={"x": (1, 5)}), "m", "1").batches
