"""Which forms without calibration `optimize` plans with, and that tables, plans and files hold them."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import taglio
from taglio.cli import main
from taglio.error.loss import Metric
from taglio.flow.choose_forms import FormResult, try_forms, with_forms
from taglio.flow.error import error_model
from taglio.flow.opening import Model
from taglio.flow.profile import profile_as
from taglio.quantize.precision import UNCALIBRATED
from taglio.quantize.scheme import Uncalibrated, parse_scheme
from tests.models import Sketch, exact, saved

WIDTH = 512


def products(folder: Path, layers: int = 3) -> tuple[Path, Path]:
    """Products of large matrices with Relu between them."""
    g = Sketch(6)
    x = g.input("x", 1, WIDTH)
    for layer in range(layers):
        x = g.op("Relu", x) if layer else x
        x = g.op("MatMul", x, g.constant(g.rng.normal(0, (2.0 / WIDTH) ** 0.5, (WIDTH, WIDTH))))
    model = saved(g.model(g.rename(x, "y")), folder)
    values = g.rng.normal(0, 1, (32, WIDTH)).astype(np.float32)
    np.savez(folder / "data.npz", x=values)
    return model, folder / "data.npz"


def test_a_form_is_kept_only_if_it_promises_a_gain(tmp_path: Path) -> None:
    model, data = products(tmp_path)
    work = Model(model, data, threads=1, runtime="onnxruntime").settled(exact())
    tried = try_forms(work.at(0.05), exact(), {"onnxruntime": 0.0}, 0.05, Metric())
    assert [(each.precision, each.blocks) for each in tried] == [
        ("int8-weights", 3),
        ("int8-dynamic", 3),
        ("int4-weights", 3),
    ]
    assert tried[0].error < 0.03 < tried[2].error
    for each in tried:
        saved_s = (each.float_s - each.latency_s) * min(1.0, 0.05 / each.error)
        assert each.score_s == pytest.approx(each.float_s - saved_s)
        better = any(other.latency_s < each.latency_s and other.error < each.error for other in tried)
        assert each.kept == (each.score_s <= 0.98 * each.float_s and not better)
    scheme, told = with_forms(exact(), ["onnxruntime"], tried)
    assert told == tried
    assert scheme.uncalibrated == tuple(
        short for short, each in zip(("w8", "dyn", "w4"), tried, strict=True) if each.kept
    )


def test_a_model_without_constant_matrices_tries_none(tmp_path: Path) -> None:
    g = Sketch(1)
    model = saved(g.model(g.conv(g.input("x", 1, 3, 8, 8), 3, 4)), tmp_path)
    np.savez(tmp_path / "data.npz", x=np.random.default_rng(0).random((8, 3, 8, 8), np.float32))
    work = Model(model, tmp_path / "data.npz", threads=1, runtime="onnxruntime").settled(exact())
    assert try_forms(work.at(0.01), exact(), {"onnxruntime": 0.0}, 0.01, Metric()) == ()


def recurrent(folder: Path, units: int = 64) -> tuple[Path, Path]:
    """An LSTM alone, bidirectional, on 12 steps."""
    g = Sketch(8)
    matrices = [g.constant(g.rng.uniform(-1, 1, (2, 4 * units, units)) / units**0.5) for _ in range(2)]
    g.op("LSTM", g.input("x", 12, 1, units), *matrices, hidden_size=units, direction="bidirectional")
    model = saved(g.model(g.rename("lstm0_out", "y")), folder)
    np.savez(folder / "data.npz", x=g.rng.normal(0, 1, (32, 12, 1, units)).astype(np.float32))
    return model, folder / "data.npz"


def test_a_network_of_an_lstm_alone_tries_int8_dynamic(tmp_path: Path) -> None:
    work = Model(*recurrent(tmp_path), threads=1, runtime="onnxruntime").settled(exact())
    (tried,) = try_forms(work.at(0.05), exact(), {"onnxruntime": 0.0}, 0.05, Metric())
    assert (tried.precision, tried.blocks, tried.dropped) == ("int8-dynamic", 1, "")
    assert 1e-4 < tried.error < 0.03


@pytest.mark.whole
def test_a_plan_may_compute_an_lstm_in_int8(tmp_path: Path) -> None:
    model, data = recurrent(tmp_path, 256)
    scheme = f"{exact()}-dyn"
    result = taglio.optimize(model, data, max_error=0.03, scheme=scheme, effort=0.02, threads=1, runtime="onnxruntime")
    kinds = [node.op_type for node in result.model.graph.node]
    assert kinds == ["DynamicQuantizeLSTM"] and result.table is not None and result.table.plan.holds(0.03)
    held = taglio.optimize(
        model, data, max_error=0.03, scheme=scheme, effort=0.02, threads=1, runtime="onnxruntime", keep_float=["lstm*"]
    )
    assert [node.op_type for node in held.model.graph.node] == ["LSTM"]


def test_a_form_counts_only_where_plans_are_made() -> None:
    def result(form: str, place: str) -> FormResult:
        return FormResult(form, place, 3, 2.0, 1.0, 0.01, 1.0, True)

    found = (result("int8-weights", "openvino"), result("int8-dynamic", "onnxruntime"))
    scheme, told = with_forms(exact(), ["openvino"], found)
    assert scheme.uncalibrated == ("w8",)
    assert [each.kept for each in told] == [True, False]


@pytest.mark.whole
@pytest.mark.parametrize(("make", "form"), [(products, "w8"), (recurrent, "dyn")])
def test_profile_and_error_model_know_the_form(
    make: Callable[[Path], tuple[Path, Path]], form: Uncalibrated, tmp_path: Path
) -> None:
    work = Model(*make(tmp_path), threads=1, runtime="onnxruntime").settled(exact())
    scheme = parse_scheme(f"{exact()}-{form}")
    known = profile_as(work.at(0.02), scheme)
    times = known.block_times()
    assert all((block.name, UNCALIBRATED[form].name) in times for block in work.graph.blocks)
    everything = {block.name: UNCALIBRATED[form] for block in work.graph.blocks}
    found = error_model(work, known, effort=1.0)
    measured = work.meter(work.switchable(scheme), found.samples).error(everything)
    assert found.predict(work.graph, everything) == pytest.approx(measured, rel=0.25)


@pytest.mark.whole
def test_a_plan_of_such_blocks_is_built_and_keeps_the_limit(tmp_path: Path) -> None:
    model, data = products(tmp_path)
    result = taglio.optimize(
        model, data, max_error=0.03, scheme=f"{exact()}-w8", effort=0.02, threads=1, runtime="onnxruntime"
    )
    assert result.table is not None and result.table.plan.holds(0.03)
    forms = Counter(each.precision for each in result.plan.placements)
    products_in_file = sum(node.op_type == "MatMulNBits" for node in result.model.graph.node)
    assert forms["int8-weights"] == products_in_file


@pytest.mark.parametrize(("method", "most"), [("int8-weights", 0.03), ("int4-weights", 0.3)])
def test_quantize_writes_a_form_by_name(
    method: str, most: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, data = products(tmp_path)
    out = tmp_path / "out.onnx"
    assert main(["quantize", str(model), "--data", str(data), "--method", method, "-o", str(out), "--json"]) == 0
    assert 1e-4 < float(capsys.readouterr().out.split('"error":')[1].split(",")[0]) < most
    assert out.stat().st_size < 0.35 * model.stat().st_size
