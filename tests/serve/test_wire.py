"""Tensors into and out of messages."""

from typing import Any

import pytest

from taglio.serve.grpc import message
from taglio.serve.wire import with_tensors, without_tensors

TENSORS = [b"", b"a" * 127, b"b" * 128, b"c" * 300_000]


def request() -> Any:
    asked: Any = message("ModelInferRequest")(model_name="m", id="più", raw_input_contents=TENSORS)
    asked.parameters["timeout"].int64_param = 2**40
    asked.parameters["share"].double_param = 0.5
    asked.inputs.add(name="x", datatype="FP32", shape=[1, 2**33])
    return asked


def test_tensors_and_the_rest_are_those_of_protobuf() -> None:
    asked = request()
    rest, tensors = without_tensors(asked.SerializeToString())
    assert list(map(bytes, tensors)) == TENSORS
    del asked.raw_input_contents[:]
    assert message("ModelInferRequest").FromString(rest) == asked


def test_an_answer_with_tensors_is_that_of_protobuf() -> None:
    answer: Any = message("ModelInferResponse")(model_name="m", raw_output_contents=TENSORS)
    without = message("ModelInferResponse")(model_name="m").SerializeToString()
    assert with_tensors(without, TENSORS) == answer.SerializeToString()


def test_fields_that_the_protocol_lacks_stay() -> None:
    unknown = b"\xa0\x06\x05" + b"\xa9\x06" + bytes(8) + b"\xb5\x06" + bytes(4)  # a number, 8 and 4 bytes
    rest, tensors = without_tensors(unknown + b"\x3a\x01x")
    assert (rest, [bytes(each) for each in tensors]) == (unknown, [b"x"])


@pytest.mark.parametrize("raw", [b"\xff", b"\x3a\x05abc", b"\x3a", b"\x0b", b"\x09abc", b"\xff" * 30])
def test_what_is_no_message_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match="cut off"):
        without_tensors(raw)
