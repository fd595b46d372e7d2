"""Which blocks compute in bfloat16: the fastest choice of groups that keeps the limit."""

from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest

import taglio
from taglio.cli import main
from taglio.components.build import read, write
from taglio.components.cut import cut
from taglio.embedded import digits_data
from taglio.error.loss import RELATIVE
from taglio.flow import choose_bfloat16, settle
from taglio.flow.choose_bfloat16 import _left_over, crossing, fastest, grouped, with_int8
from taglio.flow.choose_place import PlaceResult
from taglio.flow.opening import Model
from taglio.runtimes.onnxruntime import SessionOptions, open_session
from taglio.runtimes.openvino import MIXED, NAME
from taglio.runtimes.places import refusal
from tests.end_to_end.command import Case
from tests.models import digits_model

mixes = pytest.mark.skipif(bool(refusal(MIXED)), reason="needs a processor on which OpenVINO computes in bfloat16")


@pytest.fixture(scope="module")
def few() -> Model:
    with np.load(digits_data()) as arrays:
        return Model(digits_model(), {"image": arrays["image"][:8]}, runtime="onnxruntime")


def test_groups_are_consecutive_blocks_of_about_equal_work(few: Model) -> None:
    groups = grouped(few.graph, 6)
    assert [block for group in groups for block in group] == list(few.graph.blocks)
    assert 4 <= len(groups) <= 6
    total = sum(block.flops for block in few.graph.blocks)
    assert max(sum(block.flops for block in group) for group in groups) < 0.6 * total
    assert [len(group) for group in grouped(few.graph, 10_000)] == [1] * len(few.graph.blocks)


def test_what_crosses_is_written_before_and_read_behind(few: Model) -> None:
    groups = grouped(few.graph, 6)
    place = {block.name: index for index, group in enumerate(groups) for block in group}
    wanted = [
        sum(
            tensor.float_bytes
            for tensor in few.graph.tensors
            if tensor.producer is not None
            and place[tensor.producer] <= end
            and any(place[name] > end for name in tensor.consumers)
        )
        for end in range(len(groups) - 1)
    ]
    assert list(crossing(few.graph, groups)) == wanted
    assert all(each > 0 for each in wanted)


@pytest.mark.parametrize("seed", range(5))
def test_the_fastest_choice_is_that_of_trying_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    f32, bf16, squares = rng.uniform(1, 3, 8), rng.uniform(0.5, 2.5, 8), rng.uniform(0.0, 1.0, 8)
    crossing_s, limit = rng.uniform(0.0, 0.5, 7), 2.0

    def taken(choice: tuple[int, ...]) -> float:
        switches = sum(cost for cost, (a, b) in zip(crossing_s, pairwise(choice), strict=True) if a != b)
        return float(np.where(choice, bf16, f32).sum() + switches)

    kept = [each for each in product((0, 1), repeat=8) if squares @ each <= limit]
    best_s = min(map(taken, kept))
    choice = fastest([list(f32), list(bf16)], crossing_s, squares, limit)
    assert squares @ choice <= limit
    assert taken(choice) <= best_s * 1.02
    assert taken(fastest([list(f32), list(bf16)], crossing_s, squares, 1e9)) == pytest.approx(
        min(map(taken, product((0, 1), repeat=8)))
    )


def test_what_costs_much_of_the_limit_and_saves_little_stays_in_float32() -> None:
    seconds, squares, none = [[2.0, 2.0], [1.9, 1.0]], np.array([0.6, 0.1]), np.zeros(1)
    assert fastest(seconds, none, squares, 0.8) == (1, 1)
    assert fastest(seconds, none, squares, 0.8, _left_over) == (0, 1)
    assert with_int8(1.0, 0.01, 0.01) == 1.0  # nothing is left to int8
    assert with_int8(1.0, 0.006, 0.01) == pytest.approx(1.0 - 0.8 * (1.0 - with_int8(1.0, 0.0, 0.01)))


def test_without_room_nothing_is_chosen() -> None:
    assert fastest([[2.0, 2.0], [1.0, 1.0]], np.zeros(1), np.ones(2), 0.0) == (0, 0)
    assert fastest([[2.0, 2.0], [1.0, 1.0]], np.zeros(1), np.array([5.0, 0.5]), 1.0) == (0, 1)


@mixes
def test_a_mixed_model_is_deployed_as_it_was_chosen(few: Model, tmp_path: Path) -> None:
    tensors = few.graph.blocks[3].outputs
    devices = {block.name: "local" for block in few.graph.blocks}
    parts = cut(few.model, few.graph, few.model.proto, devices)
    write(tmp_path, "0" * 64, ["image"], few.outputs, parts, runtimes={"local": MIXED}, bfloat16=tensors)
    (piece,) = read(tmp_path).pieces
    assert piece.bfloat16 == tensors
    assert piece.properties["INFERENCE_PRECISION_HINT"] == "bf16"


@mixes
@pytest.mark.whole  # compiles a real network many times
def test_the_choice_keeps_its_share_of_the_limit(few: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        choose_bfloat16, "_seconds", lambda _, place, groups, *__: [0.002 if place == MIXED else 0.001] * len(groups)
    )
    monkeypatch.setattr(choose_bfloat16, "_relative", lambda _, tensors: 1.0 - 0.002 * len(tensors))
    samples = few.data.held_out.samples
    session = open_session(Path(digits_model()), SessionOptions(1))
    wanted = [session.run(None, dict(sample)) for sample in samples]
    whole = choose_bfloat16.choose_bfloat16(few, samples, wanted, 1.0, RELATIVE, 0.05)
    assert whole is not None
    limit = whole.error
    choice = choose_bfloat16.choose_bfloat16(few, samples, wanted, limit, RELATIVE, 0.05)
    assert choice is not None
    assert choice.error <= 0.8 * limit
    assert 0 < len(choice.bfloat16) < len(whole.bfloat16)
    assert choice.seconds == pytest.approx(0.05 * (1.0 - 0.002 * len(choice.bfloat16)))
    # What is no faster is not worth it.
    monkeypatch.setattr(choose_bfloat16, "_relative", lambda *_: 0.99)
    assert choose_bfloat16.choose_bfloat16(few, samples, wanted, limit, RELATIVE, 0.05) is None
    # Nor is float32 everywhere, which only noise makes faster than itself.
    monkeypatch.setattr(choose_bfloat16, "_relative", lambda *_: 0.5)
    monkeypatch.setattr(choose_bfloat16, "fastest", lambda seconds, *_: (0,) * len(seconds[0]))
    assert choose_bfloat16.choose_bfloat16(few, samples, wanted, 1.0, RELATIVE, 0.05) is None


@mixes
@pytest.mark.whole
def test_a_workspace_of_a_mixed_model_is_opened_again(
    tiny: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Model(tiny.model, tiny.data, threads=1)
    tensors = work.graph.blocks[3].outputs
    only = PlaceResult(MIXED, 0.001, 0.0, 0.001, False)
    monkeypatch.setattr(settle, "float_everywhere", lambda *_: ([only], tensors))
    result = taglio.optimize(work, max_error=0.05, effort=0.01, scheme="qdq-u8s8-asym-pc")
    assert result.setup.runtime == MIXED
    result.save(tmp_path / "out")
    again = taglio.load(tmp_path / "out")
    assert again.setup.bfloat16 == tensors
    assert main(["run", str(tmp_path / "out"), "--runs", "3"]) == 0


@mixes
@pytest.mark.whole
def test_a_profile_by_itself_is_not_of_a_mix(tiny: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Model(tiny.model, tiny.data, threads=1)
    only = PlaceResult(MIXED, 0.001, 0.0, 0.001, False)
    monkeypatch.setattr(settle, "float_everywhere", lambda *_: ([only], work.graph.blocks[3].outputs))
    assert taglio.profile(work, scheme="qdq-u8s8-asym-pc", effort=0.01).conditions.runtime == NAME


def test_effort_scales_the_time_for_trying(few: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose_bfloat16, "marked", lambda *_: pytest.fail("was tried", pytrace=False))
    samples = few.data.held_out.samples[:4]
    # The fewest groups take 8 s: too long for a fifth of 20 s, the least.
    assert choose_bfloat16.choose_bfloat16(few, samples, [], 0.01, RELATIVE, 0.5, effort=0.05) is None
    with pytest.raises(pytest.fail.Exception):
        choose_bfloat16.choose_bfloat16(few, samples, [], 0.01, RELATIVE, 0.5, effort=0.5)
