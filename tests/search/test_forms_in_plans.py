"""Which forms without calibration `optimize` plans with, and that tables, plans and files hold them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import taglio
from taglio.cli import main
from taglio.error.loss import Metric
from taglio.flow.error import error_model
from taglio.flow.opening import Model
from taglio.flow.profile import profile_as
from taglio.quantize.precision import uncalibrated_forms
from taglio.quantize.scheme import Uncalibrated, parse_scheme
from taglio.search.screen import screen
from tests.models import Sketch, exact, saved
from tests.processor import SATURATES
from tests.support.gaining import gaining

WIDTH = 512
FORMS = uncalibrated_forms(SATURATES)


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
    work = Model(model, data, threads=1, runtime="onnxruntime")
    result = screen(work.at(0.1), None, 0.05, Metric(), is_forced=True)
    rows = {row.form: row for row in result.forms}
    names = ("int8-weights", "int8-dynamic", "int4-weights")
    assert [*rows] == ["int8", *names] and all(rows[name].blocks == 3 for name in names)
    errors = {name: row.error or 0.0 for name, row in rows.items()}
    seconds = {name: row.seconds or 0.0 for name, row in rows.items()}
    assert errors["int8-weights"] < 0.03 < errors["int4-weights"]
    for name in names:
        row = rows[name]
        assert row.float_s is not None and row.score_s is not None
        saved_s = (row.float_s - seconds[name]) * min(1.0, 0.05 / errors[name])
        assert row.score_s == pytest.approx(row.float_s - saved_s)
        better = any(seconds[other] < seconds[name] and errors[other] < errors[name] for other in rows)
        assert row.kept == (row.score_s <= 0.98 * row.float_s and not better)
    kept = [name for name in names if rows[name].kept]
    assert result.scheme.uncalibrated == tuple(kept)


def recurrent(folder: Path, units: int = 64) -> tuple[Path, Path]:
    """An LSTM alone, bidirectional, on 12 steps."""
    g = Sketch(8)
    matrices = [g.constant(g.rng.uniform(-1, 1, (2, 4 * units, units)) / units**0.5) for _ in range(2)]
    g.op("LSTM", g.input("x", 12, 1, units), *matrices, hidden_size=units, direction="bidirectional")
    model = saved(g.model(g.rename("lstm0_out", "y")), folder)
    np.savez(folder / "data.npz", x=g.rng.normal(0, 1, (32, 12, 1, units)).astype(np.float32))
    return model, folder / "data.npz"


def test_a_network_of_an_lstm_alone_races_int8_dynamic(tmp_path: Path) -> None:
    work = Model(*recurrent(tmp_path), threads=1, runtime="onnxruntime")
    (row,) = screen(work.at(0.05), None, 0.05, Metric()).forms
    assert (row.form, row.blocks, row.refused) == ("int8-dynamic", 1, "")
    assert row.error is not None and 1e-4 < row.error < 0.03


@pytest.mark.whole
@pytest.mark.usefixtures("gain_confirmed")
def test_a_plan_may_compute_an_lstm_in_int8(tmp_path: Path) -> None:
    model, data = recurrent(tmp_path, 256)
    options: dict[str, Any] = {
        "scheme": f"{exact()}+int8-dynamic",
        "effort": 0.02,
        "threads": 1,
        "runtime": "onnxruntime",
    }
    result = gaining(lambda: taglio.optimize(model, data, max_error=0.03, **options))
    kinds = [node.op_type for node in result.model.graph.node]
    assert kinds == ["DynamicQuantizeLSTM"] and result.table is not None and result.table.plan.holds(0.03)


@pytest.mark.whole
@pytest.mark.parametrize(("make", "form"), [(products, "int8-weights"), (recurrent, "int8-dynamic")])
def test_profile_and_error_model_know_the_form(
    make: Callable[[Path], tuple[Path, Path]], form: Uncalibrated, tmp_path: Path
) -> None:
    work = Model(*make(tmp_path), threads=1, runtime="onnxruntime").settled(exact())
    scheme = parse_scheme(f"{exact()}+{form}")
    known = profile_as(work.at(0.02), scheme)
    times = known.block_times()
    assert all((block.name, FORMS[form].name) in times for block in work.graph.blocks)
    everything = {block.name: FORMS[form] for block in work.graph.blocks}
    found = error_model(work, known, effort=1.0)
    measured = work.meter(work.switchable(scheme), found.samples).error(everything)
    assert found.predict(work.graph, everything) == pytest.approx(measured, rel=0.25)


@pytest.mark.parametrize(("method", "most"), [("int8-weights", 0.03), ("int8-dynamic", 0.1), ("int4-weights", 0.3)])
def test_quantize_writes_a_form_by_name(
    method: str, most: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, data = products(tmp_path)
    out = tmp_path / "out.onnx"
    assert main(["quantize", str(model), "--data", str(data), "--method", method, "-o", str(out), "--json"]) == 0
    assert 1e-4 < float(capsys.readouterr().out.split('"error":')[1].split(",")[0]) < most
    assert out.stat().st_size < 0.35 * model.stat().st_size
