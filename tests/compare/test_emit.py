"""A row's model is copied out of a comparison; a row that has none says why."""

from pathlib import Path

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
    feed = {"x": np.load(tiny.data)[:1]}
    (plain,) = ort.InferenceSession(str(tiny.model)).run(None, feed)
    (emitted,) = ort.InferenceSession(found.emitted).run(None, feed)
    assert row.checked is not None and row.checked.error_to_float is not None
    assert 0.0 < np.linalg.norm(emitted - plain) / np.linalg.norm(plain) < 5.0 * row.checked.error_to_float
    assert found.emitted in (tmp_path / "out" / "comparison.json").read_text()


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("onnxruntime/float", "is no row of this comparison: it has onnxruntime/float32"),
        ("nonsense", "it has onnxruntime/"),
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
