"""Damaged and hostile data: read, or refused in one line; never a traceback, never a bomb unpacked."""

import io
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from taglio.data.files import load
from taglio.data.spec import InputSpec
from taglio.errors import BadData

PICTURE = InputSpec("x", (1, 3, 4, 6), "float32")
OPEN = InputSpec("x", ("n", "m"), "float32")


def picture() -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (6, 4), (1, 2, 3)).save(stream, "PNG")
    return stream.getvalue()


def array() -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.arange(12, dtype=np.float32).reshape(3, 4))
    return stream.getvalue()


def headed(text: str) -> bytes:
    line = text.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(line).to_bytes(2, "little") + line + bytes(400)


def shaped(shape: str) -> str:
    return f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}"


@pytest.mark.parametrize("kind", ["npy", "npz"])
@pytest.mark.parametrize(
    "header",
    [shaped("(3, -3)"), shaped("(1" + "0" * 30 + ", 3)"), "(" * 5000, "{'descr': '<f4"],
    ids=["negative", "huge", "nested", "cut"],
)
def test_a_damaged_header_is_named(header: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"data.{kind}"
    if kind == "npy":
        path.write_bytes(headed(header))
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x.npy", headed(header))
    with pytest.raises(BadData, match=r"cannot be read .*header"):
        load(path, [OPEN])


def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    """A megabyte that claims terabytes: what does not fit in the memory is not read."""
    path = tmp_path / "data.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", headed(shaped("(3, 1000000000000)")) + bytes(2**20))
    with pytest.raises(BadData, match=r"4,000,000,000,000 bytes are needed at once, and [0-9,]+ are free"):
        load(path, [OPEN])


def test_names_of_members_are_no_paths(tmp_path: Path) -> None:
    path = tmp_path / "in" / "data.npz"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("x.npy", "/etc/other.npy", "../../up.npy"):
            archive.writestr(name, array())
    data = load(path, [OPEN])
    left_out = f"{path}: left out '/etc/other', '../../up', not among the model's required inputs"
    assert [str(note) for note in data.notes] == [left_out]
    assert sorted(entry.name for entry in tmp_path.rglob("*")) == ["data.npz", "in"]


def tiff_tag(number: int, kind: int, value: bytes) -> bytes:
    return struct.pack(">HHI", number, kind, 1) + value.ljust(4, b"\0")


def test_metadata_of_odd_types_does_not_matter(tmp_path: Path) -> None:
    """The orientation counts; what else EXIF holds, and whether it could be written again, does not."""
    tags = [
        tiff_tag(0x0100, 7, b"a"),
        tiff_tag(0x0112, 3, b"\0\3"),
        tiff_tag(0x8769, 2, b"b"),
        tiff_tag(0x011A, 2, b"c"),
    ]
    exif = b"Exif\0\0MM\0*\0\0\0\x08" + struct.pack(">H", len(tags)) + b"".join(tags) + bytes(4)
    image = Image.new("RGB", (6, 4))
    image.putpixel((0, 0), (255, 0, 0))
    image.save(tmp_path / "a.png", exif=exif)
    image.save(tmp_path / "b.png", exif=exif[:40])
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        turned, as_it_is = (sample["x"][0, 0] for sample in load(tmp_path, [PICTURE]).samples)
    assert not said
    assert turned[3, 5] == 1.0
    assert as_it_is.sum() == 1.0


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def with_chunk(kind: bytes, data: bytes) -> bytes:
    """A picture with one more chunk, after its header of 33 bytes."""
    whole = picture()
    return whole[:33] + chunk(kind, data) + whole[33:]


@pytest.mark.parametrize(
    "content",
    [
        lambda: with_chunk(b"iCCP", b"icc\0\0" + zlib.compress(bytes(2**26), 1)),
        lambda: with_chunk(b"zTXt", b"text\0\0" + zlib.compress(bytes(2**26), 1)),
        lambda: b"II*\0\x08\0\0\0" + struct.pack("<H", 65535) + bytes(12 * 200),
        lambda: b"\xd7\xcd\xc6\x9a" + bytes(200),
        lambda: b"%PDF-1.4\n" + bytes(100),
    ],
    ids=["profile bomb", "text bomb", "TIFF", "WMF", "PDF"],
)
def test_pictures_that_are_something_else_or_a_bomb(content: Callable[[], bytes], tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(content())
    with pytest.raises(BadData, match=r"a\.png is not a readable JPEG"):
        load(tmp_path, [PICTURE])


@pytest.mark.parametrize("name", ["data.npy", "data.npz", "data.txt", "data.csv"])
def test_a_device_is_no_data(name: str, tmp_path: Path) -> None:
    (tmp_path / name).symlink_to("/dev/zero")
    with pytest.raises(BadData, match="taglio cannot read this kind of data"):
        load(tmp_path / name, [OPEN])
