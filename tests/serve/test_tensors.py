"""Tensors to and from the protocol's forms."""

import numpy as np
import pytest

from taglio.serve.refusals import BadRequest
from taglio.serve.request import InputTensor, check_shape
from taglio.serve.tensors import NUMPY, TensorSpec, from_bytes, from_json, to_buffer, to_json

FLOATS = TensorSpec("x", "FP32", (-1, 2))
WORDS = TensorSpec("w", "BYTES", (-1,))


@pytest.mark.parametrize("datatype", [name for name in NUMPY if name != "BYTES"])
def test_every_number_comes_back_from_bytes_and_from_json(datatype: str) -> None:
    array = np.array([[0, 1], [1, 0]]).astype(NUMPY[datatype])
    spec = TensorSpec("x", datatype, (2, 2))
    for found in (from_bytes(spec, (2, 2), to_buffer(array)), from_json(spec, (2, 2), to_json("x", array))):
        assert found.dtype == array.dtype and (found == array).all()


def test_strings_come_back_from_bytes_and_from_json() -> None:
    array = np.array(["", "più", "a" * 300], object)
    assert from_bytes(WORDS, (3,), to_buffer(array)).tolist() == array.tolist()
    assert from_json(WORDS, (3,), to_json("w", array)).tolist() == array.tolist()


def test_nested_and_flat_lists_are_the_same_tensor() -> None:
    nested = from_json(FLOATS, (3, 2), [[1, 2], [3.5, 4], [5, 6]])
    assert (nested == from_json(FLOATS, (3, 2), [1, 2, 3.5, 4, 5, 6])).all()
    assert from_json(FLOATS, (0, 2), []).shape == (0, 2)


@pytest.mark.parametrize(
    ("datatype", "shape", "wrong"),
    [
        ("FP64", [1, 2], "datatype FP64"),
        ("FP32", [1, 3], r"shape \[1, 3\]"),
        ("FP32", [2], r"shape \[2\]"),
        ("FP32", [-1, 2], r"shape \[-1, 2\]"),
        ("FP32", [2**61, 2], "bytes"),
    ],
)
def test_a_shape_is_refused_before_anything_is_allocated(datatype: str, shape: list[int], wrong: str) -> None:
    with pytest.raises(BadRequest, match=wrong):
        check_shape(FLOATS, InputTensor("x", datatype, shape), 10**6)


@pytest.mark.parametrize(
    ("datatype", "data"),
    [
        ("FP32", [1.0, "2"]),
        ("FP32", [1.0, None]),
        ("FP32", [1.0]),
        ("FP32", None),
        ("INT8", [1, 300]),
        ("INT8", [1, 1.5]),
        ("BOOL", [True, 1]),
        ("INT64", [1, 2**70]),
        ("BYTES", [1, 2]),
    ],
)
def test_values_that_the_datatype_cannot_hold_are_refused(datatype: str, data: list[object] | None) -> None:
    with pytest.raises(BadRequest, match="input x"):
        from_json(TensorSpec("x", datatype, (2,)), (2,), data)


@pytest.mark.parametrize("datatype", [each for each in NUMPY if each != "BYTES"])
def test_another_number_of_bytes_is_refused(datatype: str) -> None:
    size = NUMPY[datatype].itemsize
    with pytest.raises(BadRequest, match=f"has {3 * size} bytes"):
        from_bytes(TensorSpec("x", datatype, (2,)), (2,), bytes(3 * size))


@pytest.mark.parametrize("raw", [b"\x05\0\0\0ab", b"\x01\0", b"\x01\0\0\0a" * 3, b"\x01\0\0\0a", b"\x01\0\0\0\xff" * 2])
def test_strings_that_do_not_fill_their_bytes_are_refused(raw: bytes) -> None:
    with pytest.raises(BadRequest, match="input w"):
        from_bytes(WORDS, (2,), raw)
