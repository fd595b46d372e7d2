"""Which blocks compute in bfloat16: the fastest choice of groups that keeps the limit."""

from itertools import product
from math import inf
from pathlib import Path

import numpy as np
import pytest

import taglio
from taglio.cli import main
from taglio.components.build import read, write
from taglio.components.cut import cut
from taglio.embedded import digits_data
from taglio.error.loss import RELATIVE
from taglio.flow import choose_bfloat16, screen
from taglio.flow.choose_bfloat16 import (
    _BYTE_S,
    _ONE,
    Choice,
    _alone,
    corrected,
    fastest,
    following,
    searched,
    with_int8,
)
from taglio.flow.ledger import NOT_RACED, Measurement, Variant
from taglio.flow.opening import Model
from taglio.flow.places import Places
from taglio.profile import sessions
from taglio.quantize.qdq import in_bfloat16
from taglio.runtimes.openvino import BF16, MIXED, NAME
from tests.end_to_end.command import Case
from tests.models import digits_model
from tests.processor import needs_bfloat16


@pytest.fixture(scope="module")
def few() -> Model:
    with np.load(digits_data()) as arrays:
        return Model(digits_model(), {"image": arrays["image"][:8]}, runtime="onnxruntime")


def test_the_fastest_choice_is_that_of_trying_all(few: Model) -> None:
    graph, rng = few.graph, np.random.default_rng(0)
    count = len(graph.blocks)
    free = rng.choice(count, 8, replace=False)
    seconds = np.ones((2, count))
    seconds[:, free] = rng.uniform(1e-3, 3e-3, 8), rng.uniform(5e-4, 2.5e-3, 8)
    squares = np.full(count, inf)  # the others may not be chosen
    squares[free] = rng.uniform(0.1, 1.0, 8)
    index = {block.name: number for number, block in enumerate(graph.blocks)}

    def taken(chosen: np.ndarray) -> float:
        crossing = 0.0
        for tensor in graph.tensors:
            low = tensor.producer is not None and bool(chosen[index[tensor.producer]])
            read = {bool(chosen[index[name]]) for name in tensor.consumers}
            read |= {False} if tensor.name in graph.outputs else set()
            crossing += (tensor.float_bytes + _ONE) * bool(read - {low}) * (tensor.dtype == "float32")
        return float(np.where(chosen, seconds[1], seconds[0]).sum()) + _BYTE_S * crossing

    wanted = inf
    for each in product((False, True), repeat=8):
        chosen = np.zeros(count, bool)
        chosen[free] = each
        if squares[chosen].sum() <= 2.0:
            wanted = min(wanted, taken(chosen))
    chosen, found = fastest(graph, seconds, squares, 2.0)
    assert squares[chosen].sum() <= 2.0
    assert found == pytest.approx(taken(chosen))
    assert found <= wanted * 1.01


def test_error_alone_is_that_of_rounded_operands_and_results(few: Model) -> None:
    reference = few.reference(2)
    alone = _alone(few, np.ones(len(few.graph.blocks)), reference, RELATIVE, 60.0)
    assert set(alone) == {block.name for block in few.graph.blocks if not block.movement}
    assert all(1e-5 < each < 0.02 for each in alone.values())
    together = _alone(few, np.zeros(len(few.graph.blocks)), reference, RELATIVE, 60.0)
    assert len(set(together.values())) == 1  # blocks that take no time share a measurement
    low = in_bfloat16(np.array([1.0, 1.0 + 2**-8, 1.0 + 3 * 2**-8, -3.1415927], np.float32))
    assert low.tolist() == [1.0, 1.0, 1.015625, -3.140625]


def test_movement_that_reads_float32_stays_float32(few: Model) -> None:
    """It would round what it reads; what is rounded already it hands on as it is."""
    graph = few.graph
    moved = [number for number, block in enumerate(graph.blocks) if block.movement]
    read = {
        name: {each.producer for each in graph.tensors if name in each.consumers}
        for name in (block.name for block in graph.blocks)
    }
    everything = np.ones(len(graph.blocks), bool)
    assert moved and following(graph, everything).all()
    for number in moved:
        producers = read[graph.blocks[number].name]
        chosen = np.array([block.name not in producers for block in graph.blocks])
        expected = chosen.copy()
        expected[moved] = [not read[graph.blocks[each].name] & producers for each in moved]
        np.testing.assert_array_equal(following(graph, chosen), expected)


@pytest.mark.parametrize("seed", range(3))
def test_the_search_finds_the_few_blocks_to_blame(few: Model, seed: int) -> None:
    """They looked as good as the others, and early choices without them keep the limit, far from the fastest."""
    graph, rng = few.graph, np.random.default_rng(seed)
    count = len(graph.blocks)
    able = np.array([not block.movement for block in graph.blocks])
    true = np.where(able, 1e-3, 0.0)
    true[rng.choice(np.flatnonzero(able), 2, replace=False)] = 1.0
    seconds = np.stack([rng.uniform(1e-3, 3e-3, count), rng.uniform(5e-4, 1e-3, count)])
    guess = np.where(able, rng.uniform(0.01, 0.1, count), 0.0)

    def error(chosen: np.ndarray) -> float:
        return float(np.sqrt(true[chosen].sum()))

    found = searched(graph, seconds, guess, 0.5, error, range(16))
    assert found is not None
    chosen, expected_s, measured = found
    assert measured == error(chosen) <= 0.5
    assert expected_s <= 1.25 * fastest(graph, seconds, true, 0.25)[1]


def test_the_search_goes_on_where_a_choice_loses_an_output(few: Model) -> None:
    """Its error is infinite."""
    graph = few.graph
    count = len(graph.blocks)
    squares = np.where([block.movement for block in graph.blocks], 0.0, 0.01)
    seconds = np.stack([np.full(count, 2e-3), np.full(count, 1e-3)])
    found = searched(graph, seconds, squares, 0.5, lambda chosen: inf if chosen[: count // 2].any() else 0.1, range(16))
    assert found is not None
    assert found[0].any()


def test_squares_are_corrected_by_all_that_was_measured() -> None:
    choices = np.array([[1, 1, 1, 1, 0], [1, 1, 0, 0, 0], [0, 1, 1, 0, 0]], bool)
    found = choices @ np.array([1.0, 2.0, 9.0, 1.0, 5.0])
    squares = corrected(np.ones(5), [*zip(choices, found, strict=True)])
    np.testing.assert_allclose(choices @ squares, found, rtol=0.01)
    assert squares[4] == 1.0  # of which nothing is known
    assert squares.argmax() == 2


def test_int8_is_expected_to_save_by_what_is_left_to_it() -> None:
    assert with_int8(1.0, 0.01, 0.01) == 1.0
    assert with_int8(1.0, 0.006, 0.01) == pytest.approx(1.0 - 0.8 * (1.0 - with_int8(1.0, 0.0, 0.01)))


@needs_bfloat16
def test_a_mixed_model_is_deployed_as_it_was_chosen(few: Model, tmp_path: Path) -> None:
    tensors = few.graph.blocks[3].outputs
    devices = {block.name: "local" for block in few.graph.blocks}
    parts = cut(few.model, few.graph, few.model.proto, devices)
    write(tmp_path, "0" * 64, ["image"], few.outputs, parts, runtimes={"local": MIXED}, bfloat16=tensors)
    (piece,) = read(tmp_path).pieces
    assert piece.bfloat16 == tensors
    assert piece.properties["INFERENCE_PRECISION_HINT"] == "bf16"


@needs_bfloat16
@pytest.mark.whole  # compiles a real network many times
def test_the_choice_keeps_its_share_and_int8_leaves_it_more(few: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    faster = {MIXED: 0.002, BF16: 0.001}
    monkeypatch.setattr(choose_bfloat16, "_seconds", lambda work, place: [faster[place]] * len(work.graph.blocks))
    monkeypatch.setattr(choose_bfloat16, "_relative", lambda _, tensors: 1.0 - 0.002 * len(tensors))
    reference = few.reference(len(few.data.held_out.samples))
    whole = choose_bfloat16.choose_bfloat16(few, reference, 1.0, RELATIVE, 0.05)
    assert isinstance(whole, Choice)
    limit = whole.error
    choice = choose_bfloat16.choose_bfloat16(few, reference, limit, RELATIVE, 0.05)
    assert isinstance(choice, Choice)
    assert choice.error <= 0.8 * limit
    assert 0 < len(choice.bfloat16) < len(whole.bfloat16)
    assert choice.seconds == pytest.approx(0.05 * (1.0 - 0.002 * len(choice.bfloat16)))
    # What is no faster is not worth it.
    monkeypatch.setattr(choose_bfloat16, "_relative", lambda *_: 0.99)
    assert choose_bfloat16.choose_bfloat16(few, reference, limit, RELATIVE, 0.05) == (
        "the best choice of blocks takes 99% of the time in openvino: no clear gain"
    )


@needs_bfloat16
@pytest.mark.whole
def test_a_workspace_of_a_mixed_model_is_opened_again(
    tiny: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Model(tiny.model, tiny.data, threads=1)
    tensors = work.graph.blocks[3].outputs
    only = Measurement(Variant(MIXED, "float32"), 0.001, 0.001, 0.0, 0.001)
    monkeypatch.setattr(screen, "float_everywhere", lambda *_: Places((only,), NOT_RACED, tensors))
    result = taglio.optimize(work, max_error=0.05, effort=0.01, scheme="qdq-u8s8-asym-pc")
    assert result.setup.runtime == MIXED
    assert result.built.bfloat16 == tensors
    result.save(tmp_path / "out")
    again = taglio.load(tmp_path / "out")
    assert again.setup.bfloat16 == tensors
    assert main(["run", str(tmp_path / "out"), "--runs", "3"]) == 0


@needs_bfloat16
@pytest.mark.whole
def test_a_profile_by_itself_is_not_of_a_mix(tiny: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Model(tiny.model, tiny.data, threads=1)
    only = Measurement(Variant(MIXED, "float32"), 0.001, 0.001, 0.0, 0.001)
    everywhere = Places((only,), NOT_RACED, work.graph.blocks[3].outputs)
    monkeypatch.setattr(screen, "float_everywhere", lambda *_: everywhere)
    assert taglio.profile_model(work, scheme="qdq-u8s8-asym-pc", effort=0.01).conditions.runtime == NAME


def test_effort_scales_the_time_for_trying(few: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose_bfloat16, "_seconds", lambda *_: pytest.fail("was tried", pytrace=False))
    reference = few.reference(4)
    # Sixteen runs take 24 s: more than three times a fifth of 20 s, the least.
    assert choose_bfloat16.choose_bfloat16(few.at(0.05), reference, 0.01, RELATIVE, 1.5) == (
        "a run takes 1.5 s: its blocks were not chosen; a higher effort chooses them"
    )
    with pytest.raises(pytest.fail.Exception):
        choose_bfloat16.choose_bfloat16(few.at(0.5), reference, 0.01, RELATIVE, 0.5)
    monkeypatch.setattr(sessions, "_OPERATOR_S", 1.0)
    found = choose_bfloat16.choose_bfloat16(few.at(0.5), reference, 0.01, RELATIVE, 0.5)
    assert "operators take long to open: its blocks were not chosen" in str(found)
