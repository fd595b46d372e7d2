"""Float16: the model is converted with its interface, and what float16 cannot hold is refused."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from taglio.compare.float16 import float16
from taglio.errors import CannotQuantize
from tests.answers import answers, distance
from tests.models import TINY, feeds, loaded, parsed


@pytest.mark.parametrize("name", TINY)
def test_float16_is_close_and_keeps_the_interface(name: str, tmp_path: Path) -> None:
    model = loaded(TINY[name](), tmp_path)
    before, feed = model.proto.SerializeToString(deterministic=True), feeds(model, 1).samples[0]
    converted = float16(model, {})
    assert 0.0 < distance(answers(model.proto, feed), answers(converted, feed)) < 5e-3
    for value in (*converted.graph.input, *converted.graph.output):
        assert value.type.tensor_type.elem_type == TensorProto.FLOAT
    assert [value.name for value in converted.graph.output] == list(model.outputs)
    assert any(tensor.data_type == TensorProto.FLOAT16 for tensor in converted.graph.initializer)
    assert model.proto.SerializeToString(deterministic=True) == before
    onnx.checker.check_model(converted)


def test_an_activation_beyond_float16_is_refused_by_name(tmp_path: Path) -> None:
    text = "(float[1, 4] x) => (float[1, 4] y) { large = Mul (x, up) y = Mul (large, down) }"
    model = loaded(parsed(text, {"up": np.float32(6e4), "down": np.float32(1 / 6e4)}), tmp_path)
    with pytest.raises(CannotQuantize, match=r"cannot be float16: large reaches 1\.2e\+05, beyond 65504"):
        float16(model, {"x": (-2.0, 1.0), "large": (-1.2e5, 6e4)})
