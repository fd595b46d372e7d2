"""Components run one after another give what the whole quantised model gives, and their times add up."""

import itertools
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest

from taglio.components.build import Manifest
from taglio.components.cut import cut
from taglio.errors import BadData, BadModel, BadOption, MeasurementFailed
from taglio.run import in_process
from taglio.run.in_process import WARMUP, Executor, time_plan
from taglio.runtimes.onnxruntime import SessionOptions
from taglio.runtimes.places import refusal
from tests.components.cases import Case, tiny
from tests.models import Sketch

ONE = SessionOptions(1)


def built(case: Case, folder: Path, *places: float) -> Manifest:
    """The all-int8 model cut at shares of its blocks."""
    count = len(case.graph.blocks)
    devices = {b.name: f"d{sum(i >= count * p for p in places)}" for i, b in enumerate(case.graph.blocks)}
    chosen = case.all_int8()
    parts = cut(case.model, case.graph, case.builder.build(chosen), devices, case.wires(chosen, devices))
    return case.written(parts, folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("components")


@pytest.fixture(scope="module")
def manifest(network: Case, folder: Path) -> Manifest:
    return built(network, folder, 0.3, 0.6)


@pytest.fixture(scope="module")
def float_model(network: Case, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("float") / "float32.onnx"
    onnx.save(network.model.proto, path)
    return path


def test_outputs_equal_a_plain_session_on_the_whole_model(network: Case, folder: Path, manifest: Manifest) -> None:
    executor = Executor(folder, manifest, ONE)
    assert executor.manifest is manifest and len(manifest.pieces) == 3
    for sample in network.held_out.samples[:4]:
        kept = {name: value.copy() for name, value in sample.items()}
        answers = executor.run(sample)
        whole = network.whole(network.all_int8(), sample)
        assert len(answers) == len(whole) == 1
        np.testing.assert_array_equal(answers[0], whole[0])
        assert set(sample) == set(kept) and all(np.array_equal(sample[name], kept[name]) for name in kept)


def test_a_missing_input_is_refused(network: Case, folder: Path, manifest: Manifest) -> None:
    with pytest.raises(BadData, match="input image is missing: the model reads image"):
        Executor(folder, manifest, ONE).run({"picture": network.held_out.samples[0]["image"]})


def test_a_component_that_cannot_be_loaded_is_named(manifest: Manifest, tmp_path: Path) -> None:
    for piece in manifest.pieces:
        (tmp_path / piece.file).write_bytes(b"no model")
    with pytest.raises(BadModel, match=manifest.pieces[0].file):
        Executor(tmp_path, manifest, ONE)


def test_components_open_in_the_runtime_that_the_manifest_names(
    folder: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)  # as Python says it of what is not there
    refusal.cache_clear()
    elsewhere = replace(manifest, pieces=tuple(replace(piece, runtime="openvino") for piece in manifest.pieces))
    with pytest.raises(BadOption, match=rf"{manifest.pieces[0].file} runs in openvino: .*pip install"):
        Executor(folder, elsewhere, ONE)
    refusal.cache_clear()
    assert Executor(folder, elsewhere, ONE, "onnxruntime").runtime == "onnxruntime"


def test_a_machine_at_half_speed_shows_as_drift_not_as_a_wrong_prediction(
    network: Case, folder: Path, manifest: Manifest, float_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a clock that adds a millisecond whenever it is read: twice a component, and at both ends of a run."""
    ticks, steps = itertools.count(), list[tuple[str, int, int]]()
    monkeypatch.setattr(in_process, "time", SimpleNamespace(perf_counter=lambda: next(ticks) * 1e-3))
    report = time_plan(
        Executor(folder, manifest, ONE),
        float_model,
        network.held_out.samples[:1],
        runs=3,
        predicted_s=3.5e-3,
        profiled_s=0.5e-3,
        progress=lambda *step: steps.append(step),
    )
    assert (report.plan.median_s, report.float32.median_s) == pytest.approx((7e-3, 1e-3))
    assert [part.wall.median_s for part in report.components] == pytest.approx([1e-3] * 3)
    assert [(part.component, part.device) for part in report.components] == [
        (piece.name, piece.device) for piece in manifest.pieces
    ]
    assert steps[-1] == ("running", 3 + WARMUP, 3 + WARMUP)
    assert (report.ratio, report.drift, report.steady_ratio) == pytest.approx((0.5, 2.0, 1.0))


def test_inferences_are_counted_where_one_of_each_shape_is_timed_together(tmp_path: Path) -> None:
    g = Sketch()
    case = tiny(g.model(g.op("Relu", g.conv(g.input("x", "N", 3, 8, 8), 3, 4))), tmp_path)
    devices = {block.name: "here" for block in case.graph.blocks}
    parts = cut(case.model, case.graph, case.model.proto, devices, case.wires({}, devices))
    manifest = case.written(parts, tmp_path)
    onnx.save(case.model.proto, tmp_path / "float.onnx")
    several = [{"x": np.ones((count, 3, 8, 8), np.float32)} for count in (1, 2, 3)]
    executor = Executor(tmp_path, manifest, ONE)
    report = time_plan(executor, tmp_path / "float.onnx", several, runs=7, predicted_s=1.0)
    assert report.plan.runs == report.float32.runs == report.components[0].wall.runs == 9  # three of each shape


def test_a_feed_that_does_not_fit_is_one_line(folder: Path, manifest: Manifest, float_model: Path) -> None:
    executor, wrong = Executor(folder, manifest, ONE), {"image": np.zeros((1, 1, 3, 3), np.float32)}
    with pytest.raises(MeasurementFailed, match=r"the (plan|float) failed in run 1: ") as caught:
        time_plan(executor, float_model, [wrong], runs=1, predicted_s=1.0, profiled_s=1.0)
    assert "\n" not in str(caught.value)
