"""Forms without calibration: what is stored, what both runtimes make of it, and which blocks have them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from taglio.error.switchable import Switchable
from taglio.errors import BadOption, CannotQuantize
from taglio.model import graph as graphs
from taglio.model.graph import Graph
from taglio.model.load import Model
from taglio.plan.one_machine import pinned
from taglio.quantize.precision import BFLOAT16, UNCALIBRATED, Precision, precisions, uncalibrated_forms
from taglio.quantize.qdq import QdqBuilder
from taglio.quantize.ranges import calibrate
from taglio.quantize.scheme import Scheme, Uncalibrated, parse_scheme
from taglio.quantize.uncalibrated import quantize_matrix
from taglio.runtimes.onnxruntime import SessionOptions, open_session
from taglio.runtimes.session import opener
from tests.answers import ONE_THREAD, distance
from tests.models import Sketch, feeds, loaded, parsed
from tests.processor import SATURATES, needs_wide_sums

SCHEME = Scheme()
Network = tuple[Model, Graph, QdqBuilder, dict[str, np.ndarray]]
FORMS = {name: form for name, form in uncalibrated_forms(SATURATES).items() if form != BFLOAT16}
DYNAMIC = FORMS["int8-dynamic"]


def mixed() -> onnx.ModelProto:
    """MatMul with an activation, a Gemm of either orientation, and matrices that are too small or computed."""
    g = Sketch(11)
    x = g.input("x", 1, 5, 70)
    x = g.op("Relu", g.op("MatMul", x, g.weight(70, 64)))
    x = g.op("Reshape", x, g.constant(np.array([5, 64])))
    x = g.op("Gemm", x, g.weight(48, 64), g.constant(g.rng.normal(0, 0.2, 48)), transB=1)
    x = g.op("Gemm", x, g.weight(48, 96))
    x = g.op("MatMul", g.op("MatMul", x, g.op("Transpose", x)), x)
    x = g.op("Gemm", x, g.weight(96, 40), alpha=0.5)
    return g.model(g.rename(g.op("MatMul", x, g.weight(40, 8)), "y"))


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Network:
    model = loaded(mixed(), tmp_path_factory.mktemp("mixed"))
    seen = feeds(model, 3)
    graph = graphs.build(model)
    builder = QdqBuilder(model, graph, calibrate(model, seen))
    return model, graph, builder, dict(seen.samples[0])


def test_blocks_with_a_constant_matrix_have_the_form(network: Network) -> None:
    _, graph, builder, _ = network
    fitting = [block.kind for block in graph.blocks if UNCALIBRATED["int8-weights"].fits(block)]
    assert fitting == ["MatMul+Relu", "Gemm", "Gemm"]
    small = graph.blocks[-1].name
    with pytest.raises(CannotQuantize, match="no int8-weights form: it has no constant matrix"):
        builder.build({small: UNCALIBRATED["int8-weights"]})


@pytest.mark.parametrize(("name", "most"), [("int8-weights", 0.025), ("int8-dynamic", 0.05), ("int4-weights", 0.4)])
def test_both_runtimes_answer_like_float(network: Network, name: Uncalibrated, most: float, tmp_path: Path) -> None:
    model, graph, builder, feed = network
    form = FORMS[name]
    built = builder.build({block.name: form for block in graph.blocks if form.fits(block)})
    onnx.checker.check_model(built)
    operator = "DynamicQuantizeMatMul" if name == "int8-dynamic" else "MatMulNBits"
    assert [node.op_type for node in built.graph.node].count(operator) == 3
    assert built.ByteSize() < 0.6 * model.proto.ByteSize()
    path = tmp_path / "built.onnx"
    onnx.save(built, path)
    (wanted,) = open_session(model.proto, ONE_THREAD).run(None, feed)
    for place in ("onnxruntime", "openvino"):
        (answer,) = opener(place)(path, SessionOptions(1, runtime=place)).run(["y"], feed)
        assert 1e-4 < np.linalg.norm(answer - wanted) / np.linalg.norm(wanted) < most, place


def test_the_switchable_graph_is_every_built_mix(network: Network) -> None:
    _, graph, builder, feed = network
    forms = (Precision("int8", SCHEME), *FORMS.values())
    switchable = Switchable(graph, builder, forms, ONE_THREAD)
    blocks = [block for block in graph.blocks if UNCALIBRATED["int8-weights"].fits(block)]
    for chosen in product((None, *forms), repeat=len(blocks)):
        mix = {block.name: form for block, form in zip(blocks, chosen, strict=True) if form is not None}
        (built,) = open_session(builder.build(mix), ONE_THREAD).run(None, feed)
        (switched,) = switchable.run(mix, feed)
        np.testing.assert_allclose(switched, built, rtol=1e-5, atol=1e-5 * float(np.abs(built).max()))


@dataclass(frozen=True)
class Recurrent:
    """One LSTM: its direction, whether states and lengths of sequences are model inputs, other attributes, peepholes,
    and hidden units."""

    direction: str = "forward"
    states: bool = False
    lengths: bool = False
    peepholes: bool = False
    units: int = 40
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def model(self) -> onnx.ModelProto:
        """An LSTM on 7 steps of 2 sequences, between a Tanh and a product."""
        g, units = Sketch(12), self.units
        directions = 2 if self.direction == "bidirectional" else 1
        x = g.op("Tanh", g.input("x", 7, 2, 48))
        matrices = [
            g.constant(g.rng.uniform(-1, 1, (directions, 4 * units, columns)) / columns**0.5) for columns in (48, units)
        ]
        bias = g.constant(g.rng.normal(0, 0.2, (directions, 8 * units)))
        lengths = ""
        if self.lengths:
            lengths = "lengths"
            g.inputs.append(helper.make_tensor_value_info(lengths, onnx.TensorProto.INT32, [2]))
        states = [g.input(name, directions, 2, units) for name in "hc"] if self.states else ["", ""]
        holes = [g.constant(g.rng.normal(0, 0.2, (directions, 3 * units)))] if self.peepholes else []
        y = g.op(
            "LSTM", x, *matrices, bias, lengths, *states, *holes, outputs=3,
            hidden_size=units, direction=self.direction, **self.attributes,
        )  # fmt: skip
        presents = [g.rename(f"{y}{index}", name) for index, name in ((1, "hn"), (2, "cn"))] if self.states else []
        return g.model(g.rename(g.op("MatMul", y, g.weight(units, 8)), "y"), *presents)


VARIANTS = (
    Recurrent(),
    Recurrent("reverse", attributes={"layout": 0, "clip": 0.5, "activations": ["Sigmoid", "Relu", "Tanh"]}),
    Recurrent("bidirectional"),
    Recurrent(states=True),
    Recurrent(lengths=True),
    Recurrent("bidirectional", states=True, lengths=True),
)


def with_lstm(kind: Recurrent, folder: Path) -> Network:
    model = loaded(kind.model(), folder)
    seen = feeds(model, 3)
    feed = dict(seen.samples[0])
    if kind.lengths:
        feed["lengths"] = np.array([7, 4], np.int32)
    graph = graphs.build(model)
    return model, graph, QdqBuilder(model, graph, calibrate(model, seen)), feed


@pytest.mark.parametrize("reduced_range", [pytest.param(False, marks=needs_wide_sums), True])
@pytest.mark.parametrize("kind", VARIANTS)
def test_an_lstm_answers_like_float(kind: Recurrent, reduced_range: bool, tmp_path: Path) -> None:
    model, graph, builder, feed = with_lstm(kind, tmp_path)
    (lstm,) = (block for block in graph.blocks if block.kind == "LSTM")
    assert [name for name, form in UNCALIBRATED.items() if form.fits(lstm)] == ["int8-dynamic", "bfloat16"]
    assert not lstm.quantizable
    built = builder.build({lstm.name: uncalibrated_forms(reduced_range)["int8-dynamic"]})
    assert [node.op_type for node in built.graph.node].count("DynamicQuantizeLSTM") == 1
    assert built.ByteSize() < 0.5 * model.proto.ByteSize()
    path = tmp_path / "built.onnx"
    onnx.save(built, path)
    outputs = list(model.outputs)
    wanted = open_session(model.proto, ONE_THREAD).run(outputs, feed)
    for place in ("onnxruntime", "openvino"):
        answers = opener(place)(path, SessionOptions(1, runtime=place)).run(outputs, feed)
        assert 1e-4 < distance(wanted, answers) < 0.03, place


@pytest.mark.parametrize("kind", [VARIANTS[0], VARIANTS[-1]])
def test_the_switchable_graph_is_every_mix_with_an_lstm(kind: Recurrent, tmp_path: Path) -> None:
    model, graph, builder, feed = with_lstm(kind, tmp_path)
    forms = (Precision("int8", SCHEME), *FORMS.values())
    switchable = Switchable(graph, builder, forms, ONE_THREAD)
    lstm, product_block = graph.blocks[1:]
    assert [switch.precision.name for switch in switchable.switches if switch.block == lstm.name] == ["int8-dynamic"]
    for chosen in product((None, DYNAMIC), (None, forms[0])):
        mix = {block.name: form for block, form in zip((lstm, product_block), chosen, strict=True) if form is not None}
        built = open_session(builder.build(mix), ONE_THREAD).run(list(model.outputs), feed)
        for one, other in zip(switchable.run(mix, feed), built, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("kind", [Recurrent(peepholes=True), Recurrent(units=16)])
def test_an_lstm_without_the_kernel_stays_float(kind: Recurrent, tmp_path: Path) -> None:
    _, graph, builder, _ = with_lstm(kind, tmp_path)
    lstm = graph.blocks[1]
    assert [name for name, form in UNCALIBRATED.items() if form.fits(lstm)] == ["bfloat16"]
    with pytest.raises(CannotQuantize, match="no int8-dynamic form: ONNX Runtime has no int8 LSTM"):
        builder.build({lstm.name: UNCALIBRATED["int8-dynamic"]})


def test_an_lstm_that_keeps_its_state_stays_float(tmp_path: Path) -> None:
    model = loaded(Recurrent(states=True).model(), tmp_path)
    lstm = graphs.build(model, states=(("hn", "h"), ("cn", "c"))).blocks[1]
    assert not lstm.has_choice and "keeps a state" in lstm.refusal


def test_pins_know_that_an_lstm_has_one_form(tmp_path: Path) -> None:
    _, graph, _, _ = with_lstm(Recurrent(), tmp_path)
    assert pinned(graph, ["lstm*"], []).float_blocks == (graph.blocks[1].name,)
    with pytest.raises(BadOption, match="its only form beside float32 is int8-dynamic"):
        pinned(graph, [], ["lstm*"])


def test_a_scheme_names_weights_of_seven_bits_in_every_form() -> None:
    wide = parse_scheme("qdq-u8s8-asym-pc+int8-weights+int8-dynamic+int4-weights")
    assert wide.may_saturate and not wide.narrow.may_saturate
    assert str(wide.narrow) == "qdq-u8s8-asym-pc-rr+int8-weights+int8-dynamic+int4-weights"
    assert parse_scheme(str(wide.narrow)) == wide.narrow
    dynamic = precisions(wide.narrow)[4]
    assert dynamic.name == "int8-dynamic" and not dynamic.may_saturate


@pytest.mark.parametrize(("saturates", "largest"), [(True, 64), (False, 127)])
def test_int8_dynamic_has_weights_that_fit_the_processor(network: Network, saturates: bool, largest: int) -> None:
    """And no others are left by a build for another processor."""
    _, graph, builder, _ = network
    forms = {named.name: named for named in uncalibrated_forms(saturates).values()}
    assert list(forms) == ["int8-weights", "int8-dynamic", "int4-weights", "bfloat16"]
    form = forms["int8-dynamic"]
    built = builder.build({block.name: form for block in graph.blocks if form.fits(block)})
    constants = {named.name: numpy_helper.to_array(named) for named in built.graph.initializer}
    stored = [constants[node.input[1]] for node in built.graph.node if node.op_type == "DynamicQuantizeMatMul"]
    assert len(stored) == 3 and {int(np.abs(values.astype(int)).max()) for values in stored} == {largest}
    lstm = quantize_matrix(np.random.default_rng(3).normal(size=(2, 48, 160)).astype(np.float32), form)
    assert int(np.abs(lstm.values.astype(int)).max()) == largest and lstm.scale.shape == (2, 160)


@pytest.mark.parametrize(
    ("bits", "level", "form"), [(4, None, "int4-weights"), (4, 0, "int4-weights"), (8, 1, "int8-weights"), (4, 4, "")]
)
def test_a_blockwise_product_of_the_source_has_the_form_that_multiplies_in_int8(
    bits: int, level: int | None, form: str, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    stored = rng.integers(0, 256, (64, 2, 32 * bits // 8)).astype(np.uint8)
    scales = rng.uniform(0.001, 0.01, 128).astype(np.float32)
    attributes = f"K = 64, N = 64, bits = {bits}, block_size = 32"
    attributes += "" if level is None else f", accuracy_level = {level}"
    product_node = f"[product] y = com.microsoft.MatMulNBits <{attributes}> (x, stored, scales)"
    text = f"(float[1, 64] x) => (float[1, 64] y) {{ {product_node} }}"
    model = loaded(parsed(text, {"stored": stored, "scales": scales}), tmp_path)
    blocks = graphs.build(model)
    (block,) = blocks.blocks
    assert [short for short, each in UNCALIBRATED.items() if each.fits(block)] == [*filter(None, [form]), "bfloat16"]
    if not form:
        return
    built = QdqBuilder(model, blocks).build({"product": UNCALIBRATED[form]})  # type: ignore[index]
    (node,) = built.graph.node
    assert [each.i for each in node.attribute if each.name == "accuracy_level"] == [4]
    assert {each.name for each in built.graph.initializer} == {"stored", "scales"}
    x = rng.standard_normal((1, 64)).astype(np.float32)
    exact, answer = (open_session(each, SessionOptions(1)).run(None, {"x": x})[0] for each in (model.proto, built))
    assert 0.0 < float(np.linalg.norm(answer - exact) / np.linalg.norm(exact)) < 0.02
