"""One form of session whichever runtime holds the model."""

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest

from taglio.errors import BadModel
from taglio.runtimes.onnxruntime import SessionOptions, open_session
from taglio.runtimes.session import opener
from tests.models import parsed, pyramid, saved, two_in_two_out
from tests.processor import needs_openvino

ONE = SessionOptions(1)
here = pytest.mark.parametrize("runtime", ["onnxruntime", pytest.param("openvino", marks=needs_openvino)])
RNG = np.random.default_rng(0)


@here
def test_outputs_are_those_asked_for_in_that_order(runtime: str, tmp_path: Path) -> None:
    session = opener(runtime)(saved(two_in_two_out(), tmp_path), ONE)
    feed = {
        "left": RNG.standard_normal((1, 3, 8, 8)).astype(np.float32),
        "right": RNG.standard_normal((1, 2, 8, 8)).astype(np.float32),
    }
    middle, end = session.run(None, feed)
    assert np.array_equal(session.run(["end"], feed)[0], end)
    assert [output.shape for output in session.run(["end", "middle"], feed)] == [end.shape, middle.shape]


@here
def test_threads_at_once_get_their_own_answers_which_later_runs_leave_alone(runtime: str, tmp_path: Path) -> None:
    session = opener(runtime)(saved(two_in_two_out(), tmp_path), ONE)
    feeds = [
        {
            "left": np.full((1, 3, 8, 8), number, np.float32)[..., ::-1],  # not contiguous
            "right": np.full((1, 2, 8, 8), -number, np.float32),
        }
        for number in range(8)
    ]
    alone = [session.run(["middle", "end"], feed) for feed in feeds]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda feed: session.run(["middle", "end"], feed), feeds * 20))
    for index, answers in enumerate(together):
        for answer, wanted in zip(answers, alone[index % len(feeds)], strict=True):
            np.testing.assert_array_equal(answer, wanted)


@here
def test_what_cannot_be_loaded_is_refused(runtime: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.onnx"
    path.write_bytes(b"no model")
    with pytest.raises(BadModel, match=r"broken\.onnx"):
        opener(runtime)(path, ONE)


@pytest.mark.parametrize(
    ("operator", "dtype"),
    [("Conv (x, x)", "bfloat16"), ("Gelu (x)", "double")],  # refused by type; by a kernel that Gelu is composed of
)
def test_every_refusal_of_a_float_type_has_the_way_out(operator: str, dtype: str) -> None:
    with pytest.raises(BadModel, match=r": export it in float32$"):
        open_session(single(operator, dtype, opset=20), ONE)


@pytest.mark.parametrize(
    ("operator", "opset", "ir_version"),
    [("Sigmoid (x)", 3, 3), ("Relu <consumed_inputs = [0]> (x)", 5, 3), ("Dropout <is_test = 1> (x)", 6, 8)],
)
def test_an_opset_without_kernels_is_too_old_not_of_another_type(operator: str, opset: int, ir_version: int) -> None:
    model = single(operator, opset=opset, ir_version=ir_version)
    with pytest.raises(BadModel, match=f"opset {opset} is too old, ONNX Runtime supports 7 and newer") as refused:
        open_session(model, ONE)
    assert "export it in float32" not in str(refused.value)


@pytest.mark.parametrize(("opset", "ir_version"), [(17, 99), (97, 8)])
def test_a_file_that_is_newer_than_the_runtime_says_so(opset: int, ir_version: int) -> None:
    with pytest.raises(BadModel, match="newer than this ONNX Runtime"):
        open_session(single(opset=opset, ir_version=ir_version), ONE)


def single(operator: str = "Relu (x)", dtype: str = "float", opset: int = 17, ir_version: int = 8) -> onnx.ModelProto:
    """A model of one operator."""
    proto = parsed(f"({dtype}[2, 3] x) => ({dtype}[2, 3] y) {{ y = {operator} }}", imports=f'"": {opset}')
    proto.ir_version = ir_version
    return proto


@pytest.mark.whole
@needs_openvino
def test_a_signal_after_sessions_of_openvino_reaches_its_handler(tmp_path: Path) -> None:
    """Where the processor has AMX, the process crashed if they ended in the order in which they were opened."""
    code = (
        "import gc, pathlib, signal, sys; from taglio.runtimes.session import opener\n"
        "from taglio.runtimes.onnxruntime import SessionOptions\n"
        "first, second = (opener('openvino')(pathlib.Path(sys.argv[1]), SessionOptions(1)) for _ in range(2))\n"
        "del first; gc.collect(); del second; gc.collect()\n"
        "signal.signal(signal.SIGUSR1, lambda *_: print('came')); signal.raise_signal(signal.SIGUSR1)"
    )
    command = [sys.executable, "-c", code, str(saved(pyramid(), tmp_path))]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "came\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
def test_a_full_disk_is_not_the_models_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=0))
    with pytest.raises(BadModel, match=r"/dev: cannot hold .*the disk is full; 0\.0 MB free\): set TMPDIR"):
        open_session(pyramid(), ONE, save_optimized=Path("/dev/full"))
