"""A workspace as it is opened for serving."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from taglio.serve.refusals import InferenceFailed
from taglio.serve.served import open_model
from taglio.serve.service import InferenceService, Settings
from tests.built import workspace
from tests.models import parsed
from tests.serve.conftest import Asked, begin


def halves() -> onnx.ModelProto:
    """y = x [batch, width] in rows of two halves: it does not run on a width of 1."""
    text = "(float[batch, width] x) => (float[batch, 2, half] y) <int64[3] shape = {0, 2, -1}>"
    return parsed(text + "{ [halves] y = Reshape (x, shape) }")


def test_the_warm_up_runs_on_the_sizes_of_the_plan(tmp_path: Path) -> None:
    """A model that fails on images or lines of size 1 was served without batches."""
    assert open_model(workspace(tmp_path / "a", halves(), shapes={"x": (3, 6)}), "m", "1").alone == ""


def test_a_model_that_refuses_its_warm_up_is_served(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = open_model(workspace(tmp_path, halves(), shapes={"x": (1, 5)}), "m", "1")
    (line,) = caplog.messages
    assert line.startswith("m version 1: its warm-up run on random inputs failed: ") and model.alone in line
    service = InferenceService([model], Settings())
    queue = Asked(service.queue("m"))
    with pytest.raises(InferenceFailed):
        queue.submit({"x": np.ones((1, 5), np.float32)}).result(10)
    queue.submit({"x": np.ones((1, 6), np.float32)}).result(10)
    assert service.ready() and service.ready("m") and service.index()[0]["state"] == "READY"
    begin(service.close()).result(10)
    assert not service.ready() and not service.ready("m")


def resampled() -> onnx.ModelProto:
    """y = x [1, 4] in rows of `width`, which random values do not divide."""
    return parsed("(float[1, 4] x, int64[2] width) => (float[rows, width] y) { [rows] y = Reshape (x, width) }")


def test_the_warm_up_has_the_values_that_are_the_same_in_all_samples(tmp_path: Path) -> None:
    assert "warm-up run" in open_model(workspace(tmp_path / "a", resampled()), "m", "1").alone
    samples = [{"x": np.full((1, 4), value, np.float32), "width": np.array([2, -1])} for value in (1.0, 2.0)]
    model = open_model(workspace(tmp_path / "b", resampled(), samples=samples), "m", "1")
    assert model.alone == "input x has a fixed first dimension of 1"
