"""A GPU as a place of `optimize`, with a provider that knows all answers: no GPU is needed."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

import taglio
from taglio.components.build import read
from taglio.embedded import digits_data
from taglio.errors import BadOption
from taglio.flow.workspace import COMPONENTS
from taglio.runtimes import cuda, places
from taglio.runtimes.cuda import CudaSession
from taglio.runtimes.onnxruntime import SessionOptions, open_session
from tests.models import Sketch, digits_model


def network() -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Eight convolutions that take a processor longer than looking an answer up, and 24 samples."""
    g = Sketch(4)
    x = g.input("x", 1, 16, 24, 24)
    for _ in range(8):
        x = g.op("Relu", g.conv(x, 16, 16))
    return g.model(g.rename(x, "y")), {"x": g.rng.normal(0, 1, (24, 16, 24, 24)).astype(np.float32)}


class Prompt(CudaSession):
    """Gives the float model's answers at once; in TF32 and if quantised a little later, in float16 wrong ones."""

    def __init__(self, path: Path, options: SessionOptions, answers: dict[bytes, list[np.ndarray]]) -> None:
        super().__init__(lambda _: open_session(path, SessionOptions(1)), "cpu")
        self._answers, self._place = answers, options.runtime
        self._slow = options.runtime == cuda.TF32 or b"QuantizeLinear" in path.read_bytes()

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        del output_names
        if self._slow:
            time.sleep(1e-4)
        (value,) = input_feed.values()
        return [each * (1.5 if self._place == cuda.F16 else 1.0) for each in self._answers[value.tobytes()]]


@pytest.fixture
def with_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    work = taglio.Model(*network())
    session, known = open_session(work.model.proto, SessionOptions(1)), places.refusal
    samples = [*work.data.calibration.samples, *work.data.held_out.samples]
    answers = {next(iter(each.values())).tobytes(): session.run(None, dict(each)) for each in samples}
    monkeypatch.setattr(cuda, "refusal", lambda: "")
    monkeypatch.setattr(cuda, "open_session", lambda path, options: Prompt(path, options, answers))
    monkeypatch.setattr("taglio.search.places.refusal", lambda name: "" if name in cuda.PLACES else known(name))


@pytest.mark.whole
@pytest.mark.usefixtures("with_gpu")
def test_the_fastest_place_wins(tmp_path: Path) -> None:
    result = taglio.optimize(*network(), max_error=0.01, effort=0.2, threads=1)
    assert result.table and result.plan.runtime == cuda.NAME and not result.plan.assignment()
    rows = {(row.runtime, row.name): row for row in result.table.places}
    assert rows[cuda.TF32, "float32"].holds and rows[cuda.NAME, "float32"].judged
    # All int8 is raced where the processor runs it fastest, in either of its runtimes.
    assert {runtime for runtime, name in rows if name == "int8"} - {*cuda.PLACES} and (cuda.TF32, "int8") not in rows
    assert "the float model's answers there have error" in rows[cuda.F16, "float32"].reason

    result.save(tmp_path / "out")
    (piece,) = read(tmp_path / "out" / COMPONENTS).pieces
    assert piece.runtime == cuda.NAME


def test_a_gpu_cannot_be_requested_for_a_plan() -> None:
    with pytest.raises(BadOption, match="onnxruntime-cuda runs only whole models: use `runtime` auto"):
        taglio.Model(digits_model(), digits_data(), runtime=cuda.NAME)
