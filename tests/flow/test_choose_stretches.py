"""Which stretches compute in bfloat16: the model is divided where little crosses, the fastest mix keeps the limit."""

from itertools import pairwise, product
from math import hypot
from pathlib import Path

import numpy as np
import pytest

from taglio.components.build import read, write
from taglio.components.cut import cut
from taglio.embedded import digits_data
from taglio.error.loss import RELATIVE
from taglio.flow import choose_stretches
from taglio.flow.choose_stretches import divided, division, joined, ranked
from taglio.flow.work import Model
from taglio.model.graph import Graph
from taglio.runtimes.onnxruntime import SessionOptions, Stretch, open_session
from taglio.runtimes.openvino import MIXED
from taglio.runtimes.places import refusal
from taglio.runtimes.session import opener
from tests.models import Sketch, digits_model, saved

pytest.importorskip("openvino", reason="needs openvino, which `make test` installs")


@pytest.fixture(scope="module")
def digits() -> Model:
    with np.load(digits_data()) as arrays:
        return Model(digits_model(), {"image": arrays["image"][:8]}, runtime="onnxruntime")


def crossing(graph: Graph, end: int) -> set[str]:
    """Tensors written before block `end` and read by it or behind it."""
    order = {block.name: index for index, block in enumerate(graph.blocks)}
    return {
        tensor.name
        for tensor in graph.tensors
        if tensor.producer is not None
        and order[tensor.producer] < end
        and any(order[name] >= end for name in tensor.consumers)
    }


def test_a_model_is_divided_where_few_tensors_cross(digits: Model) -> None:
    ends = division(digits.graph)
    assert len(ends) > 4
    assert ends == sorted(set(ends))
    assert ends[-1] == len(digits.graph.blocks)
    assert all(1 <= len(crossing(digits.graph, end)) <= 3 for end in ends[:-1])


def test_what_crosses_is_an_output_of_the_stretch_that_writes_it(digits: Model) -> None:
    ends = division(digits.graph)
    stretches = divided(digits.graph, ends, [0] * len(ends))
    written = set[str]()
    for end, stretch in zip(ends[:-1], stretches, strict=False):
        written |= set(stretch.outputs)
        assert crossing(digits.graph, end) <= written
    assert stretches[-1].outputs == digits.outputs


def test_neighbours_in_one_precision_are_one_stretch(digits: Model) -> None:
    ends = division(digits.graph)
    mix = [0, 0, *[1] * (len(ends) - 2)]
    two = joined(digits.graph, ends, mix)
    assert [each.precision for each in two] == ["f32", "bf16"]
    assert set(two[0].outputs) == crossing(digits.graph, ends[1])


def test_the_stretches_of_a_model_compute_what_the_whole_does(digits: Model) -> None:
    ends = division(digits.graph)
    options = SessionOptions(1, stretches=divided(digits.graph, ends, [0] * len(ends)))
    session = opener(MIXED)(Path(digits_model()), options)
    sample = dict(digits.data.held_out.samples[0])
    (whole,) = open_session(Path(digits_model()), SessionOptions(1)).run(None, sample)
    (found,) = session.run(None, sample)
    assert np.allclose(found, whole, rtol=1e-4, atol=1e-4)
    # The next run leaves what the last one gave as it was.
    before = found.copy()
    session.run(None, dict(digits.data.held_out.samples[1]))
    assert np.array_equal(found, before)


def test_an_output_that_the_next_stretch_reads(tmp_path: Path) -> None:
    g = Sketch(3)
    best = g.op("TopK", g.input("x", 1, 8), g.constant(np.array([3])), outputs=2)
    y = g.op("Sigmoid", best)
    path = saved(g.model(best, y), tmp_path)
    sample = {"x": np.arange(8, dtype=np.float32)[None] / 8}
    wanted = open_session(path, SessionOptions(1)).run(None, sample)
    for ends in ([(best,), (y,)], [(best, y)]):
        stretches = tuple(Stretch("f32", tuple(outputs)) for outputs in ends)
        found: list[np.ndarray] = opener(MIXED)(path, SessionOptions(1, stretches=stretches)).run([best, y], sample)
        assert all(np.allclose(one, other, atol=1e-6) for one, other in zip(found, wanted, strict=True))


def test_a_mixed_model_is_deployed_as_it_was_chosen(digits: Model, tmp_path: Path) -> None:
    ends = division(digits.graph)
    stretches = joined(digits.graph, ends, [1, *[0] * (len(ends) - 1)])
    devices = {block.name: "local" for block in digits.graph.blocks}
    parts = cut(digits.model, digits.graph, digits.model.proto, devices)
    write(tmp_path, "0" * 64, ["image"], digits.outputs, parts, runtimes={"local": MIXED}, stretches=stretches)
    (piece,) = read(tmp_path).pieces
    assert piece.stretches == stretches == (Stretch("bf16", stretches[0].outputs), Stretch("f32", digits.outputs))
    assert "INFERENCE_PRECISION_HINT" not in piece.properties


def test_mixes_are_ranked_as_by_trying_all() -> None:
    rng = np.random.default_rng(3)
    f32, bf16, alone = rng.uniform(1, 3, 6), rng.uniform(0.5, 2, 6), rng.uniform(0.001, 0.01, 6)
    limit, crossing_s = 0.012, 0.2
    wanted = {}
    for mix in product((0, 1), repeat=6):
        switches = sum(a != b for a, b in pairwise(mix))
        error = hypot(*(alone[i] for i in range(6) if mix[i]))
        if switches and error <= limit:
            taken = sum(bf16[i] if mix[i] else f32[i] for i in range(6))
            wanted[mix] = taken - (5 - switches) * crossing_s
    found = ranked([list(f32), list(bf16)], list(alone), crossing_s, limit)
    assert dict(found) == pytest.approx(wanted)
    assert [taken for _, taken in found] == sorted(taken for _, taken in found)


@pytest.mark.skipif(bool(refusal(MIXED)), reason="needs a processor on which OpenVINO computes in bfloat16")
def test_the_mix_that_is_taken_keeps_its_share_of_the_limit(digits: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    count = len(division(digits.graph))
    monkeypatch.setattr(choose_stretches, "_seconds", lambda *_: [[0.002] * count, [0.001] * count])
    samples = digits.data.held_out.samples
    session = open_session(Path(digits_model()), SessionOptions(1))
    wanted = [session.run(None, dict(sample)) for sample in samples]
    limit = 0.003  # all of it in bfloat16 is 0.4 % off
    mix = choose_stretches.choose_stretches(digits, samples, wanted, limit, RELATIVE, 0.002 * count)
    assert mix is not None
    assert mix.error <= 0.9 * limit
    assert mix.seconds < 0.002 * count
    assert {each.precision for each in mix.stretches} == {"f32", "bf16"}
    # What is no faster is not worth its crossings.
    monkeypatch.setattr(choose_stretches, "_seconds", lambda *_: [[0.002] * count] * 2)
    assert choose_stretches.choose_stretches(digits, samples, wanted, limit, RELATIVE, 0.002 * count) is None
