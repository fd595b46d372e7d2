"""Finished rows outlive the comparison that measured them, if nothing that they depend on has changed."""

from pathlib import Path

import pytest

from taglio.compare.checkpoint import FILE, Checkpoint
from taglio.compare.row import Row
from tests.compare.made_up import measured, wanted

SHA = "0" * 64
ASKED: dict[str, object] = {"threads": 2, "machine": "this"}
VERSIONS = {"openvino": "2026.4.1"}


def written(folder: Path, *rows: Row) -> Checkpoint:
    checkpoint = Checkpoint(folder, SHA, ASKED)
    checkpoint.part("openvino", VERSIONS).rows.update({row.wanted.id: row for row in rows})
    checkpoint.save()
    return checkpoint


def test_rows_come_back(tmp_path: Path) -> None:
    row = measured("float32", 1.0, 0.0, "openvino")
    written(tmp_path, row)
    again = Checkpoint(tmp_path, SHA, ASKED)
    assert again.part("openvino", VERSIONS).rows == {row.wanted.id: row}
    assert again.kept == 1


@pytest.mark.parametrize("status", ["missing", "stuck", "killed", "stopped"])
def test_what_another_try_might_change_is_tried_again(tmp_path: Path, status: str) -> None:
    written(tmp_path, Row(wanted("a", "openvino"), status, "why", None, None))  # type: ignore[arg-type]
    assert Checkpoint(tmp_path, SHA, ASKED).kept == 0


def test_another_question_model_or_version_starts_anew(tmp_path: Path) -> None:
    row = measured("float32", 1.0, 0.0, "openvino")
    written(tmp_path, row)
    assert not Checkpoint(tmp_path, SHA, ASKED | {"threads": 1}).part("openvino", VERSIONS).rows
    assert not Checkpoint(tmp_path, "1" * 64, ASKED).part("openvino", VERSIONS).rows
    assert not Checkpoint(tmp_path, SHA, ASKED).part("openvino", {"openvino": "2026.5.0"}).rows


def test_a_damaged_file_starts_anew(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"kind": "unfinished')
    assert Checkpoint(tmp_path, SHA, ASKED).kept == 0
