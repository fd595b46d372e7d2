"""Blocks that cannot be int8 are found by trying, and stay float with the reason."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from taglio.data.dataset import Dataset, assemble
from taglio.model import graph as graphs
from taglio.model.graph import Block
from taglio.model.load import Model, load
from taglio.quantize.qdq import QdqBuilder
from taglio.quantize.ranges import Ranges, calibrate
from taglio.quantize.trial import culprits, unusable
from tests.answers import ONE_THREAD, distance
from tests.models import Sketch, conv_relu_chain, exact, feeds, loaded, saved
from tests.quantize.test_qdq import Bench, check, forms, whole


def tried(model: Model, data: Dataset | None = None) -> tuple[Bench, dict[str, str]]:
    """A bench on the graph that is left when what fails in int8 is float, and what failed."""
    data = data or feeds(model, 3)
    graph, ranges = graphs.build(model), calibrate(model, data)
    reasons = unusable(graph, QdqBuilder(model, graph, ranges), exact(), data.samples[0], ONE_THREAD)
    return Bench(model, graph.without_int8(reasons), ranges, data.samples[0]), reasons


def blocks(folder: Path) -> Sequence[Block]:
    return graphs.build(loaded(conv_relu_chain(), folder)).blocks


def failing(*together: set[str]) -> Callable[[Sequence[Block]], str]:
    """Something that fails where all blocks of one of these sets are there."""
    return lambda chosen: next((f"{sorted(each)}" for each in together if each <= {b.name for b in chosen}), "")


def test_each_block_that_fails_alone_is_blamed(tmp_path: Path) -> None:
    every = blocks(tmp_path)
    first, last = every[0].name, every[-1].name
    assert culprits(every, failing({first}, {last})) == {first: f"['{first}']", last: f"['{last}']"}
    assert set(culprits(every, failing(*({b.name} for b in every)))) == {b.name for b in every}


def test_of_blocks_that_fail_together_one_is_blamed(tmp_path: Path) -> None:
    every = blocks(tmp_path)
    assert set(culprits(every, failing({every[0].name, every[2].name}))) == {every[2].name}


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_a_resize_of_some_axes_between_convolutions_loads(mode: str, tmp_path: Path) -> None:
    """ONNX Runtime refuses some of these in int8; none ends the run, and none costs more than its pairs."""
    g = Sketch(61, opset=18)
    x = g.conv(g.input("x", 1, 3, 8, 8), 3, 8)
    x = g.op("Resize", x, "", g.constant([2.0, 2.0]), axes=[2, 3], mode=mode)
    case, _ = tried(loaded(g.model(g.conv(x, 8, 4)), tmp_path))
    built = case.quantized(whole(case.graph, exact()))
    assert distance(case.float_outputs, built) < 0.06
    assert distance(built, case.switchable(*forms(exact())).run(whole(case.graph, exact()), case.feed)) < 1e-5


@pytest.mark.parametrize("mask", [-np.inf, float(np.finfo(np.float32).min), -1e9, -10000.0])
@pytest.mark.parametrize("limited", [False, True])
def test_scores_beside_a_mask_stay_float_and_the_products_do_not(mask: float, limited: bool, tmp_path: Path) -> None:
    g = Sketch(62)
    x = g.input("x", 1, 6, 16)
    q, k, v = (g.op("MatMul", x, g.weight(16, 8, gain=2.0)) for _ in range(3))
    scores = g.op("MatMul", q, g.op("Transpose", k, perm=[0, 2, 1]))
    causal = (
        np.triu(np.full((1, 6, 6), mask), 1) if np.isfinite(mask) else np.where(np.triu(np.ones((1, 6, 6)), 1), mask, 0)
    )
    masked = g.op("Add", scores, g.constant(causal))
    read = g.op("Max", masked, g.constant(np.array(mask))) if limited else masked
    y = g.op("MatMul", g.op("Softmax", read, axis=-1), v)
    case, _ = tried(loaded(g.model(y), tmp_path))
    (refused,) = (block for block in case.graph.blocks if block.refusal and block.kind not in ("Softmax", "Max"))
    assert refused.name == masked.removesuffix("_out")
    assert any(word in refused.refusal for word in ("mask", "Softmax", "infinity"))
    assert sum(block.kind == "MatMul" for block in case.graph.candidates()) == 5
    assert distance(case.float_outputs, case.quantized(whole(case.graph, exact()))) < 0.1


def test_scores_beside_a_mask_stay_float_before_a_softmax_in_parts(tmp_path: Path) -> None:
    """As ONNX Runtime writes the Softmax of a float16 model."""
    g = Sketch(62)
    x = g.input("x", 1, 6, 16)
    q, k, v = (g.op("MatMul", x, g.weight(16, 8, gain=2.0)) for _ in range(3))
    scores = g.op("MatMul", q, g.op("Transpose", k, perm=[0, 2, 1]))
    masked = g.op("Add", scores, g.constant(np.triu(np.full((1, 6, 6), -65504.0), 1)))
    powers = g.op("Exp", g.op("Sub", masked, g.op("ReduceMax", masked, axes=[-1])))
    shares = g.op("Div", powers, g.op("ReduceSum", powers, g.constant(np.array([-1]))))
    case, reasons = tried(loaded(g.model(g.op("MatMul", shares, v)), tmp_path))
    assert "too coarse" in reasons[masked.removesuffix("_out")]
    assert distance(case.float_outputs, case.quantized(whole(case.graph, exact()))) < 0.1


def test_a_concat_of_unlike_ranges_stays_float(tmp_path: Path) -> None:
    g = Sketch(63)
    x = g.input("x", 1, 4, 8, 8)
    boxes = g.op("Conv", x, g.constant(g.rng.normal(0, 100, (4, 4, 1, 1))))
    scores = g.op("Sigmoid", g.conv(x, 4, 6, 1))
    case, reasons = tried(loaded(g.model(g.op("Concat", boxes, scores, axis=1)), tmp_path))
    (reason,) = reasons.values()
    assert "of 256 steps" in reason
    (answer,), (wanted,) = case.quantized(whole(case.graph, exact())), case.float_outputs
    assert distance([wanted[:, 4:]], [answer[:, 4:]]) < 0.05


def test_token_embeddings_are_no_movement_of_their_table(tmp_path: Path) -> None:
    g = Sketch(64)
    ids = "ids"
    g.inputs.append(helper.make_tensor_value_info(ids, TensorProto.INT64, [1, 6]))
    x = g.op("Gather", g.weight(30, 16), ids)
    x = g.op("Add", x, g.op("Reshape", g.weight(6, 16), g.constant(np.array([1, 6, 16]))))
    y = g.op("MatMul", g.op("Transpose", x, perm=[0, 2, 1]), g.weight(6, 5))
    model = load(saved(g.model(y), tmp_path))
    rng = np.random.default_rng(0)
    samples = tuple({ids: rng.integers(0, 30, (1, 6))} for _ in range(3))
    case, reasons = tried(model, assemble("ids", samples, ("0", "1", "2"), None))
    assert not reasons
    check(case)


def test_a_block_of_a_tensor_without_a_range_is_named(tmp_path: Path) -> None:
    model = loaded(conv_relu_chain(), tmp_path)
    graph, data = graphs.build(model), feeds(model, 2)
    ranges = calibrate(model, data)
    some = {name: pair for name, pair in ranges.low_high.items() if name != "y"}
    missing = Ranges("", some, {"y": "is empty on all of the data"})
    reasons = unusable(graph, QdqBuilder(model, graph, missing), exact(), data.samples[0], ONE_THREAD)
    assert list(reasons) == [graph.blocks[-1].name]
    assert "is empty on all of the data" in reasons[graph.blocks[-1].name]
