"""Tensors into and out of serialised messages, with fewer copies than by protobuf. Knows no other field of them.

The format is that of protobuf: a key (field number and wire type), then a value, for each field of a message.
"""

from collections.abc import Sequence

# The keys of raw_input_contents and raw_output_contents: fields 7 and 6, of wire type 2 (a length and so many bytes).
_GIVEN, _ANSWERED = 7 << 3 | 2, 6 << 3 | 2
_FIXED_BYTES = {1: 8, 5: 4}


def with_tensors(message: bytes, tensors: Sequence[bytes | memoryview]) -> bytes:
    """A serialised ModelInferResponse without tensors, and these, in one copy."""
    parts: list[bytes | memoryview] = [message]
    for tensor in tensors:
        parts += bytes((_ANSWERED, *_encoded(len(tensor)))), tensor
    return b"".join(parts)


def without_tensors(message: bytes) -> tuple[bytes, list[memoryview]]:
    """A serialised ModelInferRequest without its tensors, and these in order, not copied. Raises ValueError for what is
    no message."""
    view = memoryview(message)
    rest: list[memoryview] = []
    tensors: list[memoryview] = []
    at = 0
    try:
        while at < len(message):
            key, start = _varint(message, at)
            kind = key & 7
            if kind == 2:
                length, start = _varint(message, start)
                end = start + length
            else:
                end = _varint(message, start)[1] if kind == 0 else start + _FIXED_BYTES[kind]
            if key == _GIVEN:
                tensors.append(view[start:end])
            else:
                rest.append(view[at:end])
            at = end
    except (IndexError, KeyError):
        at = -1
    if at != len(message):
        raise ValueError("is cut off, or holds an unknown kind of field")
    return b"".join(rest), tensors


def _encoded(number: int) -> list[int]:
    """The bytes of a number: seven bits in each, lowest first, all but the last marked."""
    return [number] if number < 128 else [number & 127 | 128, *_encoded(number >> 7)]


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """The number at `at`, seven bits per byte, lowest first, and where it ends. Raises IndexError if it does not."""
    value = shift = 0
    while message[at] > 127:
        value |= (message[at] & 127) << shift
        at, shift = at + 1, shift + 7
    return value | message[at] << shift, at + 1
