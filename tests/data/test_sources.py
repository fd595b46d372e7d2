"""Data as people have them: class folders, wav files, texts, tables, saved datasets, and what lies beside a model."""

import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from PIL import Image

from taglio.data.files import load
from taglio.data.labels import with_labels
from taglio.data.preprocess import Preprocess, as_text, parse_preprocess
from taglio.data.processor import Beside, preprocess_of
from taglio.data.spec import InputSpec
from taglio.errors import BadData, BadOption
from taglio.flow.opening import Model
from tests.models import parsed

RNG = np.random.default_rng(3)
IMAGE = InputSpec("pixel_values", ("batch", 3, 4, 6), "float32")
SOUND = InputSpec("wave", ("batch", 1, "time"), "float32")
IDS = InputSpec("input_ids", ("batch", "sequence"), "int64")
MASK = InputSpec("attention_mask", ("batch", "sequence"), "int64")


def pictures(folder: Path, **classes: int) -> Path:
    for name, count in classes.items():
        (folder / name).mkdir(parents=True)
        for index in range(count):
            Image.fromarray(RNG.integers(0, 256, (4, 6, 3), dtype=np.uint8)).save(folder / name / f"{index}.png")
    return folder


def sound(path: Path, values: np.ndarray, rate: int = 8000, width: int = 2) -> Path:
    """`values` are whole numbers [T] or [T, C] of 8 x `width` bits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as stream:
        stream.setnchannels(1 if values.ndim == 1 else values.shape[1])
        stream.setsampwidth(width)
        stream.setframerate(rate)
        signed = values + 128 if width == 1 else values
        flat = np.asarray(signed, "<i8").reshape(-1, 1).view(np.uint8).reshape(-1, 8)[:, :width]
        stream.writeframes(flat.tobytes())
    return path


def refused(match: str) -> Any:
    return pytest.raises((BadData, BadOption), match=match)


def written(path: Path, value: Any) -> Path:
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return path


def tokenizer(folder: Path, **settings: Any) -> Beside:
    """A tokenizer of five words beside a model."""
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[PAD]": 0, "[UNK]": 1, "a": 2, "b": 3, "c": 4}, "[UNK]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    folder.mkdir(exist_ok=True)
    words.save(str(folder / "tokenizer.json"))
    written(folder / "tokenizer_config.json", settings)
    return Beside((folder,))


def test_subfolders_are_classes(tmp_path: Path) -> None:
    data = load(pictures(tmp_path, dog=2, cat=1), [IMAGE])
    assert (data.names, data.labels is not None and data.labels.tolist()) == (
        ("cat/0.png", "dog/0.png", "dog/1.png"), [0, 1, 1],
    )  # fmt: skip
    assert tuple(map(str, data.notes)) == (
        "labels are the names of 2 subdirectories, numbered by the order of their names: cat 0, dog 1",
    )


def test_classes_that_are_numbers_and_those_of_the_model(tmp_path: Path) -> None:
    digits = load(pictures(tmp_path / "digits", **{"10": 1, "2": 1}), [IMAGE])
    assert digits.labels is not None and digits.labels.tolist() == [10, 2]
    written(tmp_path / "config.json", {"label2id": {"dog": 0, "cat": 7}})
    named = load(pictures(tmp_path / "named", dog=1, cat=1), [IMAGE], near=Beside((tmp_path,)))
    assert named.labels is not None and named.labels.tolist() == [7, 0]
    assert "numbered by config.json" in named.notes[0].text


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_a_wav_file_is_read_exactly_at_every_width(tmp_path: Path, width: int) -> None:
    top = 2 ** (8 * width - 1)
    values = np.array([-top, -1, 0, 1, top - 1])
    for name in "ab":
        sound(tmp_path / f"{name}.wav", values, width=width)
    data = load(tmp_path, [SOUND], Preprocess(rate=8000))
    np.testing.assert_array_equal(data.samples[0]["wave"][0, 0], (values / top).astype(np.float32))
    assert data.notes == ()


def test_channels_are_averaged_or_kept_as_the_model_takes_them(tmp_path: Path) -> None:
    both = np.array([[100, 300], [-200, 0]])
    sound(tmp_path / "s.wav", both)
    one = load(tmp_path, [SOUND]).samples[0]["wave"]
    np.testing.assert_array_equal(one, np.array([[[200, -100]]], np.float32) / 2**15)
    two = load(tmp_path, [InputSpec("x", (1, 2, None), "float32")]).samples[0]["x"]
    np.testing.assert_array_equal(two[0], both.T.astype(np.float32) / 2**15)
    flat = load(tmp_path, [InputSpec("x", (1, None), "float32")]).samples[0]["x"]
    assert flat.shape == (1, 2)
    with refused("s.wav has 2 channels; the model takes 3"):
        load(tmp_path, [InputSpec("x", (1, 3, None), "float32")])


def test_sounds_fit_a_fixed_length_and_it_is_said(tmp_path: Path) -> None:
    for name, length in (("a", 2), ("b", 9), ("c", 4)):
        sound(tmp_path / f"{name}.wav", np.full(length, 2**14))
    data = load(tmp_path, [InputSpec("x", (1, 4), "float32")])
    assert [sample["x"].tolist() for sample in data.samples] == [[[0.5, 0.5, 0, 0]], [[0.5] * 4], [[0.5] * 4]]
    assert tuple(map(str, data.notes)) == (
        "sounds have 8000 samples per second; no rate to check against",
        "1 sound padded with zeros and 1 cut to the length of the input",
    )


def test_another_sampling_rate_is_refused_with_both(tmp_path: Path) -> None:
    sound(tmp_path / "a.wav", np.arange(5))
    with refused("a.wav has 8000 samples per second, `preprocess` says 16000: resample it"):
        load(tmp_path, [SOUND], parse_preprocess("rate=16000"))
    sound(tmp_path / "b.wav", np.arange(5), rate=44100)
    with refused("b.wav has 44100 samples per second, the first sound has 8000"):
        load(tmp_path, [SOUND])


@pytest.mark.parametrize(
    "content", [b"", b"RIFF", b"RIFF\x24\0\0\0WAVEfmt \x10\0\0\0\x03\0\1\0@\x1f\0\0\0}\0\0\4\0 \0data"]
)
def test_what_is_no_wav_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.wav").write_bytes(content)
    with refused("a.wav is not a PCM wav file .*: convert it"):
        load(tmp_path, [SOUND])


def test_texts_become_what_the_model_takes(tmp_path: Path) -> None:
    near = tokenizer(tmp_path / "model")
    path = written(tmp_path / "t.txt", "a b\nc c c zz\r\nb\n")
    data = load(path, [IDS, MASK, InputSpec("token_type_ids", (None, None), "int32")], near=near)
    assert [sample["input_ids"].tolist() for sample in data.samples] == [[[2, 3]], [[4, 4, 4, 1]], [[3]]]
    assert data.samples[1]["attention_mask"].tolist() == [[1, 1, 1, 1]]
    assert data.samples[1]["token_type_ids"].dtype == np.int32
    assert tuple(map(str, data.notes)) == ("texts were tokenized by tokenizer.json next to the model",)


def test_the_tokenizer_may_lie_beside_a_link_to_the_model(tmp_path: Path) -> None:
    """As in the cache of Hugging Face's hub, whose files are links to blobs."""
    tokenizer(tmp_path / "snapshot")
    text = "(int64[batch, sequence] input_ids) => (float[batch, sequence, 3] rows) { rows = Gather (table, input_ids) }"
    onnx.save(parsed(text, {"table": RNG.standard_normal((5, 3))}), tmp_path / "blob")
    link = tmp_path / "snapshot" / "model.onnx"
    link.symlink_to(tmp_path / "blob")
    opened = Model(link, written(tmp_path / "t.txt", "a b\nc b\nb a\na a\n"))
    assert opened.setup.model == str(link) and opened.name == "model"


def test_texts_are_filled_up_and_cut_to_a_fixed_length_and_to_their_batch(tmp_path: Path) -> None:
    near = tokenizer(tmp_path / "model", pad_token="[PAD]")
    path = written(tmp_path / "t.txt", "a\na b c a b\nb c\nc\n")
    fixed = [InputSpec("input_ids", (1, 3), "int64"), InputSpec("attention_mask", (1, 3), "int64")]
    data = load(path, fixed, near=near)
    assert [sample["input_ids"].tolist() for sample in data.samples[:2]] == [[[2, 0, 0]], [[2, 3, 4]]]
    assert data.samples[0]["attention_mask"].tolist() == [[1, 0, 0]]
    assert data.notes[0].text.endswith("; 1 of 4 were cut to 3 tokens")
    pairs = load(path, [InputSpec("ids", (2, None), "int64")], near=near)
    assert [sample["ids"].shape for sample in pairs.samples] == [(2, 5), (2, 2)]


def test_a_table_of_texts_has_its_labels(tmp_path: Path) -> None:
    near = tokenizer(tmp_path / "model")
    path = written(tmp_path / "t.csv", 'id,Text,label\n1,"a, b",4\n2,c,5\n')
    data = load(path, [IDS], near=near)
    assert data.labels is not None and data.labels.tolist() == [4, 5]
    assert data.notes[0].text == f"{path}: left out 'id', neither text nor label"


def test_texts_without_a_tokenizer_or_for_another_model_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "t.txt", "a\n")
    with refused(r"need tokenizer.json next to the model, but .* has none: copy it there"):
        load(path, [IDS], near=Beside((tmp_path,)))
    with refused("but this model is in memory"):
        load(path, [IDS])
    with refused(r"the model takes 'past' float32 \[1, 2, 3\]: give an .npz"):
        load(path, [IDS, InputSpec("past", (1, 2, 3), "float32")])
    pytest.importorskip("tokenizers")
    written(tmp_path / "tokenizer.json", "{")
    with refused("tokenizer.json is not a tokenizer"):
        load(path, [IDS], near=Beside((tmp_path,)))


def test_a_tokenizer_that_panics_is_refused(tmp_path: Path) -> None:
    """A panic of the library is no Exception."""
    near = tokenizer(tmp_path, pad_token=["[PAD]"])
    settings = json.loads((tmp_path / "tokenizer.json").read_text())
    settings["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 5}
    written(tmp_path / "tokenizer.json", json.dumps(settings))
    with refused(r"text 0 is refused by tokenizer.json \(.*stride"):
        load(written(tmp_path / "t.txt", "a b c a b c\n"), [IDS], near=near)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("l.csv", "label\n3\n1\n2\n", [3, 1, 2]),
        ("l.csv", "3\n1\n2\n", [3, 1, 2]),
        ("l.csv", "file_name,label\nb.npz,x\na.npz,y\nc.npz,z\nd.npz,-\n", ["y", "x", "z"]),
        ("l.tsv", "b.npz\t1.5\na.npz\t2\nc.npz\t0\n", [2, 1.5, 0]),
    ],
)
def test_labels_in_a_table(tmp_path: Path, name: str, text: str, expected: list[Any]) -> None:
    folder = tmp_path / "samples"
    folder.mkdir()
    for letter in "abc":
        np.savez(folder / f"{letter}.npz", x=np.zeros(2, np.float32))
    data = load(folder, [InputSpec("x", (1, 2), "float32")])
    labelled = with_labels(data, written(tmp_path / name, text))
    assert labelled.labels is not None and labelled.labels.tolist() == expected


VIT = {
    "do_resize": True, "size": {"height": 4, "width": 6}, "resample": 3, "do_rescale": True, "rescale_factor": 1 / 255,
    "do_normalize": True, "image_mean": [0.5, 0.25, 0], "image_std": [0.5, 0.5, 2],
}  # fmt: skip


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (VIT, "rgb,nchw,mean=127.5:63.75:0,scale=0.00784314:0.00784314:0.00196078,stretch,bicubic,size=4x6"),
        (
            {"size": {"shortest_edge": 256}, "crop_size": {"height": 224, "width": 224}, "do_center_crop": True},
            "rgb,nchw,mean=0,scale=0.00392157,crop=256,bilinear,size=224x224",
        ),
        (
            {"size": {"shortest_edge": 224}, "crop_pct": 0.875, "do_rescale": False},
            "rgb,nchw,mean=0,scale=1,crop=256,bilinear,size=224x224",
        ),
        ({"size": 32, "resample": 0}, "rgb,nchw,mean=0,scale=0.00392157,stretch,nearest,size=32x32"),
    ],
)
def test_the_preprocessor_of_a_model_is_read(tmp_path: Path, found: dict[str, Any], text: str) -> None:
    written(tmp_path / "preprocessor_config.json", found)
    how, told = preprocess_of(Beside((tmp_path,)))
    assert how is not None and as_text(how) == text
    assert told == f"images are preprocessed by preprocessor_config.json next to the model: {text}"
    assert as_text(parse_preprocess(text)) == text


def test_the_preprocessor_beside_the_model_is_used_unless_another_is_given(tmp_path: Path) -> None:
    near = Beside((tmp_path,))
    written(tmp_path / "preprocessor_config.json", VIT)
    path = pictures(tmp_path / "p", a=1) / "a"
    pixels = np.asarray(Image.open(path / "0.png"), np.float64)
    data = load(path, [IMAGE], near=near)
    wanted = (pixels / 255 - [0.5, 0.25, 0]) / [0.5, 0.5, 2]
    np.testing.assert_allclose(data.samples[0]["pixel_values"][0], wanted.transpose(2, 0, 1), atol=1e-6)
    assert "preprocessor_config.json" in data.notes[0].text
    last = load(path, [InputSpec("x", (1, "h", "w", 3), "float32")], near=near)
    np.testing.assert_allclose(last.samples[0]["x"][0], wanted, atol=1e-6)
    own = load(path, [IMAGE], Preprocess(scale=(1.0,)), near=near)
    np.testing.assert_array_equal(own.samples[0]["pixel_values"][0], pixels.transpose(2, 0, 1).astype(np.float32))
    assert own.notes == ()


@pytest.mark.parametrize(
    ("found", "match"),
    [
        ({"size": {"shortest_edge": 800}}, "images that keep their own aspect ratio"),
        ({"do_normalize": True, "image_mean": [0.5]}, "image_std"),
        ({"rescale_factor": 0}, "division by zero"),
    ],
)
def test_a_preprocessor_that_taglio_cannot_follow_is_refused(tmp_path: Path, found: dict[str, Any], match: str) -> None:
    written(tmp_path / "preprocessor_config.json", found)
    with refused(match):
        preprocess_of(Beside((tmp_path,)))


def test_the_feature_extractor_of_sounds(tmp_path: Path) -> None:
    near = Beside((tmp_path,))
    written(tmp_path / "preprocessor_config.json", {"sampling_rate": 8000, "do_normalize": True, "feature_size": 1})
    sound(tmp_path / "s" / "a.wav", np.array([100, 300, 500]))
    data = load(tmp_path / "s", [SOUND], near=near)
    got = data.samples[0]["wave"]
    assert (abs(float(got.mean())) < 1e-6, data.notes[0].text[-23:]) == (True, "model: rate=8000,normalize"[-23:])
    written(tmp_path / "preprocessor_config.json", {"sampling_rate": 8000, "feature_size": 80})
    with refused("80 features per frame: give an .npz of them"):
        load(tmp_path / "s", [SOUND], near=near)


def test_crop_takes_the_middle(tmp_path: Path) -> None:
    image = np.zeros((4, 12, 3), np.uint8)
    image[:, 4:8] = 255
    Image.fromarray(image).save(tmp_path / "a.png")
    square = InputSpec("x", (1, 3, 4, 4), "float32")
    for text in ("crop", "crop=4"):
        assert load(tmp_path, [square], parse_preprocess(text)).samples[0]["x"].min() == 1
    with refused("crop=3 is smaller than the crop of 4 x 4"):
        load(tmp_path, [square], parse_preprocess("crop=3"))


def saved(folder: Path, columns: dict[str, Any], **features: Any) -> Path:
    """A dataset on the disk."""
    datasets = pytest.importorskip("datasets")
    dataset = datasets.Dataset.from_dict(columns)
    for name, feature in features.items():
        dataset = dataset.cast_column(name, feature)
    dataset.save_to_disk(str(folder))
    return folder


def test_a_saved_dataset_of_arrays(tmp_path: Path) -> None:
    path = saved(tmp_path / "d", {"x": RNG.random((4, 5)).tolist(), "label": [1, 0, 1, 0], "note": list("abcd")})
    data = load(path, [InputSpec("x", (1, 5), "float32")])
    assert (len(data.samples), data.samples[0]["x"].shape) == (4, (1, 5))
    assert data.labels is not None and data.labels.tolist() == [1, 0, 1, 0]


def test_a_saved_dataset_of_images_counts_classes_as_the_model_does(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    images = [str(file) for file in sorted((pictures(tmp_path / "p", a=3) / "a").iterdir())]
    classes = datasets.ClassLabel(names=["cat", "dog"])
    path = saved(tmp_path / "d", {"image": images, "label": [0, 1, 0]}, image=datasets.Image(), label=classes)
    written(tmp_path / "config.json", {"label2id": {"cat": 5, "dog": 3}})
    data = load(path, [IMAGE], near=Beside((tmp_path,)))
    assert data.labels is not None and data.labels.tolist() == [5, 3, 5]
    np.testing.assert_array_equal(
        data.samples[1]["pixel_values"], load(tmp_path / "p", [IMAGE]).samples[1]["pixel_values"]
    )


def test_a_saved_dataset_of_sounds_and_one_of_texts(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    clips = [str(sound(tmp_path / f"{name}.wav", np.arange(6))) for name in "ab"]
    path = saved(tmp_path / "sounds", {"audio": clips}, audio=datasets.Audio())
    assert load(path, [SOUND]).samples[0]["wave"].shape == (1, 1, 6)
    near = tokenizer(tmp_path / "model")
    texts = saved(tmp_path / "texts", {"text": ["a b", "c"], "title": ["x", "y"], "label": [1, 2]})
    data = load(texts, [IDS], near=near)
    assert [sample["input_ids"].tolist() for sample in data.samples] == [[[2, 3]], [[4]]]
    assert "left out 'title', not among the model's required inputs" in data.notes[0].text


def test_saved_datasets_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    path = saved(tmp_path / "d", {"y": [1, 2]})
    with refused(r"has the columns y \(int64\); the model takes .*: rename columns to the input names"):
        load(path, [IMAGE])
    datasets.DatasetDict({"train": datasets.load_from_disk(str(path))}).save_to_disk(str(tmp_path / "s"))
    with refused(r"has the splits train: give one of them, such as .*/s/train"):
        load(tmp_path / "s", [IMAGE])
    for damaged in ('{"splits": []}', '{"splits": 3}', "3", "[" * 99999):
        (tmp_path / "s" / "dataset_dict.json").write_text(damaged)
        with refused("has the splits :" if "[]" in damaged else "cannot be read as a dataset"):
            load(tmp_path / "s", [IMAGE])
    (path / "state.json").write_text("{")
    with refused("cannot be read as a dataset"):
        load(path, [IMAGE])
