"""Images: exact preprocessing, every refusal with its numbers, and what a folder of them may hold."""

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from taglio.data.files import load
from taglio.data.preprocess import Preprocess, parse_preprocess
from taglio.errors import BadOption
from tests.data.test_arrays import IMAGE, RNG, refused, x_of


def pictures(folder: Path, count: int) -> Path:
    for i in range(count):
        Image.fromarray(RNG.integers(0, 256, (4, 6, 3), dtype=np.uint8)).save(folder / f"p{i:02}.png")
    return folder


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("bgr,mean=127,scale=1/128,nchw,letterbox", Preprocess("bgr", (127,), (1 / 128,), fit="letterbox")),
        ("rgb,mean=123.7:116.3:103.5,scale=0.0171", Preprocess("rgb", (123.7, 116.3, 103.5), (0.0171,))),
        (" Gray , NHWC , scale = 1/58.395 ", Preprocess("gray", scale=(1 / 58.395,), layout="nhwc")),
        ("stretch", Preprocess()),
    ],
)
def test_preprocess_is_parsed(text: str, expected: Preprocess) -> None:
    assert parse_preprocess(text) == expected


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("rgb,fill", "'fill' is unknown: use rgb, bgr, gray, nchw, nhwc, stretch, letterbox, crop"),
        ("color=rgb", "'color=rgb' is unknown"),
        ("rgb,bgr", "'bgr' sets color twice"),
        ("mean=a", "'mean=a' needs numbers, like mean=1/128"),
        ("scale=1/0", "'scale=1/0' needs numbers"),
        ("mean=1:2", "mean \\(1.0, 2.0\\): give 1 or 3 for rgb"),
        ("scale=0", r"scale is \(0.0,\)"),
    ],
)
def test_bad_preprocess_names_the_token(text: str, match: str) -> None:
    with refused(match, BadOption):
        parse_preprocess(text)


def test_picture_values_are_exact_against_a_hand_calculation(tmp_path: Path) -> None:
    pixels = RNG.integers(0, 256, (4, 6, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    how = parse_preprocess("bgr,mean=10:20:30,scale=1/2:1/4:1/8")
    got = load(tmp_path, [IMAGE], how).samples[0]["images"]
    assert (got.shape, got.dtype.name) == (IMAGE.shape, IMAGE.dtype)
    for row in range(4):
        for column in range(6):
            red, green, blue = (int(value) for value in pixels[row, column])
            expected = [(blue - 10) / 2, (green - 20) / 4, (red - 30) / 8]
            assert got[0, :, row, column].tolist() == expected


def test_default_preprocess_is_unit_floats_in_the_models_layout(tmp_path: Path) -> None:
    pixels = RNG.integers(0, 256, (4, 6, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    first = load(tmp_path, [x_of(1, 4, 6, 3)]).samples[0]["x"][0]
    np.testing.assert_array_equal(first, (pixels.astype(np.float64) / 255).astype(np.float32))
    raw = load(tmp_path, [x_of(1, 3, 4, 6, dtype="uint8")]).samples[0]["x"][0]
    np.testing.assert_array_equal(raw, pixels.transpose(2, 0, 1))
    gray = load(tmp_path, [x_of(1, 1, 4, 6, dtype="float16")]).samples[0]["x"][0, 0]
    np.testing.assert_allclose(gray, pixels @ np.array([0.299, 0.587, 0.114]) / 255, atol=1.1 / 255)


def test_letterbox_keeps_the_aspect_ratio_and_pads_with_114(tmp_path: Path) -> None:
    Image.new("RGB", (8, 4), (200, 100, 50)).save(tmp_path / "wide.png")
    square = x_of(1, 3, 8, 8)
    got = load(tmp_path, [square], parse_preprocess("letterbox,scale=1")).samples[0]["x"][0]
    assert (got[:, [0, 1, 6, 7]] == 114).all()
    np.testing.assert_array_equal(got[:, 2:6], np.broadcast_to([[[200]], [[100]], [[50]]], (3, 4, 8)))
    stretched = load(tmp_path, [square], parse_preprocess("scale=1")).samples[0]["x"][0]
    np.testing.assert_array_equal(stretched, np.broadcast_to([[[200]], [[100]], [[50]]], (3, 8, 8)))


def test_a_folder_is_read_by_name_and_skips_what_is_not_a_picture(tmp_path: Path) -> None:
    pictures(tmp_path, 1)
    for name in ("b.JPG", "a.webp", "c.bmp", "d.jpeg"):
        Image.new("RGB", (9, 9), (1, 2, 3)).save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "._b.jpg").write_bytes(b"x")
    (tmp_path / "folder.png").mkdir()
    data = load(tmp_path, [IMAGE])
    assert data.names == ("a.webp", "b.JPG", "c.bmp", "d.jpeg", "p00.png")
    assert (data.source, data.dropped, data.labels) == (str(tmp_path), 0, None)


def test_pictures_in_formats_that_are_not_read_are_told(tmp_path: Path) -> None:
    pictures(tmp_path, 2)
    for name in ("scan.TIFF", "other.tiff", "moving.gif"):
        Image.new("RGB", (9, 9)).save(tmp_path / name)
    data = load(tmp_path, [IMAGE])
    assert len(data.samples) == 2
    assert "left out 3 pictures (.gif, .tiff): save them as .png" in map(str, data.notes)


def test_preprocess_may_not_leave_the_input_dtype(tmp_path: Path) -> None:
    Image.new("RGB", (6, 4), (255, 3, 0)).save(tmp_path / "a.png")
    got = load(tmp_path, [x_of(1, 3, 4, 6, dtype="int8")], parse_preprocess("mean=128,scale=1")).samples[0]["x"]
    assert got[0, :, 0, 0].tolist() == [127, -125, -128]
    wrong = (("int8", "1", "255"), ("uint8", "1/2", "127.5"), ("float16", "10000", r"2.55e\+06"))
    for dtype, scale, highest in wrong:
        with refused(rf"gives 0..{highest} for a.png, which {dtype} cannot hold: change mean", BadOption):
            load(tmp_path, [x_of(1, 3, 4, 6, dtype=dtype)], parse_preprocess(f"scale={scale}"))


def test_unreadable_pictures_are_named(tmp_path: Path) -> None:
    with refused("is empty: give a directory of images"):
        load(tmp_path, [IMAGE])
    (tmp_path / "notes.txt").touch()
    with refused(r"has no images and no arrays, only 1 other file \(\.txt\): give a directory of images"):
        load(tmp_path, [IMAGE])
    picture = pictures(tmp_path, 1) / "p00.png"
    for content in (picture.read_bytes()[:70], b"not a picture", b""):
        picture.write_bytes(content)
        with refused(r"p00\.png is not a readable .* image \(.+\): replace or remove it"):
            load(tmp_path, [IMAGE])
    Image.fromarray(np.full((4, 6), 40000, dtype=np.uint16)).save(picture)
    with refused(r"p00\.png has pixels of mode I;16, not 8-bit"):
        load(tmp_path, [IMAGE])


def test_images_keep_their_sizes_where_the_model_leaves_them_open(tmp_path: Path) -> None:
    for index, size in enumerate(((6, 4), (9, 5))):
        Image.new("RGB", size).save(tmp_path / f"{index}.png")
    free = x_of(1, 3, "h", "w")  # type: ignore[arg-type]
    assert [sample["x"].shape for sample in load(tmp_path, [free]).samples] == [(1, 3, 4, 6), (1, 3, 5, 9)]
    sized = load(tmp_path, [free], parse_preprocess("size=8x7")).samples
    assert {sample["x"].shape for sample in sized} == {(1, 3, 8, 7)}
    by_height = load(tmp_path, [x_of(1, 3, 8, "w")]).samples  # type: ignore[arg-type]
    assert [sample["x"].shape for sample in by_height] == [(1, 3, 8, 12), (1, 3, 8, 14)]


def test_only_bitmaps_are_opened_and_a_pipe_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []
    monkeypatch.setattr("subprocess.check_call", lambda *args, **_: started.append(args))
    pictures(tmp_path, 1)
    os.mkfifo(tmp_path / "pipe.jpg")
    assert load(tmp_path, [IMAGE]).names == ("p00.png",)
    head = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n"
    (tmp_path / "a.jpg").write_bytes(head)
    with refused("a.jpg is not a readable JPEG, PNG, BMP or WEBP image"):
        load(tmp_path, [IMAGE])
    assert not started


def test_an_image_that_claims_too_many_pixels(tmp_path: Path) -> None:
    Image.new("1", (9000, 9000)).save(tmp_path / "a.png")
    with refused("a.png claims 9000 x 9000 pixels"):
        load(tmp_path, [IMAGE])
