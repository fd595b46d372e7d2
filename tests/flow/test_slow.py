"""A model that takes 20 s a run ends in minutes: on a clock that advances by 20 s with every run of it."""

import time
from collections import Counter
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest

import taglio
from taglio.flow import error
from taglio.flow.opening import InMemory, Model, open_work
from taglio.runtimes import openvino
from tests.models import Sketch

RUN_S = 20.0
# The file says 20 minutes on a quiet machine; int8 runs of a real model take less than float's.
MOST_RUNS = 20 * 60 / RUN_S
INPUT = "slow"


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the runs of the model by runtime, each of which moves all clocks of this process on."""
    counted: Counter[str] = Counter()
    for clock in ("perf_counter", "monotonic"):
        real = getattr(time, clock)
        monkeypatch.setattr(time, clock, lambda real=real: real() + RUN_S * counted.total())

    def counting(kind: type, name: str) -> None:
        real_run = kind.run  # type: ignore[attr-defined]

        def run(self: Any, names: Any, feed: Any, *rest: Any) -> Any:
            counted[name] += any(INPUT in each for each in feed)
            return real_run(self, names, feed, *rest)

        monkeypatch.setattr(kind, "run", run)

    counting(onnxruntime.InferenceSession, "onnxruntime")
    counting(openvino.OpenVinoSession, "openvino")
    return counted


def slow(samples: int = 24, residuals: int = 0) -> tuple[Any, dict[str, np.ndarray]]:
    g = Sketch(3)
    x = g.input(INPUT, 1, 8, 12, 12)
    for _ in range(0 if residuals else 6):
        x = g.op("Relu", g.conv(x, 8, 8))
    for _ in range(residuals):
        x = g.op("Relu", g.op("Add", g.conv(g.op("Relu", g.conv(x, 8, 8)), 8, 8), x))
    y = g.op("Gemm", g.op("Flatten", g.op("GlobalAveragePool", x)), g.weight(8, 16))
    return g.model(g.rename(y, "y")), {INPUT: g.rng.normal(0, 1, (samples, 8, 12, 12)).astype(np.float32)}


@pytest.mark.whole
@pytest.mark.parametrize("residuals", [0, 12])
def test_a_slow_model_is_optimised_in_few_runs(residuals: int, runs: Counter[str]) -> None:
    """No plan of the residual network was faster than float: all were searched again on all inputs, in 25 runs."""
    model, data = slow(residuals=residuals)
    result = taglio.optimize(model, data, max_error=0.05, threads=1)
    table = result.table
    assert table is not None
    assert runs.total() <= MOST_RUNS, f"{runs}: {table.stage_seconds}"
    assert (table.calibration_samples, table.held_out_samples) == (3, 3)
    told = " ".join(map(str, table.notes))
    assert "a run takes 20 s, so 3 of 12 samples are used for calibration, and 3 of 12 to measure errors" in told
    assert "a run takes 20 s: schemes were not compared" in told


def test_a_later_stage_uses_the_samples_of_the_first() -> None:
    """It must not depend on how fast the machine is then: the error model holds the hash of the samples."""
    model, data = slow()
    first, later = (
        open_work(replace(Model(model, data, threads=1).setup, run_s=RUN_S), model, InMemory(data)) for _ in range(2)
    )
    assert len(first.data.held_out.samples) == 3
    assert first.data.held_out.sha256 == later.data.held_out.sha256


@pytest.mark.whole
def test_a_fast_model_is_studied_on_all_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """On eight of 32, the error of one block was told three times as large as that of all blocks on all inputs. Every
    read takes 10 µs, however busy this machine is."""
    clock = count(0.0, 1e-5)
    monkeypatch.setattr(error, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    g = Sketch(1)
    y = g.op("Gemm", g.op("Relu", g.op("Gemm", g.input("x", 1, 16), g.weight(16, 32))), g.weight(32, 300))
    data = g.rng.normal(0, 1, (64, 16)).astype(np.float32)
    data[::10] *= 10.0
    work = Model(g.model(g.rename(y, "y")), {"x": data}, threads=1)
    profile = taglio.profile_model(work, effort=0.001)
    studied = taglio.error_model(work, profile, effort=0.001)
    assert studied.samples == len(work.data.held_out.samples) == 22  # ten are unseen
