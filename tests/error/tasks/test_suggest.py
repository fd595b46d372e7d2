"""The task that suits a model, told from shapes, names and metadata, and from real networks."""

from pathlib import Path

import numpy as np
import pytest

from taglio.error.tasks.suggest import ModelPort, suggest, suggest_for
from taglio.model.graph import build
from taglio.model.observe import observe_random
from tests.models import loaded, parsed

IMAGE, LINE, IDS = (1, 3, 640, 640), (1, 3, 48, 320), (1, 32)


def tensors(*shapes: tuple[int, ...], dtype: str = "float32", names: tuple[str, ...] = ()) -> list[ModelPort]:
    return [ModelPort(names[i] if names else f"t{i}", shape, dtype) for i, shape in enumerate(shapes)]


@pytest.mark.parametrize(
    ("inputs", "outputs", "task"),
    [
        (tensors(IMAGE), tensors((1, 84, 8400)), "detection"),
        (tensors(IMAGE), tensors((1, 300, 6)), "detection"),
        (tensors(IMAGE), tensors((1, 100), (1, 100), (1, 100, 4), names=("scores", "classes", "boxes")), "detection"),
        (tensors(IMAGE), tensors((1, 116, 8400), (1, 32, 160, 160)), "detection"),
        (tensors((1, 3, 240, 320)), tensors((1, 4420, 2), (1, 4420, 4)), "detection"),
        (tensors(IMAGE), tensors(*((1, 6400 >> 2 * i, n) for n in (10, 32) for i in range(3))), "detection"),
        (tensors(IMAGE), tensors(*((12800 >> 2 * i, n) for n in (1, 4, 10) for i in range(3))), "detection"),
        (tensors(IMAGE), tensors((1, 21, 640, 640)), "segmentation"),
        (tensors(LINE), tensors((1, 40, 97)), "ctc"),
        (tensors(IDS, dtype="int64"), tensors((1, 32, 9)), "tokens"),
        (tensors(IDS, dtype="int64"), tensors((1, 32, 30000)), "tokens"),
        (tensors(IDS, dtype="int64"), tensors((1, 32, 384), (1, 384), names=("states", "pooler_output")), "similarity"),
        (tensors(IMAGE), tensors((1, 512), names=("embedding",)), "similarity"),
        (tensors(IMAGE), tensors((1, 1000)), "top1"),
        (tensors((1, 8)), tensors((1, 1)), "r2"),
        (tensors((1, 8, 0, 64)), tensors((1, 8, 0, 64)), None),  # the keys of a past
        (
            [*tensors((1, 0), dtype="int64"), *tensors((1, 4, 0, 8))],
            tensors((1, 0, 500), (1, 4, 0, 8), names=("logits", "keys")),
            "tokens",
        ),
        ([*tensors(IMAGE), *tensors((1, 2), dtype="int64")], tensors((1, 300, 4), (1, 300, 80)), "detection"),
        (tensors((0, 3, 48, 0)), tensors((0, 0, 97)), "ctc"),  # lines of any width
    ],
)
def test_shapes_tell_the_task(inputs: list[ModelPort], outputs: list[ModelPort], task: str | None) -> None:
    hint = suggest(inputs, outputs, {}, vocabularies=[30000])
    assert (hint.metric if hint else None) == task


def test_characters_in_the_metadata_tell_a_recogniser() -> None:
    hint = suggest(tensors(LINE), tensors((1, 40, 5)), {"character": "a\nb\nc"})
    assert hint is not None and (hint.metric, hint.why) == ("ctc", "the metadata names 3 characters")
    assert suggest(tensors(LINE), tensors((1, 64, 20, 20)), {"character": "text\ntable\nx"}) is None  # classes


def test_the_task_in_ultralytics_metadata_is_taken() -> None:
    unknown = tensors((1, 0, 0))  # no size of the image is fixed
    hint = suggest(tensors((0, 3, 0, 0)), unknown, {"task": "segment", "names": "{0: 'car'}"})
    assert hint is not None and (hint.metric, hint.why) == ("detection", 'the metadata names the task "segment"')
    assert suggest(tensors((0, 3, 0, 0)), unknown, {"task": "segment"}) is None


def test_pooled_states_are_an_embedding_and_scores_are_not(tmp_path: Path) -> None:
    def task(end: str) -> str:
        text = f"(float[1, 5, 8] x) => (float[1, 64] y) {{ h = MatMul (x, w) {end} }}"
        model = loaded(parsed(text, {"w": np.ones((8, 64))}), tmp_path)
        suggestion = suggest_for(model, build(model, observe_random(model)[0]))
        assert suggestion is not None
        return suggestion.metric

    mean = "ReduceMean <axes = [1], keepdims = 0> (h)"
    assert task(f"m = {mean} y = LpNormalization <axis = 1> (m)") == "similarity"
    assert task(f"y = {mean}") == "similarity"
    assert task(f"m = {mean} y = Softmax (m)") == "top1"


def test_states_tell_no_task(tmp_path: Path) -> None:
    """A state with one channel is no image, nor a map of classes."""
    text = "(float[1, 8] x, float[2, 1, 33, 16] h) => (float[1, 8] y, float[2, 1, 33, 16] h_out)"
    model = loaded(parsed(text + "{ y = Relu (x) h_out = Tanh (h) }"), tmp_path)
    graph = build(model, observe_random(model)[0])
    without = suggest_for(model, graph)
    assert without is not None and without.metric == "segmentation"
    told = suggest_for(model, graph, ["h", "h_out"])
    assert told is not None and told.metric == "top1"


@pytest.mark.parametrize(("last", "task"), [("Concat <axis = 1> (b, s)", None), ("Add (b, s)", "segmentation")])
def test_boxes_joined_with_scores_are_no_maps_of_classes(last: str, task: str | None, tmp_path: Path) -> None:
    nodes = f"b = Relu (x) s = Sigmoid (x) j = {last} y = Identity (j)"
    model = loaded(parsed(f"(float[1, 3, 32, 32] x) => (float[1, c, 32, 32] y) {{ {nodes} }}"), tmp_path)
    suggestion = suggest_for(model, build(model, observe_random(model)[0]))
    assert (suggestion and suggestion.metric) == task
