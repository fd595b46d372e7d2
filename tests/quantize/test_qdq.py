"""Quantised models: the switchable graph, the built file and ONNX Runtime's QOperator give the same answers.

Kernels of one block are the same in a branch and in a whole model, so answers are compared at float32's last bits;
only whole models fuse Conv + Add, which reorders one sum.
"""

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import onnx
import pytest

from taglio.embedded import digits_data
from taglio.error.switchable import Switchable
from taglio.model import graph as graphs
from taglio.model.graph import Block, Graph
from taglio.model.load import Model, load
from taglio.quantize.precision import FLOAT32, Assignment, Precision
from taglio.quantize.qdq import QdqBuilder
from taglio.quantize.ranges import Ranges, calibrate
from taglio.quantize.scheme import Scheme
from taglio.runtimes.onnxruntime import Optimization, SessionOptions, open_session
from tests.answers import ONE_THREAD, answers, distance
from tests.examples import tries
from tests.models import TINY, Sketch, conv_relu_chain, digits_model, exact, feeds, loaded

LAST_BITS = 1e-6
# ONNX Runtime on x86 turns s8 pairs into u8 ones, but not those that two operators read; an Add or Mul that is left
# with one input of each type runs in float, which rounds some values to the neighbouring step.
ONE_STEP = 0.03
SCHEMES = [exact(text) for text in ("s8s8-sym", "u8s8-asym-rr")]
# Every network in the usual scheme, and three that differ most in every scheme.
CASES = [(name, exact()) for name in (*TINY, "digits")]
CASES += [(name, scheme) for name in ("residual", "silu", "dense") for scheme in SCHEMES]
SUBSETS = 6
INTEGER_KERNELS = {
    "QLinearConv": "Conv", "QGemm": "Gemm", "QLinearMatMul": "MatMul", "MatMulIntegerToFloat": "MatMul",
    "DynamicQuantizeMatMul": "MatMul", "QLinearSoftmax": "Softmax",
}  # fmt: skip


@dataclass(frozen=True)
class Bench:
    """A model, its ranges, and one of the inputs that they were taken on: no value is clipped."""

    model: Model
    graph: Graph
    ranges: Ranges
    feed: Mapping[str, np.ndarray]

    @cached_property
    def builder(self) -> QdqBuilder:
        return QdqBuilder(self.model, self.graph, self.ranges)

    @cached_property
    def float_outputs(self) -> list[np.ndarray]:
        return answers(self.model.proto, self.feed)

    def nodes(self, block: Block) -> list[onnx.NodeProto]:
        return [node for node in self.model.proto.graph.node if node.name in block.operators]

    def quantized(self, assignment: Assignment) -> list[np.ndarray]:
        return answers(self.builder.build(assignment), self.feed)

    def switchable(self, *precisions: Precision) -> Switchable:
        return Switchable(self.graph, self.builder, precisions, ONE_THREAD)


def bench(model: Model) -> Bench:
    seen = feeds(model, 3)
    return Bench(model, graphs.build(model), calibrate(model, seen), seen.samples[0])


@pytest.fixture(scope="module")
def benches(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bench]:
    by_name = {name: bench(loaded(make(), tmp_path_factory.mktemp(name))) for name, make in TINY.items()}
    digits = bench(load(digits_model()))
    with np.load(digits_data()) as data:
        image = data["image"][7:8]
    by_name["digits"] = replace(digits, feed={"image": image})
    return by_name


def forms(scheme: Scheme) -> tuple[Precision, Precision]:
    return Precision("int8", scheme), Precision("int8-anchor", scheme)


def whole(graph: Graph, scheme: Scheme) -> dict[str, Precision]:
    return {block.name: forms(scheme)[0] for block in graph.candidates()}


def subsets(graph: Graph, scheme: Scheme, count: int = SUBSETS) -> list[dict[str, Precision]]:
    """Everything whole, everything in its smallest form, and random subsets in random forms."""
    rng = random.Random(str(scheme))
    int8, anchor = forms(scheme)
    blocks = graph.candidates()
    chosen = [whole(graph, scheme), {b.name: anchor if b.soft_tail else int8 for b in blocks}]
    while len(chosen) < min(count, tries(10 * count)):
        share = rng.uniform(0.2, 0.9)
        taken = [block for block in blocks if rng.random() < share]
        chosen.append({b.name: anchor if b.soft_tail and rng.random() < 0.4 else int8 for b in taken})
    return chosen


def optimized(proto: onnx.ModelProto, folder: Path) -> list[onnx.NodeProto]:
    """The operators that ONNX Runtime really runs."""
    open_session(proto, ONE_THREAD, save_optimized=folder / "optimized.onnx")
    return list(onnx.load(folder / "optimized.onnx").graph.node)


@pytest.mark.parametrize("name", [*TINY, "digits"])
def test_with_all_flags_off_the_switchable_graph_is_the_float_model(benches: dict[str, Bench], name: str) -> None:
    case = benches[name]
    switchable = case.switchable(*forms(exact()))
    assert distance(case.float_outputs, switchable.run({}, case.feed)) <= LAST_BITS
    built = case.builder.build({block.name: FLOAT32 for block in case.graph.blocks})
    assert not any("Quantize" in node.op_type for node in built.graph.node)
    assert distance(case.float_outputs, answers(built, case.feed)) <= LAST_BITS


@pytest.mark.parametrize(("name", "scheme"), CASES, ids=str)
def test_any_subset_on_the_switchable_graph_is_the_truly_quantised_model(
    benches: dict[str, Bench], name: str, scheme: Scheme
) -> None:
    case = benches[name]
    switchable = case.switchable(*forms(scheme))
    limit = ONE_STEP if scheme.signed else LAST_BITS
    for assignment in subsets(case.graph, scheme):
        quantized = case.quantized(assignment)
        assert distance(quantized, switchable.run(assignment, case.feed)) <= limit, assignment
        assert distance(case.float_outputs, quantized) < 0.25, assignment


@pytest.mark.parametrize(("name", "scheme"), [case for case in CASES if not case[1].signed], ids=str)
def test_int8_blocks_run_in_int8_and_float_blocks_in_float(
    benches: dict[str, Bench], name: str, scheme: Scheme, tmp_path: Path
) -> None:
    case = benches[name]
    # A product of two activations has no weights to keep float: between int8 neighbours it runs in int8 unasked.
    products = {b.name for b in case.graph.blocks if b.kind == "MatMul" and not b.weights}
    for assignment in subsets(case.graph, scheme, 5):
        nodes = optimized(case.builder.build(assignment), tmp_path)
        ran = Counter(INTEGER_KERNELS[node.op_type] for node in nodes if node.op_type in INTEGER_KERNELS)
        asked = Counter(case.graph.block(block).kind.split("+")[0] for block in assignment)
        assert (ran["Conv"], ran["Gemm"], ran["Softmax"]) == (asked["Conv"], asked["Gemm"], 0), assignment
        assert 0 <= ran["MatMul"] - asked["MatMul"] <= len(products - set(assignment)), assignment


def test_a_residual_sum_and_its_relu_are_one_int8_kernel(benches: dict[str, Bench], tmp_path: Path) -> None:
    case = benches["residual"]
    ran = Counter(node.op_type for node in optimized(case.builder.build(whole(case.graph, exact())), tmp_path))
    assert ran.pop("Transpose") == 2  # to channels last and back
    assert ran == {"QuantizeLinear": 1, "QLinearConv": 5, "QLinearAdd": 2, "DequantizeLinear": 1}


@pytest.mark.parametrize("name", ["silu", "conv_relu_chain"])
def test_no_pair_stands_before_an_activation_that_the_runtime_fuses(benches: dict[str, Bench], name: str) -> None:
    case, scheme = benches[name], exact()
    builder = case.builder.fusing()
    switchable = Switchable(case.graph, builder, forms(scheme), ONE_THREAD)
    soft = [block for block in case.graph.candidates() if block.soft_tail]
    assert soft
    for assignment in subsets(case.graph, scheme):
        built = builder.build(assignment)
        names = {node.name for node in built.graph.node}
        for block in soft:
            between = {name for node in case.nodes(block)[:-1] for name in node.output}
            assert not {f"{tensor}/quantize" for tensor in between} & names
        quantized = answers(built, case.feed)
        assert distance(quantized, switchable.run(assignment, case.feed)) <= LAST_BITS, assignment
    everything = whole(case.graph, scheme)
    fused = distance(case.float_outputs, answers(builder.build(everything), case.feed))
    assert fused < 1.2 * distance(case.float_outputs, case.quantized(everything))


def test_a_pool_behind_a_float_operator_is_not_quantised(tmp_path: Path) -> None:
    """Its int8 kernel would be many times slower than float's."""
    g = Sketch()
    x = g.op("Relu", g.conv(g.input("x", 1, 4, 12, 12), 4, 8))
    x = g.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    of = bench(loaded(g.model(g.conv(x, 8, 8)), tmp_path))
    assignment = {of.graph.blocks[-1].name: forms(exact())[0]}
    ran = [node.op_type for node in optimized(of.builder.build(assignment), tmp_path)]
    assert ran.index("MaxPool") < ran.index("QuantizeLinear")
    assert distance(of.quantized(assignment), of.switchable(*forms(exact())).run(assignment, of.feed)) <= LAST_BITS


@pytest.mark.parametrize("name", ["two_in_two_out", "messy"])
def test_inputs_and_outputs_keep_names_types_and_shapes(benches: dict[str, Bench], name: str) -> None:
    case = benches[name]
    before = open_session(case.model.proto, ONE_THREAD)
    after = open_session(case.builder.build(whole(case.graph, exact())), ONE_THREAD)
    for was, now in ((before.get_inputs(), after.get_inputs()), (before.get_outputs(), after.get_outputs())):
        assert [(x.name, x.type, x.shape) for x in was] == [(x.name, x.type, x.shape) for x in now]


@pytest.mark.parametrize("opset", [11, 17])
def test_what_the_model_says_of_itself_is_kept(opset: int, tmp_path: Path) -> None:
    """Programs read characters, sample rates and class names from it."""
    g = Sketch(opset=opset)
    proto = g.model(g.op("Relu", g.conv(g.input("x", 1, 3, 8, 8), 3, 4)))
    proto.domain, proto.model_version, proto.doc_string = "org.example", 3, "reads numbers"
    proto.metadata_props.add(key="character", value="0\n1\n2")
    of = bench(loaded(proto, tmp_path))
    for built in (of.builder.build({}), of.builder.build(whole(of.graph, exact()))):
        assert (built.domain, built.model_version, built.doc_string) == ("org.example", 3, "reads numbers")
        assert {entry.key: entry.value for entry in built.metadata_props} == {"character": "0\n1\n2"}


def test_the_model_is_not_written_to(benches: dict[str, Bench]) -> None:
    case = benches["silu"]
    before = case.model.proto.SerializeToString(deterministic=True)
    case.builder.build(whole(case.graph, exact()))
    case.switchable(*forms(exact()))
    assert case.model.proto.SerializeToString(deterministic=True) == before


# Small cases, each with what once went wrong or could.


def small(sketch: Sketch, output: str, folder: Path) -> Bench:
    return bench(loaded(sketch.model(output), folder))


def check(case: Bench, limit: float = 0.1) -> None:
    """Quantised whole: close to float, equal to the switchable graph, and to the file run without any fusion."""
    assignment = whole(case.graph, exact())
    fused = case.quantized(assignment)
    plain = answers(case.builder.build(assignment), case.feed, SessionOptions(1, Optimization.NONE))
    assert distance(case.float_outputs, plain) < limit
    # QLinear kernels may round a value to the neighbouring step.
    assert distance(plain, fused) < limit / 2
    switchable = case.switchable(*forms(exact()))
    assert distance(fused, switchable.run(assignment, case.feed)) <= LAST_BITS


def test_a_dead_channel_and_a_huge_bias(tmp_path: Path) -> None:
    g = Sketch(21)
    weights = g.rng.normal(0, 0.2, (8, 3, 3, 3))
    weights[2] = 0.0
    weights[5] *= 1e-7
    bias = g.rng.normal(0, 0.3, 8)
    bias[5] = 20.0
    x = g.op("Conv", g.input("x", 1, 3, 8, 8), g.constant(weights), g.constant(bias))
    check(small(g, x, tmp_path))


@pytest.mark.parametrize("shape", [(5,), (), (3, 1)])
def test_gemm_biases_that_broadcast(shape: tuple[int, ...], tmp_path: Path) -> None:
    g = Sketch(25)
    x = g.op("Gemm", g.input("x", 3, 8), g.weight(8, 5), g.constant(g.rng.normal(0, 0.5, shape)))
    check(small(g, x, tmp_path))


def test_relu_is_free_only_where_the_zero_point_clips(tmp_path: Path) -> None:
    case = bench(loaded(conv_relu_chain(), tmp_path))

    def quantizes_before_relu(scheme: str) -> bool:
        built = case.builder.build({"conv0": forms(exact(scheme))[0]})
        return "Quantize" in next(n for n in built.graph.node if "conv0_out" in n.input).op_type

    assert not quantizes_before_relu("u8s8-asym")
    assert quantizes_before_relu("s8s8-sym")
