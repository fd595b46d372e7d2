"""Labels from a file: joined to samples by order or by name, and refused by line or sample."""

import json
from pathlib import Path

import numpy as np
import pytest

from taglio.data.dataset import Dataset, split
from taglio.data.files import load
from taglio.data.labels import with_labels
from taglio.data.spec import InputSpec
from taglio.errors import BadData

X = InputSpec("x", (1, 2), "float32")


def data(folder: Path, count: int = 4, limit: int = 512) -> Dataset:
    np.savez(folder / "d.npz", x=np.arange(2 * count, dtype=np.float32).reshape(count, 2))
    return load(folder / "d.npz", [X], limit=limit)


def written(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def test_lines_of_text_are_labels_in_order(tmp_path: Path) -> None:
    labelled = with_labels(data(tmp_path), written(tmp_path, "l.txt", "one\nzwö\n\nfour\n"))
    assert labelled.labels is not None and labelled.labels.tolist() == ["one", "zwö", "", "four"]
    assert labelled.sha256 != data(tmp_path).sha256
    parts = split(labelled)
    for part in (parts.calibration, parts.held_out):
        assert part.labels is not None
        assert [labelled.labels.tolist()[int(name)] for name in part.names] == part.labels.tolist()


def test_samples_that_were_not_loaded_have_labels_too(tmp_path: Path) -> None:
    few = data(tmp_path, 5, limit=3)
    labelled = with_labels(few, written(tmp_path, "l.txt", "0\n1\n2\n3\n4\n"))
    assert labelled.labels is not None and labelled.labels.tolist() == list(few.names) == ["0", "2", "4"]


def test_a_sample_of_several_rows_has_their_labels(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=np.arange(10, dtype=np.float32).reshape(5, 2))
    pairs = load(tmp_path / "d.npz", [InputSpec("x", (2, 2), "float32")])
    labelled = with_labels(pairs, written(tmp_path, "l.txt", "0\n1\n2\n3\n4\n"))
    assert labelled.labels is not None and labelled.labels.tolist() == [["0", "1"], ["2", "3"]]
    with pytest.raises(BadData, match="has 2 labels for 5 samples"):
        with_labels(pairs, written(tmp_path, "l.txt", "0\n1\n"))


def test_dots_in_the_name_of_a_file_do_not_make_it_a_batch(tmp_path: Path) -> None:
    folder = tmp_path / "samples"
    folder.mkdir()
    for name in ("a..b", "c"):
        np.savez(folder / f"{name}.npz", x=np.zeros(2, np.float32))
    labelled = with_labels(load(folder, [X]), written(tmp_path, "l.txt", "first\nsecond\n"))
    assert labelled.labels is not None and labelled.labels.tolist() == ["first", "second"]


@pytest.mark.parametrize("how", ["json", "tabs"])
def test_labels_by_the_name_of_a_file(tmp_path: Path, how: str) -> None:
    folder = tmp_path / "samples"
    folder.mkdir()
    for name in ("b", "a"):
        np.savez(folder / f"{name}.npz", x=np.zeros(2, np.float32))
    named = {"b.npz": "second", "a.npz": "first", "c.npz": "none"}
    text = json.dumps(named) if how == "json" else "".join(f"samples/{k}\t{v}\n" for k, v in named.items())
    path = written(tmp_path, "l.json" if how == "json" else "l.txt", text)
    labelled = with_labels(load(folder, [X]), path)
    assert labelled.labels is not None and labelled.labels.tolist() == ["first", "second"]
    path = written(tmp_path, "m.json", '{"a.npz": 1}')
    with pytest.raises(BadData, match=r"has no label for b.npz: add the missing labels"):
        with_labels(load(folder, [X]), path)


def test_boxes_of_each_sample_are_an_array_of_arrays(tmp_path: Path) -> None:
    boxes = [[[1, 2, 3, 4, 0]], [], [[0, 0, 1, 1, 1], [2, 2, 3, 3, 0]], [[1, 1, 2, 2, 2]]]
    labelled = with_labels(data(tmp_path), written(tmp_path, "l.json", json.dumps(boxes)))
    assert labelled.labels is not None and labelled.labels.dtype == object
    assert [label.shape for label in labelled.labels] == [(1, 5), (0, 5), (2, 5), (1, 5)]
    other = with_labels(data(tmp_path), written(tmp_path, "l.json", json.dumps([*boxes[:3], [[1, 1, 2, 2, 3]]])))
    assert other.sha256 != labelled.sha256


def test_arrays_of_a_file(tmp_path: Path) -> None:
    np.save(tmp_path / "l.npy", np.arange(4))
    np.savez(tmp_path / "l.npz", labels=np.arange(4), other=np.zeros(1))
    for name in ("l.npy", "l.npz"):
        labelled = with_labels(data(tmp_path), tmp_path / name)
        assert labelled.labels is not None and labelled.labels.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("l.txt", "a\nb\nc\n", "has 3 labels for 4 samples"),
        ("l.json", '[1, 2, {"x": 1}, 4]', "label 2 is \"{'x': 1}\""),
        ("l.json", "[1, 2, [[1, 2], [3]], 4]", r"label 2 is '\[\[1, 2\], \[3\]\]'"),
        ("l.xml", "1,2,3,4", "give a .txt, .json, .csv, .npy or .npz"),
        ("l.npz", "", "cannot be read"),
    ],
)
def test_what_is_no_label_is_refused_in_one_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(BadData, match=message) as caught:
        with_labels(data(tmp_path), written(tmp_path, name, text))
    assert "\n" not in str(caught.value)
    with pytest.raises(BadData, match="no such file"):
        with_labels(data(tmp_path), tmp_path / "missing.txt")
