"""What a comparison reads before any back end runs."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from taglio import weights
from taglio.compare.measure import _emptied, _model, _opened, compare_backends
from taglio.data.files import load
from taglio.errors import BadOption
from taglio.runtimes.onnxruntime import SessionOptions, open_session
from tests.models import Sketch, conv_relu_chain, saved


def test_data_of_several_shapes_is_compared_at_the_most_frequent(tmp_path: Path) -> None:
    """Most back ends compile for one shape."""
    g = Sketch()
    x = g.op("Relu", g.conv(g.input("x", 1, 3, "h", "w"), 3, 4))
    model, folder = saved(g.model(g.rename(x, "y")), tmp_path), tmp_path / "data"
    folder.mkdir()
    for index, size in enumerate((8, 6, 8, 7, 8, 8)):
        np.savez(folder / f"{index}.npz", x=g.rng.normal(0, 1, (1, 3, size, 8)).astype(np.float32))
    network, _, data = _opened(model, {}, partial(load, folder), 0)
    assert network.inputs[0].sizes() == (1, 3, 8, 8)
    assert len(data.calibration.samples) + len(data.held_out.samples) == 4


def test_the_name_of_a_model_in_memory_is_no_path(tmp_path: Path) -> None:
    model = conv_relu_chain()
    for name in ("../../up", "/etc/up", "a/b", "..", "x" * 300, "\n"):
        model.graph.name = name
        path = _model(model, tmp_path)
        assert path.parent == tmp_path and path.is_file()


def test_links_to_other_folders_are_removed_and_not_followed(tmp_path: Path) -> None:
    mine, work = tmp_path / "mine", tmp_path / "work"
    mine.mkdir()
    (mine / "letter.txt").write_text("dear")
    work.symlink_to(mine)
    assert not _emptied(work).is_symlink()
    (work / "models").symlink_to(mine)
    assert [*_emptied(work).iterdir()] == []
    assert (mine / "letter.txt").read_text() == "dear"


def small(g: Sketch) -> tuple[onnx.ModelProto, dict[str, np.ndarray], dict[str, Any]]:
    """A model, its data, and how to compare few rows of it fast."""
    model = g.model(g.rename(g.op("Relu", g.conv(g.input("x", 1, 16, 8, 8), 16, 16)), "y"))
    rows = ["qdq-u8s8-asym-pc", "float16"]
    how = {"backends": ["onnxruntime"], "rows": rows, "effort": 0.01, "threads": 1}
    return model, {"x": g.rng.normal(0, 1, (8, 16, 8, 8)).astype(np.float32)}, how


@pytest.mark.parametrize("one_file_bytes", [1, 2**30])
def test_a_model_with_its_weights_in_files_is_compared(
    one_file_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime refused the path of the weights in every float32 and QDQ row of a model of 300 MB."""
    monkeypatch.setattr(weights, "IN_FILES_BYTES", 1)
    monkeypatch.setattr(weights, "ONE_FILE_BYTES", one_file_bytes)
    model, data, how = small(Sketch())
    found = compare_backends(model, data, out=tmp_path, **how)
    assert [each.status for each in found.rows] == ["measured"] * 3
    assert all(each.checked and each.checked.size_bytes > 16 * 16 * 9 for each in found.rows)
    checked = found.rows[0].checked
    assert checked and open_session(Path(checked.file), SessionOptions(1)).run(None, {"x": data["x"][:1]})


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_rows_beyond_the_memory_limit_are_left_out() -> None:
    model, data, how = small(Sketch())
    found = {
        each.wanted.id.partition("/")[2]: each for each in compare_backends(model, data, memory_limit=1000, **how).rows
    }
    rows = ("float32", "float16", "qdq-u8s8-asym-pc")
    assert [found[row].status for row in rows] == ["out of memory"] * 3


def test_data_in_memory_is_what_optimize_takes() -> None:
    model, data, how = small(Sketch())
    for values in (data["x"], list(data["x"])):
        found = compare_backends(model, values, **how)
        assert found.data == "data in memory" and {row.status for row in found.rows} == {"measured"}
    with pytest.raises(BadOption, match="`preprocess` is for files of images or sounds, but `data` is in memory"):
        compare_backends(model, data, preprocess="rgb", **how)
