"""HardSwish is one operator in OpenVINO, though ONNX Runtime splits it when a model is simplified."""

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest

from taglio.flow.opening import Model
from taglio.model.load import load
from taglio.quantize.precision import Precision
from taglio.runtimes.onnxruntime import NAME as ONNX_RUNTIME
from taglio.runtimes.onnxruntime import SessionOptions, open_session
from taglio.runtimes.openvino import NAME, OpenVinoSession
from taglio.runtimes.openvino import open_session as open_openvino
from taglio.runtimes.openvino_marks import note_precision
from tests.models import Sketch, exact, saved, silu
from tests.processor import needs_bfloat16

pytest.importorskip("openvino", reason="taglio[openvino] is not installed")


def opened(proto: onnx.ModelProto, folder: Path) -> OpenVinoSession:
    """A session, whose answer is ONNX Runtime's."""
    path = folder / "opened.onnx"
    onnx.save(proto, path)
    session = open_openvino(path, SessionOptions(1))
    feed = {"x": np.random.default_rng(0).normal(0, 3, (1, 3, 8, 8)).astype(np.float32)}
    (answer,), (wanted,) = session.run(None, feed), open_session(proto, SessionOptions(1)).run(None, feed)
    np.testing.assert_allclose(answer, wanted, atol=1e-5)
    return session


@pytest.mark.parametrize("marked", [False, pytest.param(True, marks=needs_bfloat16)])
def test_a_split_hard_swish_is_fused_and_keeps_its_name(tmp_path: Path, marked: bool) -> None:
    g = Sketch()
    y = g.rename(g.op("HardSwish", g.conv(g.input("x", 1, 3, 8, 8), 3, 8)), "y")
    proto = load(saved(g.model(y), tmp_path)).proto
    assert [node.op_type for node in proto.graph.node] == ["Conv", "HardSigmoid", "Mul"]
    note_precision(proto, [name for node in proto.graph.node for name in node.output] if marked else None)
    parts = {part.kind: part.originals for part in opened(proto, tmp_path).parts()}
    assert not {"Math", "Eltwise"} & set(parts)
    assert "y" in parts["Convolution"]


def test_openvino_computes_an_int8_convolution_and_its_activation_in_one_kernel(tmp_path: Path) -> None:
    work = Model(saved(silu(), tmp_path), {"x": np.random.default_rng(0).normal(0, 1, (8, 3, 8, 8)).astype(np.float32)})
    scheme = exact()
    whole = dict.fromkeys((block.name for block in work.graph.candidates()), Precision("int8", scheme))
    kinds = {}
    for place in (ONNX_RUNTIME, NAME):
        path = tmp_path / f"{place}.onnx"
        onnx.save(work.in_place(place).builder(scheme).build(whole), path)
        parts = open_openvino(path, SessionOptions(1, runtime=NAME)).parts()
        kinds[place] = Counter(part.kind for part in parts)
    assert kinds[NAME]["Convolution"] == kinds[ONNX_RUNTIME]["Convolution"] == 3
    # What is left is that of the last block, a Sigmoid alone and a product.
    assert (kinds[NAME]["Subgraph"], kinds[ONNX_RUNTIME]["Subgraph"]) == (2, 4)


def test_another_gate_is_left(tmp_path: Path) -> None:
    for slope, shared in ((0.2, False), (1 / 6, True)):
        g = Sketch()
        y = g.conv(g.input("x", 1, 3, 8, 8), 3, 8)
        gate = g.op("HardSigmoid", y, alpha=slope, beta=0.5)
        y = g.op("Mul", y, gate)
        y = g.op("Add", y, gate) if shared else y
        opened(g.model(y), tmp_path)
