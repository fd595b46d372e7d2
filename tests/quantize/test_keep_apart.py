"""OpenVINO answers as ONNX Runtime where it would fold a bias or a factor into the quantisation behind it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from taglio.flow.opening import Model
from taglio.lab.build import assemble
from taglio.plan.result import Crossing, DeviceUse, Interval, Limits, Plan, placements
from taglio.quantize.keep_apart import keep_apart
from taglio.quantize.precision import FLOAT32, Precision
from taglio.runtimes.difference import difference
from taglio.runtimes.onnxruntime import NAME as ONNXRUNTIME
from taglio.runtimes.onnxruntime import Optimization, SessionOptions, open_session
from taglio.runtimes.openvino import NAME
from taglio.runtimes.openvino import open_session as open_openvino
from tests.models import Sketch, exact, saved

pytest.importorskip("openvino", reason="taglio[openvino] is not installed")
# One int8 step of a few values.
ROUNDING = 1e-3


def with_grid(height: int | str, tail: str) -> onnx.ModelProto:
    """Convolutions whose height is also the length of a second output."""
    g = Sketch(3)
    x = g.input("x", 1, 3, height, 8)
    x = g.conv(x, 3, 8) if tail == "Conv" else g.op("Concat", g.conv(x, 3, 4), g.conv(x, 3, 4), axis=1)
    size = g.op("Cast", g.op("Gather", g.op("Shape", x), g.constant(np.array(2))), to=onnx.TensorProto.FLOAT)
    grid = g.op("Range", g.constant(0.0), size, g.constant(1.0))
    return g.model(g.conv(x, 8, 4, 1), grid)


def with_factor(kind: str) -> onnx.ModelProto:
    """A product with a constant per channel, some of which are negative."""
    g = Sketch(4)
    x = g.op("AveragePool", g.input("x", 1, 3, 8, 8), kernel_shape=[2, 2])
    factor = g.constant(np.array([[[[0.5]], [[-1.5]], [[2.0]]]]))
    return g.model(g.conv(g.op(kind, x, factor), 3, 4, 1))


def check(proto: onnx.ModelProto, folder: Path, *, every: bool) -> None:
    """OpenVINO answers as ONNX Runtime does without fusion, with every block in int8 or the last one alone."""
    data = np.random.default_rng(0).normal(0, 1, (8, 3, 8, 8)).astype(np.float32)
    work = Model(saved(proto, folder), {"x": data}, threads=1).in_place(NAME)
    blocks = [block.name for block in work.graph.candidates() if not block.movement]
    chosen = blocks if every else blocks[-1:]
    built = work.builder(exact()).build(dict.fromkeys(chosen, Precision("int8", exact())))
    path, feed = folder / "built.onnx", {"x": data[:1]}
    onnx.save(built, path)
    answers = open_openvino(path, SessionOptions(1, runtime=NAME)).run(work.outputs, feed)
    wanted = open_session(built, SessionOptions(1, Optimization.NONE)).run(work.outputs, feed)
    assert difference(wanted[0], answers[0]) < ROUNDING


@pytest.mark.parametrize("every", [True, False], ids=["all in int8", "the last alone"])
@pytest.mark.parametrize("tail", ["Conv", "Concat"])
def test_the_bias_of_every_channel_is_added(tail: str, every: bool, tmp_path: Path) -> None:
    check(with_grid("height", tail), tmp_path, every=every)


def test_parts_for_several_devices_are_kept_apart_where_openvino_runs_them(tmp_path: Path) -> None:
    """The first convolution is OpenVINO's, and what it writes travels as int8."""
    data = np.random.default_rng(0).normal(0, 1, (8, 3, 8, 8)).astype(np.float32)
    work = Model(saved(with_grid("height", "Conv"), tmp_path), {"x": data}, threads=1)
    int8 = Precision("int8", exact())
    *_, last = convolutions = [block.name for block in work.graph.candidates() if not block.movement]
    devices = {block.name: "camera" if block.name == last else "server" for block in work.graph.blocks}
    crossing = Crossing(work.graph.block(convolutions[0]).outputs[0], "server", "camera", "int8", 0.0, 0.0)
    unknown, use = Interval(0.0, 0.0, 0.0), DeviceUse("server", 0.0, 0.0, 0.0, 0.0, None, False, NAME)
    forms = placements(work.graph, dict.fromkeys(convolutions, int8))
    plan = Plan(
        work.model.sha256, exact(), (FLOAT32, int8), Limits(None),
        tuple(replace(block, device=devices[block.block]) for block in forms), "measured", 0.0, unknown, unknown,
        start="camera", crossings=(crossing,), usage=(use, replace(use, device="camera", runtime=ONNXRUNTIME)),
    )  # fmt: skip
    built, feed = assemble(work, plan), {"x": data[:1]}
    assert {part.device for part in built.parts} == {"camera", "server"}
    answers, wanted = (built.open(SessionOptions(1), runtime).run(feed) for runtime in (None, ONNXRUNTIME))
    assert max(map(difference, wanted, answers)) < 1e-4


@pytest.mark.parametrize("kind", ["Mul", "Div"])
def test_a_negative_factor_leaves_the_range_as_it_is(kind: str, tmp_path: Path) -> None:
    check(with_factor(kind), tmp_path, every=False)


def test_nothing_is_added_where_all_sizes_are_known(tmp_path: Path) -> None:
    work = Model(saved(with_grid(8, "Conv"), tmp_path), {"x": np.ones((2, 3, 8, 8), np.float32)}, threads=1)
    whole = dict.fromkeys((block.name for block in work.graph.candidates()), Precision("int8", exact()))
    built = work.in_place(NAME).builder(exact()).build(whole)
    assert "LeakyRelu" not in {node.op_type for node in built.graph.node}


@pytest.mark.parametrize("batch", ["batch", 1])
@pytest.mark.parametrize("kind", ["Add", "Sub", "Relu", "output"])
def test_all_readers_of_an_int8_convolution_without_a_bias_read_its_numbers(
    kind: str, batch: str | int, tmp_path: Path
) -> None:
    """In models that come quantised. With a batch of any size OpenVINO handed the numbers on by a factor off."""
    g = Sketch(5)
    x, scale, zero = g.input("x", batch, 3, 8, 8), g.constant(0.02), g.constant(np.array(128, np.uint8))
    read = g.op("DequantizeLinear", g.op("QuantizeLinear", x, scale, zero), scale, zero)
    whole = g.constant(g.rng.integers(-99, 99, (8, 3, 3, 3)).astype(np.int8))
    shared = g.op("Conv", read, g.op("DequantizeLinear", whole, g.constant(0.002)), pads=[1] * 4)
    if kind == "Relu":
        y = g.op("Add", g.op("Relu", shared), g.op("Sigmoid", shared))
    elif kind == "output":
        y = g.op("Add", g.conv(x, 3, 8), shared)
    else:
        y = g.op(kind, g.conv(shared, 8, 8), shared)
    proto = g.model(g.rename(y, "y"), *([g.rename(shared, "shared")] if kind == "output" else []))
    feed = {"x": np.random.default_rng(0).normal(0, 1, (1, 3, 8, 8)).astype(np.float32)}
    wanted = open_session(proto, SessionOptions(1, Optimization.NONE)).run(None, feed)
    keep_apart(proto.graph, dynamic=batch == "batch")
    answers = open_openvino(saved(proto, tmp_path), SessionOptions(1, runtime=NAME)).run(None, feed)
    assert max(map(difference, wanted, answers)) < ROUNDING
