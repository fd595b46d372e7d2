"""`portable` plans answer alike on processors whose sums saturate and on those whose sums do not."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import taglio
from taglio.deploy.processor_needs import unsafe_processors
from taglio.error.loss import RELATIVE
from taglio.errors import BadOption
from taglio.flow.opening import Model
from taglio.flow.result import Result
from taglio.model.exact import saturating_products
from taglio.profile.measure import pure_assignments
from taglio.quantize.precision import precisions
from taglio.quantize.scheme import parse_scheme
from taglio.runtimes.onnxruntime import SessionOptions, open_session
from taglio.runtimes.places import bfloat16_refusal
from taglio.search.screen import screen
from tests.models import Sketch
from tests.processor import SATURATES
from tests.saturation import answers

LIMIT = 0.05
INT8: dict[str, Any] = {"runtime": "onnxruntime", "force_int8": ["*"], "effort": 0.01, "threads": 1}
AVX2, VNNI = ("avx2",), ("avx2", "avx512f", "avx512_vnni", "avx512_bf16")


def products() -> onnx.ModelProto:
    """Two products of positive values with weights of one sign by column: their sums are the largest that can be."""
    g = Sketch(6)
    signs = np.where(np.arange(64) % 2, 1.0, -1.0)
    first = g.constant((signs * np.abs(g.rng.normal(1.0, 0.1, (64, 64)))).astype(np.float32))
    hidden = g.op("Relu", g.op("MatMul", g.input("x", 1, 64), first))
    second = g.constant(np.abs(g.rng.normal(1.0, 0.1, (64, 64))).astype(np.float32))
    return g.model(g.rename(g.op("MatMul", hidden, second), "y"))


def samples(count: int = 24) -> np.ndarray:
    return np.random.default_rng(0).uniform(0.5, 1.0, (count, 1, 64)).astype(np.float32)


def optimized(monkeypatch: pytest.MonkeyPatch, have: tuple[str, ...], **how: Any) -> Result:
    """All blocks in int8, on a processor with the instruction sets `have` as far as the choice of forms knows."""
    monkeypatch.setattr("taglio.search.screen.instructions", lambda: have)
    return taglio.optimize(products(), {"x": samples()}, max_error=LIMIT, **INT8, **how)


def difference(proto: onnx.ModelProto) -> float:
    """The relative L2 distance between the answers with sums that saturate and with exact ones."""
    pairs = [
        (answers(proto, {"x": x}, saturates=True)[0], answers(proto, {"x": x}, saturates=False)[0]) for x in samples(4)
    ]
    distance = np.sqrt(sum(np.sum((saturated - exact) ** 2) for saturated, exact in pairs))
    return float(distance / np.sqrt(sum(np.sum(exact**2) for _, exact in pairs)))


@pytest.mark.parametrize("have", [AVX2, VNNI])
def test_a_portable_plan_answers_alike_where_sums_saturate(
    have: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = optimized(monkeypatch, have, portable=True)
    assert len(result.plan.assignment()) > 0
    assert unsafe_processors(result.plan.assignment().values(), have) == ()
    assert saturating_products(result.model) == ""
    assert difference(result.model) <= LIMIT / 10
    assert result.table is not None and not any("--portable" in note.text for note in result.table.notes)
    assert result.setup.portable


@pytest.fixture(scope="module")
def wide() -> onnx.ModelProto:
    """All blocks in int8 with weights of 8 bits."""
    work = Model(products(), {"x": samples()}, threads=1)
    scheme = parse_scheme("u8s8-asym-pc")
    return work.builder(scheme).build(pure_assignments(work.graph, precisions(scheme))["int8"])


def test_the_emulation_shows_what_portable_prevents(wide: onnx.ModelProto) -> None:
    assert difference(wide) > LIMIT


@pytest.mark.skipif(not SATURATES, reason="only a processor without VNNI saturates")
def test_the_emulation_is_what_onnx_runtime_computes_here(wide: onnx.ModelProto) -> None:
    feed = {"x": samples(1)[0]}
    (computed,) = open_session(wide, SessionOptions(1)).run(["y"], feed)
    (emulated,) = answers(wide, feed, saturates=True)
    assert np.linalg.norm(computed - emulated) <= 0.02 * np.linalg.norm(emulated)


def test_a_plan_that_is_not_portable_says_where_it_is_not_safe(tmp_path: Path) -> None:
    result = taglio.optimize(products(), {"x": samples()}, max_error=0.5, scheme="qdq-u8s8-asym-pc", **INT8)
    assert result.table is not None
    (note,) = unsafe_processors(result.plan.assignment().values(), result.profile.conditions.machine.instructions)
    assert [other for other in result.table.notes if "VNNI" in other.text] == [note]
    result.save(tmp_path / "out")
    assert f"**{note.text[0].upper()}{note.text[1:]}.**" in (tmp_path / "out" / "deploy" / "README.md").read_text()


def test_a_scheme_that_is_not_portable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadOption, match=r"excludes `scheme` qdq-u8s8-asym-pc, .* use qdq-u8s8-asym-pc-rr"):
        optimized(monkeypatch, VNNI, portable=True, scheme="qdq-u8s8-asym-pc")
    with pytest.raises(
        BadOption, match=r"`portable` excludes bfloat16, which `scheme` qdq-u8s8-asym-pc-rr\+bfloat16 names"
    ):
        optimized(monkeypatch, VNNI, portable=True, scheme="qdq-u8s8-asym-pc-rr+bfloat16")


def test_no_block_of_a_portable_plan_computes_in_bfloat16() -> None:
    screened = {}
    for portable in (False, True):
        work = Model(products(), {"x": samples()}, threads=1, portable=portable).at(0.01)
        screened[portable] = {row.form for row in screen(work, None, LIMIT, RELATIVE).forms}
    assert ("bfloat16" in screened[False]) == (not bfloat16_refusal())
    assert "bfloat16" not in screened[True]


def test_sums_of_the_source_are_made_exact(wide: onnx.ModelProto) -> None:
    work = Model(wide, {"x": samples()}, threads=1, portable=True, runtime="onnxruntime").at(0.01)
    screened = screen(work, None, 1.0, RELATIVE)
    assert str(screened.note).startswith("the source's own u8×s8 products (2 MatMul) saturate on some processors")
    assert saturating_products(screened.work.model.proto) == ""
