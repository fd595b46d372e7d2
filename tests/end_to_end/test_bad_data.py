"""Data that taglio refuses: one line naming the thing and the fix, a non-zero exit, existing artifacts unchanged."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from PIL import Image

from tests.end_to_end.command import Case, refused, snapshot, taglio
from tests.models import Sketch, saved, two_in_two_out


def array(*shape: int, kind: Any = np.float32) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        np.save(folder / "data.npy", np.ones(shape, kind))
        return folder / "data.npy"

    return make


def poisoned_array(folder: Path) -> Path:
    values = np.ones((6, 3, 8, 8), np.float32)
    values[4, 0, 0, 0] = np.nan
    np.save(folder / "data.npy", values)
    return folder / "data.npy"


def text_array(folder: Path) -> Path:
    np.save(folder / "data.npy", np.full((6, 3, 8, 8), "dog"))
    return folder / "data.npy"


def pickled(folder: Path) -> Path:
    np.save(folder / "data.npy", np.array([{"a": 1}, None], dtype=object), allow_pickle=True)
    return folder / "data.npy"


def cut_short(folder: Path) -> Path:
    path = folder / "data.npz"
    np.savez(path, x=np.ones((6, 3, 8, 8), np.float32))
    path.write_bytes(path.read_bytes()[:2000])
    return path


def other_keys(folder: Path) -> Path:
    np.savez(folder / "data.npz", a=np.ones((6, 3, 8, 8), np.float32), b=np.ones(6))
    return folder / "data.npz"


def too_few_labels(folder: Path) -> Path:
    np.savez(folder / "data.npz", x=np.ones((6, 3, 8, 8), np.float32), label=np.ones(5, int))
    return folder / "data.npz"


def nowhere(folder: Path) -> Path:
    return folder / "nowhere"


def a_table(folder: Path) -> Path:
    (folder / "data.csv").write_text("1,2,3\n")
    return folder / "data.csv"


def empty_folder(folder: Path) -> Path:
    (folder / "pictures").mkdir()
    return folder / "pictures"


def pictures(count: int, folder: Path) -> Path:
    where = empty_folder(folder)
    for index in range(count):
        Image.fromarray(np.full((8, 8, 3), 40 * index, np.uint8)).save(where / f"{index}.png")
    return where


def one_picture(folder: Path) -> Path:
    return pictures(1, folder)


def an_unreadable_picture(folder: Path) -> Path:
    where = pictures(3, folder)
    (where / "broken.jpg").write_bytes(b"\xff\xd8\xff nothing more")
    return where


def a_truncated_picture(folder: Path) -> Path:
    where = pictures(3, folder)
    whole = (where / "1.png").read_bytes()
    (where / "1.png").write_bytes(whole[: len(whole) // 2])
    return where


BAD_DATA: list[tuple[str, Callable[[Path], Path], tuple[str, ...]]] = [
    ("other size", array(6, 3, 9, 9), ("[6, 3, 9, 9]", "[1, 3, 8, 8]")),
    ("channels last", array(6, 8, 8, 3), ("[6, 8, 8, 3]", "moveaxis")),
    ("no samples axis", array(3, 8, 8), ("[3, 8, 8]", "array[None]")),
    ("raw pixels", array(6, 3, 8, 8, kind=np.uint8), ("uint8", "preprocessing")),
    ("complex", array(6, 3, 8, 8, kind=np.complex64), ("complex64", "numbers")),
    ("one sample", array(1, 3, 8, 8), ("1 sample;", "at least 2")),
    ("no sample", array(0, 3, 8, 8), ("0 samples",)),
    ("text", text_array, ("save numbers",)),
    ("objects", pickled, ("cannot be read",)),
    ("NaN", poisoned_array, ("sample 4", "NaN")),
    ("cut short", cut_short, ("cannot be read",)),
    ("other keys", other_keys, ("['a', 'b']", "['x']")),
    ("too few labels", too_few_labels, ("[5]", "6 samples")),
    ("nowhere", nowhere, ("does not exist",)),
    ("a table", a_table, (".npz",)),
    ("empty folder", empty_folder, ("is empty", "give a folder")),
    ("one picture", one_picture, ("1 sample;", "at least 2")),
    ("unreadable image", an_unreadable_picture, ("broken.jpg", "replace or remove it")),
    ("truncated picture", a_truncated_picture, ("1.png", "replace or remove it")),
]


@pytest.mark.parametrize(("make", "words"), [each[1:] for each in BAD_DATA], ids=[each[0] for each in BAD_DATA])
def test_data_that_does_not_fit(
    make: Callable[[Path], Path], words: tuple[str, ...], tmp_path: Path, workspace: Path, tiny: Case
) -> None:
    bad = make(tmp_path)
    before = snapshot(workspace)
    options = ("--data", bad, "--max-error", 0.01, "--effort", 0.01, "-o", workspace)
    refused(taglio("optimize", tiny.model, *options), "BadData", tmp_path, *words)
    assert snapshot(workspace) == before


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"left": 6}, ("['right']",)),
        ({"left": 6, "right": 5}, ("'left' 6", "'right' 5")),
    ],
    ids=["one missing", "other counts"],
)
def test_arrays_that_do_not_fit_several_inputs(arrays: dict[str, int], words: tuple[str, ...], tmp_path: Path) -> None:
    shapes = {"left": (3, 8, 8), "right": (2, 8, 8), "middle": (1,)}
    values = {name: np.ones((count, *shapes[name]), np.float32) for name, count in arrays.items()}
    np.savez(tmp_path / "data.npz", **values)  # type: ignore[arg-type]
    model = saved(two_in_two_out(), tmp_path)
    ran = taglio("profile", model, "--data", tmp_path / "data.npz", "-o", tmp_path / "out")
    refused(ran, "BadData", "data.npz", *words)
    assert not (tmp_path / "out").exists()


def test_values_that_the_model_cannot_run_on(tmp_path: Path) -> None:
    """An index past the table: right shape, right type, and only running shows it."""
    g = Sketch()
    table = g.weight(10, 8)
    g.inputs.append(helper.make_tensor_value_info("words", TensorProto.INT64, [1, 4]))
    y = g.op("MatMul", g.op("Gather", table, "words", axis=0), g.weight(8, 6))
    model = saved(g.model(g.rename(y, "y")), tmp_path)
    np.save(tmp_path / "words.npy", np.full((6, 4), 99))
    arguments = (model, "--data", tmp_path / "words.npy", "--max-error", 0.1, "--effort", 0.01)
    refused(taglio("optimize", *arguments, "-o", tmp_path / "out"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rgb,mean=grey", ("mean=grey",)),
        ("hsv", ("hsv", "rgb")),
        ("gray", ("gray", "rgb or bgr")),
        ("nhwc", ("nhwc", "nchw")),
        ("scale=0", ("scale",)),
    ],
)
def test_preprocessing_that_does_not_fit(text: str, words: tuple[str, ...], tmp_path: Path, tiny: Case) -> None:
    options = ("--data", pictures(4, tmp_path), "--preprocess", text, "-o", tmp_path / "out")
    refused(taglio("profile", tiny.model, *options), "BadOption", *words)
    assert not (tmp_path / "out").exists()


def test_preprocessing_of_arrays(tmp_path: Path, tiny: Case) -> None:
    ran = taglio("profile", *tiny.arguments(), "--preprocess", "rgb", "-o", tmp_path / "out")
    refused(ran, "BadOption", "preprocess")
