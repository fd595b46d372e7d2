"""A workspace as it is opened for serving."""

from pathlib import Path
from threading import Event
from unittest.mock import patch

import numpy as np
import onnx
import pytest

from taglio.components.build import Constant
from taglio.serve.refusals import Draining, InferenceFailed, TooLate
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
    model = open_model(workspace(tmp_path / "a", halves(), shapes={"x": (3, 6)}), "m", "1")
    assert model.warm and not model.alone


def test_a_model_that_refuses_its_warm_up_is_ready_once_it_has_answered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = open_model(workspace(tmp_path, halves(), shapes={"x": (1, 5)}), "m", "1")
    assert not model.warm and model.alone
    (line,) = caplog.messages
    assert line.startswith("m version 1 is not ready until it has answered a request: its warm-up run")
    service = InferenceService([model], Settings())
    queue = Asked(service.queue("m"))
    with pytest.raises(InferenceFailed):
        queue.submit({"x": np.ones((1, 5), np.float32)}).result(10)
    assert not service.ready() and not service.ready("m")
    assert service.index()[0]["state"] == "UNAVAILABLE"
    queue.submit({"x": np.ones((1, 6), np.float32)}).result(10)
    assert service.ready() and service.ready("m")
    begin(service.close()).result(10)
    assert not service.ready() and not service.ready("m")


def resampled() -> onnx.ModelProto:
    """y = x [1, 4] in rows of `width`, which random values do not divide."""
    return parsed("(float[1, 4] x, int64[2] width) => (float[rows, width] y) { [rows] y = Reshape (x, width) }")


def test_the_warm_up_has_the_values_that_were_the_same_in_all_data(tmp_path: Path) -> None:
    assert not open_model(workspace(tmp_path / "a", resampled()), "m", "1").warm
    width = Constant("width", "int64", (2,), (2, -1))
    assert open_model(workspace(tmp_path / "b", resampled(), constants=[width]), "m", "1").warm


def test_a_request_that_is_late_is_told_so_before_the_model_is_free(tmp_path: Path) -> None:
    """It kept its place in the queue, and its client waiting, until the run before it had ended."""
    model = open_model(workspace(tmp_path, halves(), shapes={"x": (1, 6)}), "m", "1")
    service, free, feed = InferenceService([model], Settings()), Event(), {"x": np.ones((1, 6), np.float32)}
    queue = service.queue("m")

    def run(*_: object) -> list[dict[str, np.ndarray]]:
        assert free.wait(10)
        return [feed]

    with patch.object(queue, "_run", run):
        running = Asked(queue).submit(feed)
        with pytest.raises(TooLate):
            begin(service.infer(queue, feed, [], 0.05)).result(10)
        assert len(queue) == 0
        free.set()
        running.result(10)
    begin(service.close()).result(10)


def test_all_models_stop_taking_requests_before_the_first_is_waited_for(tmp_path: Path) -> None:
    """The second took requests for as long as the first had to answer its own."""
    models = [open_model(workspace(tmp_path / name, halves(), shapes={"x": (1, 6)}), name, "1") for name in "ab"]
    service, free, feed = InferenceService(models, Settings()), Event(), {"x": np.ones((1, 6), np.float32)}
    slow, other = map(Asked, service.queues)

    def run(*_: object) -> list[dict[str, np.ndarray]]:
        assert free.wait(10)
        return [feed]

    with patch.object(slow.queue, "_run", run):
        slow.submit(feed)
        closing = begin(service.close())
        with pytest.raises(Draining):
            other.submit(feed).result(10)
        assert not closing.done()
        free.set()
        assert closing.result(10) == 0
