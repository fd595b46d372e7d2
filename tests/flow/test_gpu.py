"""A GPU as a place of `optimize`, with a provider that answers as the CPU does, at once: no GPU is needed."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import taglio

from taglio.runtimes import cuda, places
from taglio.runtimes.cuda import CudaSession
from taglio.runtimes.onnxruntime import SessionOptions, open_session
from taglio.errors import BadOption
from tests.models import digits_data, digits_model


class Remembering(CudaSession):
    """Remembers its answers, so that no run but the first of a feed takes time."""

    def __init__(self, path: Path, options: SessionOptions) -> None:
        super().__init__(lambda _: open_session(path, SessionOptions(options.threads)), "cpu")
        self._known: dict[bytes, list[np.ndarray]] = {}
        self._lower = options.runtime == cuda.F16

    def run(self, output_names: object, input_feed: object) -> list[np.ndarray]:
        del output_names
        (value,) = input_feed.values()
        key = value.tobytes()
        if key not in self._known:
            found = super().run(None, input_feed)
            self._known[key] = [each * 1.5 for each in found] if self._lower else found
        return self._known[key]

    def on_cpu(self) -> Counter[str]:
        return Counter({"Gather": 2, "Slice": 1})


@pytest.fixture
def with_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(path: Path, options: SessionOptions) -> CudaSession:
        return Remembering(path, options)

    monkeypatch.setattr(cuda, "offered", lambda: True)
    monkeypatch.setattr(cuda, "open_session", opened)
    known = places.refusal
    monkeypatch.setattr("taglio.flow.choose_place.refusal", lambda name: "" if name in cuda.PLACES else known(name))
    monkeypatch.setattr("taglio.run.in_process.require_here", lambda *_: None)


@pytest.mark.usefixtures("with_gpu")
def test_the_fastest_place_wins_with_its_copies_and_what_it_leaves_to_the_cpu(tmp_path: Path) -> None:
    result = taglio.optimize(digits_model(), digits_data(), max_error=0.01, effort=0.02, threads=1)
    assert result.plan.runtime == cuda.NAME and not result.plan.assignment()
    rows = {(row.runtime, row.name): row for row in result.table.places}
    assert rows[cuda.NAME, "float32"].holds and rows[cuda.TF32, "float32"].holds
    assert (cuda.NAME, "int8") in rows and (cuda.TF32, "int8") not in rows
    assert "the float model alone has error" in rows[cuda.F16, "float32"].reason
    (told,) = [note for note in result.table.notes if note.startswith(f"{cuda.NAME}: ")]
    assert "copying between host and GPU takes 0.0" in told and "3 operators run on the CPU (Gather 2, Slice 1)" in told

    result.save(tmp_path / "out")
    manifest = taglio.load(tmp_path / "out").built.manifest
    assert manifest.pieces[0].runtime == cuda.NAME
    assert manifest.pieces[0].properties["use_tf32"] == "0"


def test_a_gpu_cannot_be_requested_for_a_plan() -> None:
    with pytest.raises(BadOption, match="onnxruntime-cuda runs only whole models: use `runtime` auto"):
        taglio.Model(digits_model(), digits_data(), runtime=cuda.NAME)
