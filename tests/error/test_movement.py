"""Outputs are taken apart where something joined them, however it was moved."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator

from taglio.error.movement import find_parts
from taglio.error.parts import OutputParts
from taglio.model.load import Model
from tests.examples import examples
from tests.models import Sketch, loaded

Feeds = list[dict[str, np.ndarray]]


def split(model: Model, samples: Feeds) -> tuple[OutputParts, dict[str, np.ndarray]]:
    """The parts, and the values of each on the first sample."""
    session = ReferenceEvaluator(model.proto)
    outputs = [np.asarray(each) for each in session.run(list(model.outputs), samples[0])]
    parts = find_parts(model, samples)
    return parts, {each.name: parts.take(i, outputs[each.output]) for i, each in enumerate(parts.parts)}


def assert_each_value_once(parts: OutputParts, output: int, shape: tuple[int, ...]) -> None:
    places = np.arange(np.prod(shape)).reshape(shape)
    taken = [parts.take(index, places) for index, part in enumerate(parts.parts) if part.output == output]
    np.testing.assert_array_equal(np.sort(np.concatenate(taken)), places.ravel())


def numbered(**shapes: tuple[int, ...]) -> Feeds:
    """One sample in which every value of an input says which input it is of."""
    return [{name: np.full(shape, 10.0 * i + 1.0, np.float32) for i, (name, shape) in enumerate(shapes.items())}]


def inputs(g: Sketch, feeds: Feeds) -> list[str]:
    return [g.input(name, *value.shape) for name, value in feeds[0].items()]


def test_heads_of_three_strides_in_one_tensor_are_known_by_stride_and_by_quantity(tmp_path: Path) -> None:
    """As YOLOv5 exports: columns made by unlike operators, then the rows of all strides joined."""
    sizes = (4, 2, 1)
    feeds = numbered(**{f"{name}{n}": (1, 3, n, n, c) for n in sizes for name, c in (("xy", 2), ("wh", 2), ("cls", 3))})
    g = Sketch()
    names = inputs(g, feeds)
    rows = []
    for index, n in enumerate(sizes):
        joined = g.op("Concat", *names[3 * index : 3 * index + 3], axis=4)
        rows.append(g.op("Reshape", joined, g.constant(np.array([1, 3 * n * n, 7]))))
    y = g.rename(g.op("Concat", *rows, axis=1), "y")
    parts, values = split(loaded(g.model(y), tmp_path), feeds)
    assert len(parts.names) == 9
    assert all(len(set(part_values)) == 1 for part_values in values.values())
    assert_each_value_once(parts, 0, (1, 63, 7))


def scattered(g: Sketch, a: str, b: str) -> str:
    zeros = g.constant(np.array([[0, 0], [0, 2]]))
    rows = g.op("Slice", b, g.constant(np.array([0])), g.constant(np.array([2])), g.constant(np.array([1])))
    return g.op("ScatterND", a, zeros, g.op("Squeeze", rows, g.constant(np.array([0]))))


def padded(g: Sketch, a: str, b: str) -> str:
    wide = g.op("Concat", a, b, axis=1)
    return g.op("Pad", wide, g.constant(np.array([0, 1, 0, 1])), g.constant(np.float32(0.0).reshape(())))


def sequenced(g: Sketch, a: str, b: str) -> str:
    return g.op("ConcatFromSequence", g.op("SequenceConstruct", a, b), axis=0)


@pytest.mark.parametrize("joining", [scattered, padded, sequenced])
def test_every_way_to_join_is_seen(joining: object, tmp_path: Path) -> None:
    feeds = numbered(a=(1, 5), b=(1, 5))
    g = Sketch()
    y = joining(g, *inputs(g, feeds))  # type: ignore[operator]
    parts, values = split(loaded(g.model(g.rename(y, "y")), tmp_path), feeds)
    assert len(parts.names) == 2
    assert [set(part_values) - {0.0} for part_values in values.values()] == [{1.0}, {11.0}]


OPERATORS = ("transpose", "flatten", "reverse", "halves", "pad", "unsqueeze", "tile")


@examples(25, steady=False)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.lists(st.sampled_from(OPERATORS), max_size=4))
def test_parts_cover_every_value_once_and_mix_no_sources(widths: list[int], moves: list[str]) -> None:
    feeds = numbered(**{f"i{index}": (2, width, 3) for index, width in enumerate(widths)})
    g = Sketch()
    shape: tuple[int, ...] = (2, sum(widths), 3)
    y = g.op("Concat", *inputs(g, feeds), axis=1)
    for move in moves:
        rank = len(shape)
        if move == "transpose":
            y, shape = g.op("Transpose", y, perm=[*range(rank)][::-1]), shape[::-1]
        elif move == "flatten":
            y, shape = g.op("Reshape", y, g.constant(np.array([-1]))), (int(np.prod(shape)),)
        elif move == "reverse":
            y = g.op("Slice", y, *(g.constant(np.array([each])) for each in (-1, -(10**6), 0, -1)))
        elif move == "halves":
            half = shape[-1] // 2
            if not half:
                continue
            sizes = g.constant(np.array([half, shape[-1] - half]))
            first = g.op("Split", y, sizes, axis=rank - 1, outputs=2)
            y = g.op("Concat", f"{first}1", first, axis=rank - 1)
        elif move == "pad":
            y = g.op("Pad", y, g.constant(np.array([1] * rank + [0] * rank)))
            shape = tuple(each + 1 for each in shape)
        elif move == "unsqueeze":
            y, shape = g.op("Unsqueeze", y, g.constant(np.array([0]))), (1, *shape)
        elif move == "tile":
            y = g.op("Tile", y, g.constant(np.array([2] * rank)))
            shape = tuple(2 * each for each in shape)
    y = g.op("Identity", y)
    with TemporaryDirectory() as folder:
        parts, values = split(loaded(g.model(g.rename(y, "y")), Path(folder)), feeds)
    assert len(parts.names) == len(widths) == len(set(parts.names))
    assert all(len(set(each) - {0.0}) == 1 for each in values.values())
    assert_each_value_once(parts, 0, shape)


def test_too_many_sources_are_one_part(tmp_path: Path) -> None:
    feeds = numbered(**{f"i{index}": (1, 2) for index in range(17)})
    g = Sketch()
    names = inputs(g, feeds)
    y = g.rename(g.op("Concat", *names, axis=1), "y")
    z = g.rename(g.op("Concat", *names[:16], axis=1), "z")
    parts, _ = split(loaded(g.model(y, z), tmp_path), feeds)
    assert parts.names[0] == "y" and len(parts.names) == 17


def test_what_gathers_a_table_of_weights_or_computes_is_no_movement(tmp_path: Path) -> None:
    g = Sketch()
    x = g.input("x", 1, 4)
    y = g.op("Relu", g.op("Concat", x, g.op("Sigmoid", x), axis=1))
    z = g.op("Gather", g.weight(9, 5), g.op("Cast", x, to=TensorProto.INT64))
    model = loaded(g.model(g.rename(y, "y"), g.rename(z, "z")), tmp_path)
    assert find_parts(model, [{"x": np.ones((1, 4), np.float32)}]).names == ("y", "z")


def test_a_cache_is_parted_at_every_length_of_the_data() -> None:
    g = Sketch()
    past, new = g.input("past", 1, "length", 3), g.input("new", 1, 1, 3)
    y = g.rename(g.op("Concat", past, g.op("Exp", new), axis=1), "present")
    proto = g.model(y)
    model = Model("cache", "", 17, (), ("present",), proto)
    feeds = [{"past": np.ones((1, n, 3), np.float32), "new": np.zeros((1, 1, 3), np.float32)} for n in (0, 4, 2)]
    parts = find_parts(model, feeds)
    assert len(parts.names) == 2
    for n in (0, 4, 2):
        assert [len(parts.take(index, np.zeros((1, n + 1, 3)))) for index in range(2)] == [3 * n, 3]
        assert_each_value_once(parts, 0, (1, n + 1, 3))
    assert_each_value_once(parts, 0, (1, 9, 3))  # a length that was not seen is one part


def test_rows_chosen_by_scores_are_ranked_also_behind_movement(tmp_path: Path) -> None:
    """Not the scores themselves, a sum of the rows, or rows at places that no score decides."""
    g = Sketch()
    boxes, scores = g.input("boxes", 1, 20, 4), g.op("Sigmoid", g.input("scores", 1, 20))
    best = g.op("TopK", scores, g.constant(np.array([5])), outputs=2)
    index = g.op("Tile", g.op("Unsqueeze", f"{best}1", g.constant(np.array([2]))), g.constant(np.array([1, 1, 4])))
    rows = g.op("GatherElements", boxes, index, axis=1)
    chosen = g.op("Concat", g.op("Sigmoid", rows), g.op("Unsqueeze", best, g.constant(np.array([2]))), axis=2)
    fixed = g.op("Gather", boxes, g.constant(np.array([3, 1])), axis=1)
    model = loaded(g.model(chosen, best, g.op("ReduceSum", rows), fixed), tmp_path)
    draws = [{"boxes": g.rng.normal(0, 1, (1, 20, 4)), "scores": g.rng.normal(0, 1, (1, 20))} for _ in range(4)]
    samples = [{name: value.astype(np.float32) for name, value in draw.items()} for draw in draws]
    assert find_parts(model, samples).ranked == {0}
