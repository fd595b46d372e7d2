"""Which places a machine has, and each that it lacks is refused with a reason."""

import sys
from collections.abc import Iterator

import pytest

from taglio.errors import BadOption
from taglio.runtimes import openvino
from taglio.runtimes.openvino import NAME
from taglio.runtimes.places import bfloat16_refusal, here, refusal, require_here
from tests.processor import needs_openvino


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    for tried in (refusal, bfloat16_refusal):
        tried.cache_clear()
    yield
    for tried in (refusal, bfloat16_refusal):
        tried.cache_clear()


def test_without_openvino_there_is_onnx_runtime_and_a_line_that_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)  # as Python says it of what is not there
    assert here() == ("onnxruntime",)
    assert "pip install 'taglio[openvino]'" in refusal(NAME)
    with pytest.raises(BadOption, match=r"model\.onnx runs in openvino: .*pip install 'taglio\[openvino\]'"):
        require_here(NAME, "model.onnx")


@needs_openvino
def test_openvino_is_found_where_it_is_installed() -> None:
    assert here()[:2] == ("onnxruntime", NAME)
    # What the processor has decides, not the version.
    assert (not bfloat16_refusal()) == ("BF16" in openvino.capabilities())
    assert not bfloat16_refusal() or "has no bfloat16 on this processor" in bfloat16_refusal()
