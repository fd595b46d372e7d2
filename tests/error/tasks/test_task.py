"""Tasks by name, and what they make of real networks' outputs."""

import runpy
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from PIL import Image

from taglio.error.tasks.detection import decode
from taglio.error.tasks.outputs import Trial
from taglio.error.tasks.task import TASKS, parse_task
from taglio.errors import BadData, BadOption

SHARED = Path(__file__).parents[3] / ".." / "shared"


def test_parameters_are_read_and_defaults_kept() -> None:
    task = parse_task("detection, iou=0.6")
    assert task.parameters == {"iou": 0.6, "score": 0.25}


@pytest.mark.parametrize("text", ["detect", "detection,iou", "detection,x=1", "ctc,blank=first", "r2,k=1"])
def test_what_is_unknown_is_refused_by_name(text: str) -> None:
    with pytest.raises(BadOption, match=text.split(",", maxsplit=1)[0]):
        parse_task(text)


@pytest.mark.parametrize("name", ["tokens", "similarity", "recall,k=2", "r2"])
def test_a_model_agrees_with_itself(name: str) -> None:
    outputs = [{"y": row[None]} for row in np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)]
    assert parse_task(name).value(Trial(outputs, outputs)) == pytest.approx(1.0)


def test_labels_are_asked_for_and_counted() -> None:
    outputs = [{"y": np.zeros((1, 3), np.float32)}] * 2
    with pytest.raises(BadData, match="needs labels"):
        TASKS["perplexity"].value(Trial(outputs, outputs))
    with pytest.raises(BadData, match="1 labels for 2 samples"):
        TASKS["tokens"].value(Trial(outputs, outputs, np.zeros(1)))


@pytest.mark.slow
@pytest.mark.skipif(
    not (SHARED / "models" / "yunet-n-640.onnx").exists(), reason="../shared is not beside the checkout"
)
def test_two_trained_detectors_of_other_heads_find_the_same_faces() -> None:
    """An SSD head and an anchor-free one, each decoded from raw outputs: one checks the other."""
    one = ort.InferenceSession(str(SHARED / "models" / "ultraface-rfb-320.onnx"))
    other = ort.InferenceSession(str(SHARED / "models" / "yunet-n-640.onnx"))
    for name in ("faces-12.jpg", "faces-3.jpg", "faces-6.jpg", "faces-9.jpg"):
        image = Image.open(SHARED / "images" / name).convert("RGB")
        small = (np.asarray(image.resize((320, 240)), np.float32) - 127) / 128
        large = np.asarray(image.resize((640, 640)), np.float32)[..., ::-1]
        first = run(one, small.transpose(2, 0, 1)[None])
        second = run(other, np.ascontiguousarray(large.transpose(2, 0, 1)[None]))
        few, many = decode(first, (240, 320), 0.7), decode(second, (640, 640), 0.7)
        assert len(few.scores) == len(many.scores) > 1
        scaled = many.corners / 640  # the first writes shares of the image
        middles = [(boxes[:, :2] + boxes[:, 2:]) / 2 for boxes in (few.corners, scaled)]
        distance = np.abs(middles[0][:, None] - middles[1][None]).max(axis=2)
        assert (distance.min(axis=1) < 0.03).all()


@pytest.mark.slow
@pytest.mark.skipif(
    not (SHARED / "models" / "wild" / "ch_PP-OCRv4_rec_infer.onnx").exists(),
    reason="../shared is not beside the checkout",
)
def test_a_trained_recogniser_reads_what_was_rendered() -> None:
    make = runpy.run_path(str(SHARED / "models" / "wild" / "make_data.py"))
    model = ort.InferenceSession(str(SHARED / "models" / "wild" / "ch_PP-OCRv4_rec_infer.onnx"))
    outputs, labels = [], []
    for seed in range(8):
        image, text = make["line"](48, 320, seed)
        scaled = ((image[..., ::-1] / 255 - 0.5) / 0.5).transpose(2, 0, 1)[None].astype(np.float32)
        outputs.append(run(model, np.ascontiguousarray(scaled)))
        labels.append(text)
    trial = Trial(outputs, outputs, np.array(labels), metadata=model.get_modelmeta().custom_metadata_map)
    accuracy = parse_task("ctc").value(trial)
    assert 0.85 < accuracy < 1.0
    swapped = Trial(outputs[::-1], outputs, np.array(labels), metadata=trial.metadata)
    assert parse_task("ctc").value(swapped) < 0.5


def run(session: ort.InferenceSession, image: np.ndarray) -> dict[str, np.ndarray]:
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {session.get_inputs()[0].name: image}), strict=True))
