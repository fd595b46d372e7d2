"""Ranges by their effect on the outputs, and which repairs `optimize` keeps."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from taglio.cli import main
from taglio.error.loss import Metric
from taglio.flow import choose_repairs as module
from taglio.flow.choose_repairs import choose_repairs
from taglio.flow.opening import Model
from taglio.flow.work import Work
from taglio.quantize.scheme import parse_scheme
from tests.models import Sketch, exact, saved

WIDTH = 2048
RANGES = parse_scheme(f"{exact()}-ranges")


def outliers(folder: Path, weight_of_it: float) -> tuple[Path, Path]:
    """One value in 2,048 is 100 times the others; `weight_of_it` is how much the output is of it."""
    g = Sketch(5)
    weight = g.rng.normal(0, 0.03, (WIDTH, 64))
    weight[0] = weight_of_it
    model = saved(g.model(g.op("Gemm", g.input("x", 1, WIDTH), g.constant(weight), g.constant(np.ones(64)))), folder)
    x = g.rng.normal(0, 1, (24, WIDTH)).astype(np.float32)
    x[:, 0] = g.rng.uniform(200, 400, 24)
    np.savez(folder / "data.npz", x=x)
    return model, folder / "data.npz"


def opened(folder: Path, weight_of_it: float) -> Work:
    model, data = outliers(folder, weight_of_it)
    return Model(model, data, threads=1).settled(exact())


def test_an_outlier_that_does_not_matter_is_clipped(tmp_path: Path) -> None:
    assert opened(tmp_path, 0.0).ranges(RANGES).low_high["x"][1] < 10.0


def test_an_outlier_that_matters_keeps_its_range(tmp_path: Path) -> None:
    assert opened(tmp_path, 0.3).ranges(RANGES).low_high["x"][1] > 200.0


@pytest.mark.whole
def test_optimize_tries_what_paid_on_trained_networks(tmp_path: Path) -> None:
    work, scheme = opened(tmp_path, 0.3), exact()
    chosen, tried = choose_repairs(work, scheme, Metric())
    assert [each.repair for each in tried] == ["rounding", "bias"]
    assert all(each.kept == (each.factor < 0.98) for each in tried)
    assert chosen.repairs == tuple(each.repair for each in tried if each.kept)


def test_a_repair_without_time_is_not_told_as_one_without_effect(tmp_path: Path) -> None:
    _, tried = choose_repairs(opened(tmp_path, 0.3).at(0.003), exact(), Metric())
    assert [each.repair for each in tried] == ["bias"]


@pytest.mark.whole
def test_repairs_of_a_fast_model_are_judged_on_all_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On eight of 48 inputs all int8 had 0.25 %, on all of them 7.99 %."""
    seen: list[int] = []

    def noted(*given: Any) -> list[float]:
        seen.append(len(given[4].samples))
        return [1.0] * len(given[2])

    monkeypatch.setattr(module, "_errors", noted)
    work = opened(tmp_path, 0.3)
    choose_repairs(work, exact(), Metric())
    slow = work.but(setup=replace(work.setup, run_s=0.1))
    choose_repairs(slow, exact(), Metric())
    assert seen == [12, 12, 12, 8, 8, 8]


def test_quantize_repairs_what_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, data = outliers(tmp_path, 0.0)
    errors = []
    for more in ([], ["--repair", "ranges,bias"]):
        out = tmp_path / "out.onnx"
        arguments = ["quantize", str(model), "--data", str(data), "--scheme", str(exact()), *more, "-o", str(out)]
        assert main([*arguments, "--json"]) == 0
        errors.append(float(capsys.readouterr().out.split('"error":')[1].split(",")[0]))
    assert errors[1] < 0.3 * errors[0]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--repair", "magic"], '"magic" is not one of ranges, rounding, bias'),
        (["--repair", "bias", "--method", "dynamic"], "repairs need the static method"),
        (["--repair", "bias", "--scheme", "qoperator-u8s8"], "repairs need the static method and a qdq scheme"),
    ],
)
def test_what_cannot_be_repaired_is_said(
    more: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, data = outliers(tmp_path, 0.0)
    assert main(["quantize", str(model), "--data", str(data), *more, "-o", str(tmp_path / "out.onnx")]) != 0
    assert said in capsys.readouterr().err


def test_a_repaired_scheme_reads_as_it_is_written() -> None:
    scheme = parse_scheme("qdq-u8s8-bias-rounding-ranges-pc")
    assert scheme.repairs == ("ranges", "rounding", "bias")
    assert parse_scheme(str(scheme)) == scheme
    assert scheme.calibrated == str(scheme)
