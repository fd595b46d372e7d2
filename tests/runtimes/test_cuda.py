"""Sessions on a GPU: bound memory, graphs by shape and what makes them give up, tried with the CPU as the device."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from taglio.errors import BadModel
from taglio.runtimes import cuda
from taglio.runtimes.cuda import CudaSession
from taglio.runtimes.onnxruntime import SessionOptions, open_session
from tests.models import parsed

SUMS = ("Add", "Relu")


def model_of(*kinds: str) -> onnx.ModelProto:
    """Adds a constant to an input of any length, then other operators."""
    others = " ".join(f"t{index + 1} = {kind} (t{index})" for index, kind in enumerate(kinds[1:]))
    last = f"{'int64' if 'NonZero' in kinds else 'float'}[] t{len(kinds) - 1}"
    return parsed(
        f"(float[n] x) => (float[n] t0, {last}) <float[1] one = {{1}}> {{ t0 = {kinds[0]} (x, one) {others} }}"
    )


def opens(proto: onnx.ModelProto, captured: list[bool]) -> Callable[[bool], ort.InferenceSession]:
    def opened(captures: bool) -> ort.InferenceSession:
        captured.append(captures)
        return open_session(proto, SessionOptions(1))

    return opened


def feed(*values: float) -> dict[str, np.ndarray]:
    return {"x": np.array(values, np.float32)}


def test_every_run_follows_its_input_also_when_it_replays() -> None:
    captured: list[bool] = []
    session = CudaSession(opens(model_of(*SUMS), captured), "cpu")
    for index in range(8):
        first, second = session.run(None, feed(index, -index))
        assert first.tolist() == [1 + index, 1 - index] and second.tolist() == [1 + index, max(0, 1 - index)]
    assert session.captures and captured == [True]


def test_shapes_have_buffers_of_their_own() -> None:
    session = CudaSession(opens(model_of(*SUMS), []), "cpu")
    for index in range(12):
        values = [float(index)] * (1 + index % 3)
        assert session.run(["t1"], feed(*values))[0].tolist() == [index + 1.0] * len(values)
    assert session.captures


def test_outputs_whose_shape_follows_the_values_are_run_kernel_by_kernel() -> None:
    captured: list[bool] = []
    session = CudaSession(opens(model_of("Add", "NonZero"), captured), "cpu")
    for values in ([0.0, -1.0], [-1.0, 2.0], [3.0, 4.0], [-1.0, 5.0], [6.0, 7.0]):
        indices = session.run(["t1"], feed(*values))[0]
        assert indices.tolist() == [np.flatnonzero(np.array(values) + 1.0).tolist()]
    assert not session.captures and captured == [True, False]


def test_an_input_that_is_read_elsewhere_is_not_captured() -> None:
    captured: list[bool] = []
    session = CudaSession(opens(model_of(*SUMS), captured), "elsewhere")
    assert not session.captures and captured == [True, False]
    assert session.run(["t0"], feed(1.0))[0].tolist() == [2.0]


def test_a_model_that_cannot_be_captured_is_opened_without() -> None:
    def opened(captures: bool) -> ort.InferenceSession:
        if captures:
            raise BadModel("not all nodes are on the GPU")
        return open_session(model_of(*SUMS), SessionOptions(1))

    session = CudaSession(opened, "cpu")
    assert not session.captures and session.run(["t0"], feed(1.0))[0].tolist() == [2.0]


def test_float16_keeps_the_interface(tmp_path: Path) -> None:
    path = tmp_path / "sums.onnx"
    onnx.save(model_of(*SUMS), path)
    lower = cuda._converted(path)
    assert [value.type.tensor_type.elem_type for value in (*lower.graph.input, *lower.graph.output)] == [1, 1, 1]
    answer = open_session(lower, SessionOptions(1)).run(["t0"], feed(0.1))[0]
    np.testing.assert_allclose(answer, [1.1], rtol=1e-3)
    assert answer.dtype == np.float32 and {node.op_type for node in lower.graph.node} >= {"Cast", "Add"}


@pytest.mark.skipif(not cuda.refusal(), reason="this ONNX Runtime has CUDA")
def test_without_cuda_one_line_says_what_to_install() -> None:
    assert "onnxruntime-gpu[cuda,cudnn]" in cuda.refusal()


@pytest.mark.skipif(bool(cuda.refusal()), reason="needs ONNX Runtime with CUDA and a GPU")
@pytest.mark.parametrize("place", cuda.PLACES)
def test_on_a_gpu_small_models_replay_and_answer_as_the_cpu_does(tmp_path: Path, place: str) -> None:
    path = tmp_path / "sums.onnx"
    onnx.save(model_of(*SUMS), path)
    session = cuda.open_session(path, SessionOptions(1, runtime=place))
    for index in range(6):
        np.testing.assert_allclose(session.run(["t1"], feed(index))[0], [index + 1.0], rtol=1e-3)
    assert session.captures
