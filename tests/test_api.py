"""The library from values to values: nothing is read from, or written to, a folder of the user's unless asked for."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import pytest

import taglio
from taglio.deploy.folder import read
from taglio.errors import BadArtifact, BadData, BadModel, BadOption, Infeasible
from taglio.flow.opening import Model
from taglio.flow.result import Result
from taglio.notes import Kind, Note
from taglio.runtimes.onnxruntime import SessionOptions, open_session
from tests.end_to_end.command import ENVIRONMENT, SCHEME
from tests.models import Sketch, conv_relu_chain, pyramid

QUICK: dict[str, Any] = {"effort": 0.01, "scheme": SCHEME}
BOUND = 0.5


@pytest.fixture(scope="module")
def samples() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((10, 3, 8, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def result(samples: np.ndarray) -> Result:
    """The whole flow on a model and arrays in memory."""
    return taglio.optimize(pyramid(), {"x": samples}, max_error=BOUND, threads=1, **QUICK)


def test_a_result_holds_the_plan_the_table_and_the_model(result: Result) -> None:
    assert result.plan.measured_error is not None and result.plan.measured_error <= BOUND
    assert result.table is not None and result.table.plan.holds(BOUND)
    assert repr(result).endswith(str(result.table)) and len(repr(result)) < 3000
    onnx.checker.check_model(result.model)
    assert [value.name for value in result.model.graph.output] == ["y"]
    shown = str(result.table).splitlines()
    assert [line.split()[0] for line in shown[1:4]] == ["float32", "int8", "plan"]
    assert "ms" in shown[1] and "error" in shown[0]
    plan = replace(result.table.plan, runtime="openvino")
    moved = replace(result.table, plan=plan, doubt="busy", notes=(Note(Kind.FEW_INPUTS, "few"),))
    assert "\nplan in openvino  " in str(moved) and str(moved).endswith("\nNote: busy\nNote: few")


def test_a_session_answers_as_the_built_file(result: Result, samples: np.ndarray, tmp_path: Path) -> None:
    result.save(tmp_path / "out")
    built = open_session(tmp_path / "out" / "components" / "model.onnx", SessionOptions(1))
    session = result.session(threads=1)
    wanted = built.run(None, {"x": samples[:1]})[0]
    for sample in ({"x": samples[:1]}, {"x": samples[0]}, samples[0], samples[:1]):
        np.testing.assert_array_equal(session.run(sample)["y"], wanted)
    with pytest.raises(BadData, match="`sample`"):
        session.run(samples[0][:, :4])


def test_a_result_is_exported_without_a_workspace(result: Result, tmp_path: Path) -> None:
    assert result.export(tmp_path / "plain").layout == "plain"
    assert read(tmp_path / "plain").outputs == ("y",)
    (model,) = result.export(tmp_path / "repository", layout="triton").models
    assert (tmp_path / "repository" / model.name / "config.pbtxt").is_file()
    with pytest.raises(BadOption, match="plain exists and is not an empty directory"):
        result.export(tmp_path / "plain")


def test_what_is_saved_is_loaded_again(result: Result, samples: np.ndarray, tmp_path: Path) -> None:
    result.save(tmp_path / "out")
    again = taglio.load(tmp_path / "out")
    assert (again.plan, again.profile, again.error, again.table) == (
        result.plan, result.profile, result.error, result.table,
    )  # fmt: skip
    assert (again.graph, again.calibrated) == (result.graph, result.calibrated)
    assert again.model.SerializeToString() == result.model.SerializeToString()
    one, other = again.session(1).run(samples[0]), result.session(1).run(samples[0])
    np.testing.assert_array_equal(one["y"], other["y"])
    again.save(tmp_path / "copy")
    assert sorted(path.name for path in (tmp_path / "copy").rglob("*")) == sorted(
        path.name for path in (tmp_path / "out").rglob("*")
    )


def test_a_model_in_any_form_is_the_same_model(samples: np.ndarray, tmp_path: Path) -> None:
    proto = pyramid()
    onnx.save(proto, tmp_path / "m.onnx")
    forms = (proto, proto.SerializeToString(), tmp_path / "m.onnx", str(tmp_path / "m.onnx"))
    models = [Model(form, samples, threads=1) for form in forms]
    assert len({model.model.sha256 for model in models}) == 1
    assert models[0].inputs == models[2].inputs and models[0].graph == models[3].graph


@pytest.mark.parametrize(
    ("given", "kind", "words"),
    [
        ({"model": 3}, BadModel, "`model` has the type int: give a path, bytes or an onnx.ModelProto"),
        ({"data": 3}, BadData, "`data` has the type int"),
        ({"labels": np.arange(3)}, BadData, "labels"),
        ({"max_error": "much"}, BadOption, "`max_error` is 'much'"),
        ({"max_error": None}, BadOption, "`max_error` is missing"),
        ({"max_error": None, "max_drop": {"top1": 0.9}}, BadOption, "or `min_score` 0.9 for the worst value"),
        ({"cpus": "1"}, BadOption, "`cpus` is '1': give a whole number"),
        ({"threads": "two"}, BadOption, "`threads`: expected int, got str"),
        ({"runtime": "abacus"}, BadOption, "abacus: use auto or onnxruntime or openvino$"),
        ({"scheme": 8}, BadOption, "`scheme` has the type int"),
        ({"shapes": {"z": (1, 3)}}, BadModel, "`shapes` names the input z"),
        ({"shapes": {"x": 1}}, BadOption, "`shapes` is {'x': 1}: give a shape by input name"),
        ({"keep_float": 3}, BadOption, "`keep_float` is 3"),
        ({"preprocess": "rgb"}, BadOption, "`preprocess` is for files of images or sounds"),
    ],
    ids=lambda each: next(iter(each)) if isinstance(each, dict) else "",
)
def test_what_cannot_be_used_is_named_by_its_argument(
    given: dict[str, Any], kind: type[Exception], words: str, samples: np.ndarray
) -> None:
    asked: dict[str, Any] = {"model": pyramid(), "data": samples, "max_error": 0.1, "threads": 1} | given
    with pytest.raises(kind, match=words.replace("[", r"\[")) as raised:
        taglio.optimize(asked.pop("model"), asked.pop("data"), **asked)
    assert "--" not in str(raised.value) and "\n" not in str(raised.value)


def test_what_was_made_from_another_model_is_refused(result: Result, samples: np.ndarray) -> None:
    # A search may end before errors are studied, where no plan seems faster.
    error = taglio.error_model(taglio.Model(pyramid(), samples, threads=1), result.profile, effort=0.01)
    other, tables = taglio.Model(conv_relu_chain(), samples, threads=1), (result.profile, error)
    stages: dict[str, Callable[[], object]] = {
        "`profile` was made from another model: make it from ": lambda: taglio.error_model(other, result.profile),
        "`profile` was made": lambda: taglio.plan_model(other, *tables, max_error=BOUND),
        "`plan` was made": lambda: taglio.build(other, result.plan),
        "`profile` was made from": lambda: taglio.run_model(other, result.profile, result.plan, result.built),
        "`profile` has the type ErrorModel: give a Profile": lambda: taglio.plan_model(
            other, *cast(Any, tables[::-1]), max_error=BOUND
        ),
        "`model` has the type str: give a taglio.Model": lambda: taglio.profile_model(cast(Any, "model.onnx")),
    }
    for words, stage in stages.items():
        with pytest.raises(BadOption, match=words):
            stage()


def test_settings_may_be_numbers_of_numpy(samples: np.ndarray) -> None:
    given: dict[str, Any] = {"threads": np.int64(1), "seed": np.int32(2)}
    setup = Model(pyramid(), samples, **given).setup
    assert (setup.threads, setup.seed, type(setup.seed)) == (1, 2, int)


@pytest.mark.whole
def test_what_loses_an_output_under_any_limit_is_told() -> None:
    """An offset of 1000 leaves the differences no step of int8; a larger limit would not help."""
    sketch = Sketch(5)
    y = sketch.op("Gemm", sketch.input("x", 1, 8), sketch.weight(8, 4), sketch.constant([1e4] * 4))
    data = np.random.default_rng(0).normal(0, 1, (24, 8)).astype(np.float32)
    asked = {**QUICK, "runtime": "onnxruntime", "threads": 1, "max_error": 0.5, "force_int8": "*"}
    with pytest.raises(Infeasible, match=f"with 1 block forced to int8 keeps the outputs: {y} is .* everywhere"):
        taglio.optimize(sketch.model(y), data, **asked)


def test_a_workspace_of_a_model_in_memory_says_so(result: Result, tmp_path: Path) -> None:
    result.save(tmp_path)
    from taglio.flow.workspace import reopen  # noqa: PLC0415

    with pytest.raises(BadArtifact, match="came from memory"):
        reopen(tmp_path)


@pytest.mark.whole
def test_public_names_are_there_and_light() -> None:
    code = (
        "import sys, taglio\n"
        "heavy = [m for m in ('onnxruntime', 'onnx', 'numpy', 'highspy') if m in sys.modules]\n"
        "print(heavy, all(callable(getattr(taglio, name)) for name in taglio.__all__), taglio.__all__ <= dir(taglio))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("[] True"), ran.stdout
    assert (Path(taglio.__file__).parent / "py.typed").exists()


def test_onnx_runtime_sends_nothing_and_leaves_nothing_in_the_home(tmp_path: Path) -> None:
    """With its telemetry on, it writes an identifier of the machine there. On machines that test it is off anyway."""
    quiet = ("CI", "ORT_DISABLE_TELEMETRY", "ORT_RUNNING_UNIT_TESTS", "XDG_CACHE_HOME", "PYTEST_CURRENT_TEST")
    environment = {name: value for name, value in ENVIRONMENT.items() if name not in quiet} | {"HOME": str(tmp_path)}
    code = "import taglio.runtimes.onnxruntime as runtime; print(runtime.version())"
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    assert not [*tmp_path.iterdir()]
