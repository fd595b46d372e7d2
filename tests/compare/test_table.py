"""The rows that back ends want: named once, one float row each, the impossible ones with a reason."""

from collections import Counter

import pytest

from taglio.compare.environments import BACKENDS
from taglio.compare.table import forms, rows_of

FILES = {form.key: f"/{form.key}.onnx" for form in forms() if form.key != "float16"}
REFUSALS = {"float16": "a weight is too large"}
TABLES = {backend: rows_of(backend, FILES, REFUSALS, 0.01) for backend in BACKENDS}


@pytest.mark.parametrize("backend", TABLES)
def test_every_row_is_named_once_and_one_is_float(backend: str) -> None:
    rows = TABLES[backend]
    assert [name for name, count in Counter(row.id for row in rows).items() if count > 1] == []
    assert {row.backend for row in rows} == {backend}
    assert all(row.id.startswith(f"{backend}/") for row in rows)
    assert [row.id for row in rows if row.baseline] == [f"{backend}/float32"]
    assert rows[0].baseline


def test_a_form_that_could_not_be_written_is_a_row_with_the_reason() -> None:
    rows = [row for row in TABLES["onnxruntime"] if (row.method, row.engine) == ("float16", "CPU")]
    assert [(row.file, row.refusal) for row in rows] == [("", "a weight is too large")]
