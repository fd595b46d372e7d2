"""What `taglio inspect` says of a model as a whole."""

from pathlib import Path

import onnx
import pytest

from taglio.cli import main
from tests.models import Sketch, saved


def test_weights_that_blocks_share_count_once_and_random_answers_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    g = Sketch()
    y, weight = g.input("x", 1, 8, 6, 6), g.weight(8, 8, 3, 3)
    for _ in range(5):
        y = g.op("Relu", g.op("Conv", y, weight, pads=[1] * 4))
    noisy = g.op("Add", y, g.op("RandomNormalLike", y))
    assert main(["inspect", str(saved(g.model(noisy), tmp_path))]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "2.3 kB of weights" in told  # 8 · 8 · 3 · 3 floats, not five times as many
    assert "answers are random (RandomNormalLike)" in told


def test_sizes_that_depend_on_the_data_are_left_open(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    g = Sketch()
    y = g.op("Relu", g.conv(g.input("x", "batch", 3, 48, "width"), 3, 8))
    model = g.model(y)
    model.graph.output[0].CopyFrom(
        onnx.helper.make_tensor_value_info(y, onnx.TensorProto.FLOAT, ["batch", 8, 48, "width"])
    )
    assert main(["inspect", str(saved(model, tmp_path))]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "Conv+Relu – 896 B 224 B – – yes" in told
    assert "1 can be int8, 896 B of weights" in told and "GFLOPs" not in told
    assert f"output {y} [batch, 8, 48, width] float32" in told
    assert "batch, width are not known here: tensors of such sizes are not counted; set sizes with --shape" in told
