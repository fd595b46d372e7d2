"""What is counted."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from taglio.serve.metrics import Metrics
from taglio.serve.queue import Ran


def test_the_latency_beside_the_prediction_is_of_one_request_alone() -> None:
    model: Any = SimpleNamespace(name="m", version="1", predicted_s=0.01)
    metrics = Metrics()
    told = metrics.add(model)
    told(Ran((0.0,), 1.0, 1.5))
    told(Ran((0.0, 0.5), 2.0, 9.0))
    text = metrics.text([MagicMock(model=model)])
    assert b'taglio_measured_seconds{model="m",version="1"} 0.5\n' in text
    assert b'taglio_batch_requests_count{model="m",version="1"} 2.0\n' in text
