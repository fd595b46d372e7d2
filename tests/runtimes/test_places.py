"""Which places a machine has is found by trying, and each that it lacks is refused with a reason."""

import importlib.util
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from taglio.errors import BadOption
from taglio.runtimes import openvino
from taglio.runtimes.openvino import NAME
from taglio.runtimes.places import bfloat16_refusal, here, refusal, require_here

needs_openvino = pytest.mark.skipif(
    importlib.util.find_spec("openvino") is None, reason="needs openvino: pip install 'taglio[openvino]'"
)


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
def test_openvino_is_found_by_trying() -> None:
    assert here()[:2] == ("onnxruntime", NAME)
    # What the processor has decides, not the version.
    assert (not bfloat16_refusal()) == ("BF16" in openvino.capabilities())
    assert not bfloat16_refusal() or "has no bfloat16 on this processor" in bfloat16_refusal()


@needs_openvino
def test_a_processor_that_only_claims_bfloat16_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openvino, "capabilities", lambda: ["FP32", "BF16"])
    monkeypatch.setattr(openvino.OpenVinoSession, "precision", property(lambda _: "f32"))
    assert "computes in f32 here although bf16 was requested" in bfloat16_refusal()
    bfloat16_refusal.cache_clear()
    monkeypatch.setattr(openvino.OpenVinoSession, "precision", property(lambda _: "bf16"))
    assert bfloat16_refusal() == ""


@needs_openvino
def test_a_place_that_computes_wrongly_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = openvino.OpenVinoSession.run

    def wrong(*arguments: Any) -> list[np.ndarray]:
        return [1.1 * output for output in honest(*arguments)]

    monkeypatch.setattr(openvino.OpenVinoSession, "run", wrong)
    assert refusal(NAME) == "openvino computes wrongly here: a small network is 10.0% off"
    assert NAME not in here()


@needs_openvino
def test_another_version_whose_calls_fail_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AttributeError("no attribute\ncompile_model")

    monkeypatch.setattr(openvino.OpenVinoSession, "run", fail)
    assert refusal(NAME).endswith("failed on a small network: no attribute compile_model")
