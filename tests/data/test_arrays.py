"""Arrays on the disk: every accepted form, every refusal with its numbers, and reproducible splits."""

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taglio.data.dataset import one_of_each, split, spread, typical
from taglio.data.files import load
from taglio.data.preprocess import Preprocess
from taglio.data.spec import InputSpec
from taglio.data.values import from_values
from taglio.errors import BadData, BadOption


def x_of(*shape: int, dtype: str = "float32") -> InputSpec:
    return InputSpec("x", shape, dtype)


IMAGE = InputSpec("images", (1, 3, 4, 6), "float32")
VECTOR = x_of(1, 5)
IDS = InputSpec("ids", (1, 2), "int64")
RNG = np.random.default_rng(7)
LAST = r"are last, so save numpy.moveaxis\(array, -1, -3\)"
FIRST = r"are first, so save numpy.moveaxis\(array, -3, -1\)"


def rows(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("float32")


def npz(folder: Path, **arrays: Any) -> Path:
    np.savez(folder / "data.npz", **arrays)
    return folder / "data.npz"


def npy(folder: Path, array: np.ndarray) -> Path:
    np.save(folder / "data.npy", array)
    return folder / "data.npy"


def refused(match: str, kind: type[Exception] = BadData) -> Any:
    return pytest.raises(kind, match=match)


def test_npy_rows_become_samples(tmp_path: Path) -> None:
    array = rows(3, 5)
    data = load(npy(tmp_path, np.asfortranarray(array)), [VECTOR])
    for i, feed in enumerate(data.samples):
        np.testing.assert_array_equal(feed["x"], array[i : i + 1])
        assert type(feed["x"]) is np.ndarray
        assert feed["x"].flags.c_contiguous


def test_npz_takes_inputs_by_name_with_rows_or_full_shapes_and_labels(tmp_path: Path) -> None:
    x, ids = rows(4, 5), RNG.integers(0, 9, (4, 1, 2))
    data = load(npz(tmp_path, x=x, ids=ids, labels=np.arange(4)), [VECTOR, IDS])
    np.testing.assert_array_equal(data.samples[2]["x"], x[2:3])
    np.testing.assert_array_equal(data.samples[2]["ids"], ids[2])
    np.testing.assert_array_equal(data.labels, [0, 1, 2, 3])
    half = load(tmp_path / "data.npz", [VECTOR, IDS], limit=2)
    assert (half.names, half.dropped) == (("0", "3"), 2)
    np.testing.assert_array_equal(half.labels, [0, 3])


def test_a_batch_groups_rows_and_labels(tmp_path: Path) -> None:
    x = rows(7, 5)
    data = load(npz(tmp_path, x=x, label=np.arange(7)), [x_of(3, 5)])
    assert (data.names, data.dropped) == (("0..2", "3..5"), 1)
    np.testing.assert_array_equal(data.samples[1]["x"], x[3:6])
    np.testing.assert_array_equal(data.labels, [[0, 1, 2], [3, 4, 5]])
    assert len(load(npy(tmp_path, rows(2, 3, 5)), [x_of(3, 5)]).samples) == 2
    with refused("2 samples; the batch of input 'x' is 3: add samples"):
        load(npy(tmp_path, rows(2, 5)), [x_of(3, 5)])
    with refused(r"takes \[3, 5\]: give 3 in each sample, or all in one array"):
        from_values([*x], [x_of(3, 5)])


@pytest.mark.parametrize(
    ("source", "target", "values"),
    [
        ("float64", "float32", [0.5, -2]),
        ("int64", "float32", [2**24, -(2**24)]),
        ("uint8", "float32", [0, 255]),
        ("bool", "float32", [0, 1]),
        (">f4", "float32", [0.5, -2]),
    ],
)
def test_casts_that_keep_the_values(tmp_path: Path, source: str, target: str, values: list[float]) -> None:
    data = load(npy(tmp_path, np.array([values], dtype=source)), [x_of(1, 2, dtype=target)])
    assert (data.samples[0]["x"].dtype, data.samples[0]["x"].tolist()) == (np.dtype(target), [values])


@pytest.mark.parametrize(
    ("array", "spec", "match"),
    [
        (np.zeros((2, 3, 4, 6), np.uint8), IMAGE, r"uint8 for input 'images'.*float32.*\(array / 255\)"),
        (rows(2, 2), IDS, "float32 for input 'ids', which takes int64: fractions would be lost"),
        (np.array([[1e30, 2.0]]), IDS, "do not fit: rescale them"),
        (np.array([[1, 2**24 + 1]]), x_of(1, 2), "values 1..16777217"),
        (np.array([[-1, 2]], np.int8), x_of(1, 2, dtype="uint8"), "values -1..2"),
        (np.array([["a", "b"]]), IDS, "<U1 for input 'ids', which takes int64: save numbers"),
        (np.array([[1, 1], [np.nan, -np.inf]]), x_of(1, 2), r"sample 1, input 'x' has 1 NaN"),
        (np.zeros((2, 4, 6, 3)), IMAGE, rf"\[2, 4, 6, 3\] for .*'images'.* \[1, 3, 4, 6\]: .*{LAST}"),
        (np.zeros((2, 3, 4, 6)), x_of(1, 4, 6, 3), FIRST),
        (np.zeros((3, 4, 6)), IMAGE, r"\[3, 4, 6\].*no axis of samples, so save array\[None\]"),
        (np.zeros((2, 3, 5, 6)), IMAGE, r"\[2, 3, 5, 6\].*takes \[1, 3, 4, 6\]: save \[N, 3, 4, 6\]"),
        (np.zeros((0, 5)), VECTOR, "has 0 samples"),
    ],
)
def test_arrays_have_to_fit(tmp_path: Path, array: np.ndarray, spec: InputSpec, match: str) -> None:
    for path in (npy(tmp_path, array), npz(tmp_path, **{spec.name: array})):
        with refused(match) as caught:
            load(path, [spec])
        assert "\n" not in str(caught.value)


def test_paths_that_cannot_be_read(tmp_path: Path) -> None:
    whole = npy(tmp_path, rows(2, 5)).read_bytes()
    with refused("data.npy is one array; the model has 2 inputs: give an .npz with the keys"):
        load(tmp_path / "data.npy", [VECTOR, IDS])
    with refused("not for arrays: leave it out", BadOption):
        load(tmp_path / "data.npy", [VECTOR], Preprocess())
    with refused("data.npz cannot be read .*pickle"):
        load(npz(tmp_path, x=np.array([{}, []], dtype=object)), [VECTOR])
    broken = {"data.npz": b"PK\x03\x04broken", "empty.npz": b"", "text.npy": b"1,2,3", "cut.npy": whole[:-4]}
    for name, content in broken.items():
        (tmp_path / name).write_bytes(content)
        with refused(f"{name} cannot be read .*: use numpy.save or numpy.savez"):
            load(tmp_path / name, [VECTOR])
    with refused("nothing does not exist: give a directory"):
        load(tmp_path / "nothing", [VECTOR])
    (tmp_path / "a.mat").write_text("1")
    with refused("a.mat: taglio cannot read this kind of data: give a directory of images, wav files or .npz"):
        load(tmp_path / "a.mat", [VECTOR])


def test_the_hash_is_of_the_contents(tmp_path: Path) -> None:
    x = rows(2, 5)
    first = load(npy(tmp_path, x), [VECTOR])
    assert first.sha256 == load(npz(tmp_path, other=x.astype(">f4")), [VECTOR]).sha256
    assert first.sha256 != load(npz(tmp_path, x=x, label=[0, 1]), [VECTOR]).sha256
    assert first.sha256 != load(npy(tmp_path, x[::-1]), [VECTOR]).sha256


MAXIMA = st.tuples(st.integers(1, 40), st.none() | st.integers(1, 40))


@given(st.integers(2, 60), st.integers(0, 2**32), MAXIMA)
def test_a_split_is_sound(count: int, seed: int, most: tuple[int, int | None]) -> None:
    data = from_values(np.arange(count, dtype=np.float32)[:, None], [x_of(1)])
    one, two = split(data, seed, *most), split(data, seed, *most)
    drawn = one.calibration.names + one.held_out.names
    assert len(set(drawn) & set(data.names)) == len(drawn)
    assert 1 <= len(one.calibration.names) <= most[0]
    assert 1 <= len(one.held_out.names) <= (most[1] or count)
    assert most[1] is not None or len(drawn) == count
    assert (one.calibration.sha256, one.held_out.sha256) == (two.calibration.sha256, two.held_out.sha256)
    assert drawn == two.calibration.names + two.held_out.names


def test_a_split_carries_samples_and_labels_together(tmp_path: Path) -> None:
    data = load(npz(tmp_path, x=np.arange(50).reshape(10, 5), label=np.arange(10)), [VECTOR])
    parts = split(data, seed=4, max_calibration=3)
    assert (len(parts.calibration.samples), len(parts.held_out.samples)) == (3, 7)
    for part in (parts.calibration, parts.held_out):
        np.testing.assert_array_equal(part.labels, [int(name) for name in part.names])
        np.testing.assert_array_equal(part.labels, [feed["x"][0, 0] / 5 for feed in part.samples])
    assert split(data, seed=5, max_calibration=3).calibration.names != parts.calibration.names


def test_one_sample_cannot_be_split() -> None:
    with refused("`data` has 1 sample; a split needs at least 2"):
        split(from_values(rows(1, 5), [VECTOR]))


def test_rows_that_fill_one_batch_are_too_few_for_a_split() -> None:
    with refused("1 sample of 64 rows, the model's batch; a split needs at least 2: add rows, or export the model"):
        split(from_values(rows(100, 5), [x_of(64, 5)]))
    assert len(split(from_values(rows(128, 5), [x_of(64, 5)])).held_out.samples) == 1


def test_shapes_are_the_datas_and_the_batch_may_be_anywhere(tmp_path: Path) -> None:
    inputs = [
        InputSpec("input", ("batch", "sequence"), "float32"),
        InputSpec("sr", (), "int64"),
        InputSpec("state", (2, "batch", 8), "float32"),
    ]
    full = {"input": rows(3, 1, 5), "sr": np.full(3, 16000), "state": rows(3, 2, 1, 8)}
    short = {**full, "input": full["input"][:, 0], "state": full["state"][:, :, 0]}
    one, two = load(npz(tmp_path, **full), inputs), load(npz(tmp_path, **short), inputs)
    assert one.sha256 == two.sha256
    assert {name: array.shape for name, array in one.samples[1].items()} == {
        "input": (1, 5), "sr": (), "state": (2, 1, 8)
    }  # fmt: skip


def test_samples_are_spread_over_the_shapes_as_these_occur() -> None:
    sizes = [2, 9, 2, 2, 5, 2, 2, 5]
    samples = [{"x": rows(1, size)} for size in sizes]
    assert sorted(sizes[index] for index in spread(samples, 4)) == [2, 2, 5, 9]
    assert len(set(spread(samples, 4))) == 4
    assert spread(samples[:1], 4) == [0]


def test_what_the_model_does_not_read_is_left_out_with_a_note(tmp_path: Path) -> None:
    given = {"x": rows(2, 5), "ids": np.ones((2, 2), int), "token_type_ids": np.zeros((2, 2), int)}
    for data in (from_values(given, [VECTOR, IDS]), load(npz(tmp_path, **given), [VECTOR, IDS])):
        assert "left out 'token_type_ids', not among the model's required inputs" in data.notes[0].text
        assert len(data.samples) == 2


def test_a_folder_of_arrays_holds_samples_of_several_shapes_one_of_them_empty(tmp_path: Path) -> None:
    for index, length in enumerate((0, 4, 4)):
        np.savez(tmp_path / f"{index}.npz", past=rows(1, length, 3), label=index)
    data = load(tmp_path, [InputSpec("past", (1, "length", 3), "float32")])
    assert [sample["past"].shape for sample in data.samples] == [(1, 0, 3), (1, 4, 3), (1, 4, 3)]
    assert typical(data.samples) == [1, 2]
    assert one_of_each(data.samples) == [0, 1]
    np.testing.assert_array_equal(data.labels, [0, 1, 2])
    np.savez(tmp_path / "3.npz", past=rows(1, 4, 3))
    with refused(r"has labels \[3\] for 4 samples: save one label per sample"):
        load(tmp_path, [InputSpec("past", (1, "length", 3), "float32")])
    np.savez(tmp_path / "3.npz", past=np.array([{}], dtype=object))
    with refused("pickled"):
        load(tmp_path, [InputSpec("past", (1, "length", 3), "float32")])


def test_infinities_stay_and_a_key_that_is_not_the_inputs_is_noted(tmp_path: Path) -> None:
    data = load(npz(tmp_path, arr_0=np.array([[0.0, -np.inf]] * 2, np.float32)), [x_of(1, 2)])
    assert np.isneginf(data.samples[0]["x"][0, 1])
    assert len(data.notes) == 1
    assert "'arr_0' is used for the model's only input, 'x'" in data.notes[0].text


@pytest.mark.parametrize(("labels", "words"), [([1j, 2j], "of type"), ([0.0, np.nan], "1 NaN"), ([1], "labels")])
def test_labels_that_no_metric_could_use_are_refused_at_load(tmp_path: Path, labels: list[Any], words: str) -> None:
    with refused(words):
        load(npz(tmp_path, x=rows(2, 5), labels=labels), [VECTOR])


def test_only_the_samples_that_are_used_are_held(tmp_path: Path) -> None:
    path = tmp_path / "large.npz"
    np.savez_compressed(path, x=np.zeros((400, 100_000), np.float32))
    tracemalloc.start()
    data = load(path, [x_of(1, 100_000)], limit=4)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(data.samples) == 4
    assert peak < 60_000_000 < 400 * 100_000 * 4
