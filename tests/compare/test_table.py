"""The rows that back ends want: named once, one float row each, the impossible ones with a reason."""

from collections import Counter

import pytest

from taglio.compare.environments import BACKENDS
from taglio.compare.row import WantedRow
from taglio.compare.table import FLOAT, forms, rows_of, static_forms

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


def test_every_static_form_is_there() -> None:
    schemes = [form.scheme for form in static_forms()]
    assert len(set(schemes)) == len(schemes) == 14


def rows(backend: str, **wanted: object) -> list[WantedRow]:
    return [row for row in TABLES[backend] if all(getattr(row, key) == value for key, value in wanted.items())]


def test_onnx_runtime_has_what_the_notes_weigh() -> None:
    assert {row.engine for row in rows("onnxruntime", method=FLOAT)} == {
        *(f"CPU {x}" for x in ("none", "basic", "extended", "all")),
        "onnxruntime-cuda",
        "onnxruntime-cuda-tf32",
    }
    assert {row.blocks for row in rows("onnxruntime", method="mixed")} == {"top-flops:10", "top-flops:20"}
    assert len(rows("onnxruntime", method="dynamic")) == 2  # one with 7-bit weights


def test_a_form_that_could_not_be_written_is_a_row_with_the_reason() -> None:
    (row,) = rows("onnxruntime", method="float16", engine="CPU all")
    assert (row.file, row.refusal) == ("", "a weight is too large")


def test_pytorch_quantises_by_pt2e_alone() -> None:
    assert {row.method for row in rows("pytorch", format="pt2e")} == {"dynamic", "static"}
    assert {row.format for row in TABLES["pytorch"]} == {"eager", "autocast", "pt2e"}


def test_only_a_form_that_could_not_be_written_is_refused() -> None:
    refused = {row.refusal for table in TABLES.values() for row in table if row.refusal}
    assert refused == set(REFUSALS.values())
