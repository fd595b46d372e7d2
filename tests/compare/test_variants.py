"""The ONNX forms as files: each computes nearly what the model computes, or says why it is not there."""

from pathlib import Path

import numpy as np
import pytest

from taglio.compare.table import FLOAT, forms
from taglio.compare.variants import OnnxSource, Written, write
from taglio.data.dataset import split
from taglio.model.graph import build
from taglio.quantize.ranges import calibrate
from taglio.runtimes.onnxruntime import SessionOptions, open_session
from tests.models import TINY, feeds, loaded


def source(name: str, folder: Path) -> OnnxSource:
    model = loaded(TINY[name](), folder)
    data = split(feeds(model, 8))
    return OnnxSource(model, build(model), data, calibrate(model, data.calibration), SessionOptions(1))


@pytest.fixture(scope="module")
def pyramid(tmp_path_factory: pytest.TempPathFactory) -> tuple[OnnxSource, Written]:
    folder = tmp_path_factory.mktemp("forms")
    made = source("pyramid", folder)
    return made, write(made, forms(), folder / "models")


def test_every_form_is_written_or_refused_with_a_reason(pyramid: tuple[OnnxSource, Written]) -> None:
    _, written = pyramid
    keys = {form.key for form in forms()}
    assert written.files.keys() | written.refusals.keys() == keys
    assert not written.files.keys() & written.refusals.keys()
    assert all(written.refusals.values())
    assert {FLOAT, "float16", "qdq-u8s8-asym-pc"} <= written.files.keys()


def test_every_form_computes_nearly_what_the_model_computes(pyramid: tuple[OnnxSource, Written]) -> None:
    made, written = pyramid
    feed = made.data.held_out.samples[0]
    options = SessionOptions(1)
    wanted = open_session(made.model.proto, options).run(None, feed)[0]
    for key, path in written.files.items():
        found = open_session(Path(path), options).run(None, feed)[0]
        error = np.linalg.norm(found - wanted) / np.linalg.norm(wanted)
        assert error < 0.08 or "saturate" in written.notes.get(key, ""), key
        assert (error == 0) == (key == FLOAT), key
