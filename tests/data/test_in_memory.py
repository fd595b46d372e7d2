"""Values in memory, in every form in which programs hold them, are the samples that a file of them gives."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from taglio.data.dataset import Samples
from taglio.data.files import load
from taglio.data.spec import InputSpec
from taglio.data.values import from_values
from tests.data.test_arrays import VECTOR, npz, refused, rows


def test_columns_of_samples_that_differ_in_length() -> None:
    """What a tokenizer gives without padding."""
    spec = [InputSpec("ids", ("n", "s"), "int64"), InputSpec("mask", ("n", "s"), "int64")]
    columns = {"ids": [[1, 2, 3], [4, 5]], "mask": [[1, 1, 1], [1, 1]], "label": [0, 1]}
    data = from_values(columns, spec)
    assert [sample["ids"].tolist() for sample in data.samples] == [[[1, 2, 3]], [[4, 5]]]
    np.testing.assert_array_equal(data.labels, [0, 1])
    with refused(r"different numbers of samples \('ids' 2, 'mask' 1\)"):
        from_values({"ids": columns["ids"], "mask": [[1]]}, spec)
    with refused(r"`data`\[1\]\['ids'\] is not an array"):
        from_values({"ids": [[1], [[1], [1, 2]]], "mask": [[1], [1]]}, spec)


def test_arrays_of_arrays_and_labels_that_differ_in_shape() -> None:
    boxes = [np.zeros((count, 5)) for count in (1, 3, 0, 2)]
    ragged = np.empty(4, object)
    ragged[:] = boxes
    rows = [np.arange(count, dtype=np.int64) for count in (3, 5, 3, 4)]
    ids = np.empty(4, object)
    ids[:] = rows
    spec = InputSpec("ids", ("batch", "length"), "int64")
    for values, labels in ((ids, ragged), ({"ids": ids}, boxes)):
        data = from_values(values, [spec], labels=labels)
        assert [sample["ids"].shape for sample in data.samples] == [(1, 3), (1, 5), (1, 3), (1, 4)]
        assert data.labels is not None
        assert [label.shape for label in data.labels] == [box.shape for box in boxes]


def test_a_generator_may_fill_one_buffer() -> None:
    def frames() -> Iterator[np.ndarray]:
        buffer = np.zeros(5, np.float32)
        for value in range(3):
            buffer[:] = value
            yield buffer

    assert [sample["x"][0, 0] for sample in from_values(frames(), [VECTOR]).samples] == [0.0, 1.0, 2.0]


def test_what_can_become_an_array_is_one() -> None:
    class Frame:  # as a table of pandas: iterating it gives names of columns
        def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
            return np.arange(10.0).reshape(2, 5)

        def __iter__(self) -> Iterator[str]:
            return iter("abcde")

    assert len(from_values(Frame(), [VECTOR]).samples) == 2


def test_values_beyond_the_room_wait_in_a_file() -> None:
    """Whether they come as one array or from a generator; they are what they were."""
    values, spec = rows(6, 5), [VECTOR]
    wanted = from_values(values, spec)
    for source in (values, iter(list(values))):
        filed = from_values(source, spec, room_bytes=0)
        assert filed.sha256 == wanted.sha256
        assert isinstance(filed.samples, Samples)
        assert filed.samples._shelf._file is not None
        np.testing.assert_array_equal(filed.samples[3]["x"], wanted.samples[3]["x"])


class Loader:
    """As PyTorch's: batches of tensors and labels, a length, no index."""

    def __init__(self, arrays: np.ndarray, batch: int) -> None:
        self._arrays, self._batch = arrays, batch

    def __len__(self) -> int:
        return len(self._arrays) // self._batch

    def __iter__(self) -> Iterator[list[Any]]:
        for start in range(0, len(self._arrays), self._batch):
            yield [Tensor(self._arrays[start : start + self._batch]), np.arange(start, start + self._batch)]


class Tensor:
    """Offers what a tensor offers."""

    def __init__(self, values: np.ndarray) -> None:
        self._values = values

    def detach(self) -> "Tensor":
        return self

    def cpu(self) -> np.ndarray:
        return self._values


class Rows:
    """As a data set of Hugging Face's: rows by index, of columns that need not be inputs."""

    column_names = ("x", "label", "text")

    def __init__(self, arrays: np.ndarray) -> None:
        self._arrays = arrays

    def __len__(self) -> int:
        return len(self._arrays)

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        return {"x": self._arrays[index].tolist(), "label": index, "text": "a row"}


def test_data_in_any_form_are_the_same_samples(tmp_path: Path) -> None:
    x, labels = rows(10, 5), np.arange(10)
    (tmp_path / "rows").mkdir()
    for index, row in enumerate(x):
        np.savez(tmp_path / "rows" / f"{index}.npz", x=row, label=np.asarray(index))
    forms: dict[str, tuple[Any, np.ndarray | None]] = {
        "arrays": ({"x": x}, labels),
        "one array": (x, labels),
        "with labels": ({"x": x, "label": labels}, None),
        "list": ([{"x": row} for row in x], labels),
        "generator": (({"x": row} for row in x), labels),
        "tuples": ([[x[:5], labels[:5]], [x[5:], labels[5:]]], None),
        "loader": (Loader(x, 5), None),
        "rows": (Rows(x), None),
    }
    hashes = {name: from_values(values, [VECTOR], labels=given).sha256 for name, (values, given) in forms.items()}
    hashes["npz"] = load(npz(tmp_path, x=x, label=labels), [VECTOR]).sha256
    hashes["folder"] = load(tmp_path / "rows", [VECTOR]).sha256
    assert len(set(hashes.values())) == 1, hashes
    assert "left out 'text', not among the model's required inputs" in from_values(Rows(x), [VECTOR]).notes[0].text


def test_inputs_of_a_single_number_are_given_in_every_form() -> None:
    """A sampling rate beside a sound, whose length may differ from sample to sample."""
    spec = [InputSpec("x", (1, "time"), "float32"), InputSpec("rate", (), "int64")]
    sounds, rates = [rows(1, 4) for _ in range(3)], np.array([8, 16, 16])
    items = [{"x": x, "rate": rate} for x, rate in zip(sounds, rates, strict=True)]
    wanted = from_values({"x": np.stack(sounds), "rate": rates}, spec)
    assert wanted.samples[1]["rate"].shape == ()
    for values in (items, iter(items), [(each["x"], each["rate"]) for each in items]):
        assert from_values(values, spec).sha256 == wanted.sha256
    ragged = [*sounds[:2], rows(1, 5)]
    assert from_values({"x": ragged, "rate": rates}, spec).samples[2]["x"].shape == (1, 5)
    for rate in (16, np.array(16)):
        with refused("'rate'. is a single"):
            from_values({"x": ragged, "rate": rate}, spec)
        with refused("has a single number for input 'rate'"):
            from_values({"x": np.stack(sounds), "rate": rate}, spec)
