"""A row's model is copied out of a comparison; a row that has none says why."""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

import taglio
from taglio.errors import BadOption
from tests.end_to_end.command import Case

ROW = "onnxruntime/qdq-u8s8-asym-pc"


def test_the_model_of_a_row_is_ready_to_run(tiny: Case, tmp_path: Path) -> None:
    found = taglio.compare(
        tiny.model, tiny.data, out=tmp_path / "out", backends=["onnxruntime"], rows=[ROW.partition("/")[2]], emit=ROW,
        effort=0.01,
    )  # fmt: skip
    (row,) = [each for each in found.rows if each.wanted.id == ROW]
    assert Path(found.emitted) == tmp_path / "out" / "emitted" / "onnxruntime-qdq-u8s8-asym-pc.onnx"
    wanted, emitted = (
        np.stack([ort.InferenceSession(str(path)).run(None, {"x": each[None]})[0] for each in np.load(tiny.data)])
        for path in (tiny.model, found.emitted)
    )
    assert row.checked is not None and row.checked.error_to_float is not None
    error = np.linalg.norm(emitted - wanted) / np.linalg.norm(wanted)  # on all samples; the row's on those held out
    assert error == pytest.approx(row.checked.error_to_float, rel=0.5)
    assert found.emitted in (tmp_path / "out" / "comparison.json").read_text()


def test_a_row_that_cannot_be_emitted_costs_no_measurement(
    tiny: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> Path:
        raise BadOption("it has no file")

    asked: dict[str, Any] = {"out": tmp_path, "backends": ["onnxruntime"], "rows": ["float32"], "effort": 0.01}
    monkeypatch.setattr("taglio.compare.measure.emitted", refuse)
    with pytest.raises(BadOption, match="it has no file"):
        taglio.compare(tiny.model, tiny.data, emit="onnxruntime/float32", **asked)
    monkeypatch.undo()
    assert taglio.compare(tiny.model, tiny.data, **asked).kept == 1


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("onnxruntime/float", "is not a row of this comparison, which has onnxruntime/float32"),
        ("nonsense", "which has onnxruntime/"),
    ],
)
def test_an_unknown_row_is_refused_before_anything_is_measured(tiny: Case, row: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(BadOption, match=said):
        taglio.compare(tiny.model, tiny.data, out=tmp_path, backends=["onnxruntime"], emit=row, effort=0.01)
    assert not list(tmp_path.glob("*.json"))


def test_a_missing_back_end_or_place_to_write_is_named(
    tiny: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAGLIO_BACKENDS", str(tmp_path / "none"))
    with pytest.raises(BadOption, match=r"litert/float32.*was not measured \(missing\).*taglio backends add"):
        taglio.compare(tiny.model, tiny.data, out=tmp_path / "out", backends=["litert"], emit="litert/float32")
    with pytest.raises(BadOption, match="needs `out`"):
        taglio.compare(tiny.model, tiny.data, backends=["onnxruntime"], emit="onnxruntime/float32")
