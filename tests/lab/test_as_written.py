"""Whose answers errors are relative to: those of the source's graph, not of ONNX Runtime's rewrites or kernels."""

from dataclasses import replace

import numpy as np
import onnx
import pytest

import taglio
from taglio.embedded import digits_data, digits_model
from taglio.errors import Infeasible
from taglio.flow.quantize import quantize
from taglio.lab.as_written import bounded_outputs
from taglio.lab.work import Work
from taglio.notes import Kind
from taglio.runtimes.onnxruntime import NAME
from tests.lab.own_products import by_hand, own_products
from tests.models import parsed
from tests.processor import SATURATES

KINDS = ("QDQ", "MatMulInteger")
saturating = pytest.mark.skipif(not SATURATES, reason="this processor sums u8×s8 products in 32 bits")


def opened(proto: onnx.ModelProto, data: dict[str, np.ndarray], **settings: object) -> Work:
    return taglio.Model(proto, data, threads=1, runtime=NAME, **settings)  # type: ignore[arg-type]


def distance(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


@pytest.mark.parametrize("kind", KINDS)
def test_the_reference_is_what_the_graph_says(kind: str) -> None:
    work = opened(*own_products(kind))
    for sample, answers in zip(work.data.held_out.samples, work.float_answers(), strict=True):
        assert distance(answers[0], by_hand(kind, sample["x"])) < 1e-4


@saturating
@pytest.mark.parametrize("kind", KINDS)
def test_the_models_own_products_are_named_where_they_saturate(kind: str) -> None:
    agreement = opened(*own_products(kind)).agreement
    assert agreement.saturates
    assert 0.02 < agreement.distance < 1.0
    assert f"u8×s8 products (1 {kind.replace('QDQ', 'MatMul')}) saturate on this processor" in agreement.remark
    assert f"{agreement.distance:.2%} on 8 inputs" in agreement.remark


def test_a_float_model_agrees_within_rounding() -> None:
    work = taglio.Model(digits_model(), digits_data(), threads=1)
    assert work.agreement.agrees
    assert work.agreement.remark == ""


def test_scores_near_zero_are_as_exact_as_one_is() -> None:
    """A detector's scores where it finds nothing: kernels of Sigmoid differ by some 1e-8, which is 2 % of 1e-6."""
    constants = {"w": np.random.default_rng(0).standard_normal((8, 8, 3, 3)), "b": np.full(8, -14.0)}
    sigmoid, relu = (
        parsed(
            f"""(float[1, 8, 16, 16] x) => (float[1, 14, 14, 8] y) {{
                logits = Conv (x, w, b)
                scores = {kind} (logits)
                y = Transpose <perm = [0, 2, 3, 1]> (scores)
            }}""",
            constants,
        )
        for kind in ("Sigmoid", "Relu")
    )
    assert bounded_outputs(sigmoid) == {"y"} and bounded_outputs(relu) == frozenset()
    inputs = 0.05 * np.random.default_rng(1).standard_normal((12, 8, 16, 16)).astype(np.float32)
    assert opened(sigmoid, {"x": inputs}).agreement.agrees


def normalised(*, equal: bool) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """BatchNormalization in training mode: its kernel writes running means into what its constants share if equal."""
    ones = np.ones(4)
    constants = {"s": ones, "b": 0.0 * ones, "m": (0.0 if equal else 0.1) * ones, "v": (1.0 if equal else 1.1) * ones}
    constants["w"] = np.random.default_rng(0).standard_normal((5, 6))
    text = """(float[2, 4, 5] x) => (float[2, 4, 6] y) {
        n, mean, var = BatchNormalization <training_mode = 1> (x, s, b, m, v)
        y = MatMul (n, w)
    }"""
    inputs = np.random.default_rng(1).random((40, 4, 5)).astype(np.float32) * np.arange(1, 41)[:, None, None]
    return parsed(text, constants), {"x": inputs.astype(np.float32)}


def test_answers_that_optimisations_change_are_found() -> None:
    agreement = opened(*normalised(equal=True)).agreement
    assert agreement.distance > 0.1 and not agreement.saturates
    assert opened(*normalised(equal=False)).agreement.agrees


def test_a_source_that_its_runtime_computes_wrongly_is_refused_with_the_size() -> None:
    with pytest.raises(Infeasible, match=r"tiny itself has error \d+\.\d+% as ONNX Runtime computes it") as refused:
        taglio.optimize(opened(*normalised(equal=True)), max_error=0.01, effort=0.01)
    assert refused.value.exit_code == 3


@saturating
@pytest.mark.parametrize("kind", KINDS)
def test_exact_sums_are_planned_instead_and_the_base_stays_the_source(kind: str) -> None:
    proto, data = own_products(kind)
    work = opened(proto, data)
    result = taglio.optimize(work, max_error=0.01, effort=0.01)
    assert result.table is not None
    assert result.table.float32.error > 0.02
    assert result.table.plan.error < 0.01
    assert result.setup.instead == "exact-sums"
    assert any(note.kind is Kind.PLANNED_INSTEAD for note in result.table.notes)
    session = result.session(1)
    found = [session.run({"x": x[None]})["y"] for x in data["x"][:8]]
    assert distance(np.concatenate(found), by_hand(kind, data["x"][:8])) < 0.01
    again = taglio.Model(proto, data, threads=1, runtime=NAME)
    assert again.model.sha256 != result.table.model_sha256  # another model is planned
    assert work.agreement.distance > 0.02


@saturating
def test_float_is_planned_where_exact_sums_do_not_do() -> None:
    proto, data = own_products("QDQ")
    work = opened(proto, data)
    work.kept.put(("agreement",), replace(work.agreement, saturates=False))
    result = taglio.optimize(work, max_error=0.05, effort=0.01)
    assert result.table is not None
    assert result.setup.instead == "requantized"
    assert result.table.plan.error <= 0.05


@saturating
def test_a_limit_that_the_source_keeps_leaves_it_as_it_is() -> None:
    work = opened(*own_products("QDQ"))
    limit = 0.5 * (1.0 + work.agreement.distance)
    result = taglio.optimize(work, max_error=limit, effort=0.01)
    assert result.table is not None
    assert result.setup.instead == ""
    assert 0.02 < result.table.float32.error < limit


@saturating
def test_quantize_is_judged_by_the_graphs_answers() -> None:
    _, report = quantize(opened(*own_products("QDQ")), "static", blocks="tail")
    assert report.error > 0.02
    assert any("saturate on this processor" in note for note in report.notes)
