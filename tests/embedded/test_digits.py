"""What the embedded network is there to show."""

from pathlib import Path

import numpy as np
import pytest

from taglio.embedded import digits_data, digits_model
from taglio.runtimes.onnxruntime import SessionOptions, open_session
from tests import models
from tests.end_to_end.command import taglio


def read(model: Path, images: np.ndarray) -> np.ndarray:
    """Logits of all images."""
    session = open_session(model, SessionOptions(1))
    return np.concatenate([session.run(None, {"image": image[None]})[0] for image in images])


@pytest.fixture(scope="module")
def pictures() -> tuple[np.ndarray, np.ndarray]:
    with np.load(digits_data()) as data:
        return data["image"], data["label"]


@pytest.mark.whole
def test_it_is_the_trained_network_to_the_bit_in_float(pictures: tuple[np.ndarray, np.ndarray]) -> None:
    images, labels = pictures
    logits = read(digits_model(), images)
    assert np.array_equal(logits[::4], read(models.digits_model(), images[::4]))
    assert (logits.argmax(axis=1) == labels).mean() == 1.0


@pytest.mark.slow  # calibrates every block
def test_it_reads_worse_in_int8(pictures: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    images, labels = pictures
    quantized = tmp_path / "int8.onnx"
    asked = ("--scheme", "qdq-u8s8-asym-pc", "-o", quantized)
    assert taglio("quantize", digits_model(), "--data", digits_data(), *asked).code == 0
    assert (read(quantized, images).argmax(axis=1) == labels).mean() < 0.99
