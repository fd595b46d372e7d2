"""What `taglio inspect` says of a model as a whole."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from taglio.cli import main
from taglio.cli.parser import build_parser
from taglio.error.tasks.suggest import Suggestion
from taglio.flow.inspect import inspection
from taglio.model.graph import build
from taglio.model.load import load
from taglio.profile.machine import Machine
from taglio.report import inspected
from tests.models import Sketch, digits_model, parsed, saved

VNNI, AVX2 = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16"), ("avx2",)


def machine(instructions: tuple[str, ...]) -> Machine:
    return Machine("Imaginary 9000", 4, instructions, 2**33, "Linux 6", "3.11.7")


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
    assert main(["inspect", str(saved(model, tmp_path)), "--blocks"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "the gain to expect is not known, because sizes are not known: set them with --shape" in told
    assert "Conv+Relu – 896 B 224 B – – yes" in told
    assert "1 can be int8, 896 B of weights" in told and "GFLOPs" not in told
    assert f"output {y} [batch, 8, 48, width] float32" in told
    assert "batch, width are not known here: tensors of such sizes are not counted; set sizes with --shape" in told


@pytest.mark.parametrize(
    ("instructions", "gain", "words"),
    [
        (AVX2, 1.5, ("expect about 1.5 × from int8, not confirmed", "(AVX2 without VNNI) computes about 1.5 times")),
        (VNNI, 2.5, ("expect about 2.5 × from int8, not confirmed", "may compute in bfloat16", "Nothing was measured")),
    ],
)
def test_the_gain_to_expect_follows_from_the_processor(
    instructions: tuple[str, ...], gain: float, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    model = load(digits_model())
    graph = build(model)
    seen = inspection(model, graph, instructions)
    assert (seen.blocks, seen.int8_blocks, seen.refusals) == (38, 38, ())
    assert seen.operators[0] == ("Conv", 23) and seen.int8_share == pytest.approx(1.0)
    assert seen.expected_gain == pytest.approx(gain) and seen.bfloat16 == (instructions == VNNI)
    inspected.summary(model, graph, seen, machine(instructions))
    told = " ".join(capsys.readouterr().out.split())
    assert [word for word in words if word not in told] == []
    assert ("bfloat16" in told) == seen.bfloat16


def test_a_model_without_int8_forms_is_expected_to_gain_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    g = Sketch()
    model = load(saved(g.model(g.op("Exp", g.input("x", 1, 8))), tmp_path))
    graph = build(model)
    inspected.summary(model, graph, inspection(model, graph, AVX2), machine(AVX2))
    told = capsys.readouterr().out
    assert "no gain from int8 is expected: no block has an int8 form" in told
    assert "blocks that stay float: 1 (ONNX Runtime has no int8 Exp on the CPU)" in told


def test_operations_in_bodies_are_not_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    proto = parsed(
        """(bool flag, float[1,4] x) => (float[1,4] y) {
            s = MatMul (x, w)
            y = If (flag) <
                then_branch = a () => (float[1,4] p) { p = Relu (s) },
                else_branch = b () => (float[1,4] q) { q = MatMul (s, w) }
            >
        }""",
        {"w": np.ones((4, 4))},
    )
    assert main(["inspect", str(saved(proto, tmp_path))]) == 0
    assert "100 % of the operations outside If are in blocks" in " ".join(capsys.readouterr().out.split())


def test_the_suggested_command_line_is_one_that_is_understood() -> None:
    suggestion = Suggestion("ctc:blank=5", "reads text")
    advice = inspected.Advice(Path("my model.onnx"), {"x": (1, 3)}, ["out=in"], suggestion)
    program, *words = advice.command().replace("'my model.onnx'", "my-model.onnx").split()
    parsed = build_parser().parse_args(words)
    assert program == "taglio" and parsed.model == Path("my-model.onnx")
    assert (parsed.shapes, parsed.metric, parsed.state) == ({"x": (1, 3)}, "ctc:blank=5", ["out=in"])
    assert (parsed.max_error, parsed.max_drop) == (None, 0.01)
    plain = inspected.Advice(Path("m.onnx"), {}, [], None)
    assert plain.command() == "taglio optimize m.onnx --data DATA --max-error 1% -o out"
