"""Requests that wait, join, come too late, are too many, or fail."""

import threading
import time
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from taglio.errors import BadData, BadDevice
from taglio.runtimes.way import Way
from taglio.serve.queue import ModelQueue, Ran
from taglio.serve.refusals import (
    Draining,
    InferenceFailed,
    Overloaded,
    Refusal,
    ServerFailed,
    TooLate,
    Unavailable,
    failed,
)
from taglio.serve.served import SequenceStep, ServedModel
from taglio.serve.service import InferenceService, Settings
from taglio.serve.tensors import TensorSpec
from tests.serve.conftest import Asked, begin


class Model:
    """Doubles its input; waits while it is held, and refuses what holds a negative number."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.running = threading.Event()
        self.batches: list[int] = []
        self.threads: list[int] = []

    def run(self, feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        self.running.set()
        self.free.wait(10)
        self.batches.append(len(feed["x"]))
        self.threads.append(threading.get_ident())
        if (feed["x"] < 0).any():
            raise ValueError("negative")
        return [2 * feed["x"]]


def served(executor: Any, name: str = "m", way: Way = Way(1, joined=8)) -> ServedModel:  # noqa: B008
    inputs, outputs = (TensorSpec("x", "FP32", (-1, 2)),), (TensorSpec("y", "FP32", (-1, 2)),)
    return ServedModel(name, "1", inputs, outputs, executor, None, alone="", way=way)


def queue_of(model: Model, told: Any = None, way: Way = Way(1, joined=8), most_waiting: int = 64) -> Asked:  # noqa: B008
    return Asked(ModelQueue(served(model, way=way), most_waiting, told))


def wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 10.0
    while not holds() and time.monotonic() < until:
        time.sleep(0.001)
    assert holds()


def rows(count: int, value: float = 1.0) -> dict[str, np.ndarray]:
    return {"x": np.full((count, 2), value, np.float32)}


def test_what_waits_is_joined_and_parted_again() -> None:
    model, ran = Model(), list[Ran]()
    queue = queue_of(model, ran.append)
    first = queue.submit(rows(1))
    model.running.wait(10)
    others = [queue.submit(rows(2, 1.0 + index)) for index in range(3)]
    model.free.set()
    assert (first.result(10)["y"] == 2.0).all()
    for index, other in enumerate(others):
        assert other.result(10)["y"].shape == (2, 2) and (other.result(10)["y"] == 2.0 + 2 * index).all()
    assert model.batches == [1, 6]
    assert [len(each.came_s) for each in ran] == [1, 3]
    assert queue.close(10) == 0


def test_a_batch_has_no_more_rows_than_allowed_and_one_shape() -> None:
    model = Model()
    queue = queue_of(model, way=Way(1, joined=4))
    futures = [queue.submit(rows(1))]
    model.running.wait(10)
    futures += [queue.submit(rows(3)), queue.submit(rows(3)), queue.submit({"x": np.ones((1, 5), np.float32)})]
    model.free.set()
    assert [future.result(10)["y"].shape for future in futures] == [(1, 2), (3, 2), (3, 2), (1, 5)]
    assert model.batches == [1, 3, 3, 1]


def test_an_input_without_dimensions_may_come_first() -> None:
    """A sampling rate that a client sent before the sound ended in an internal error."""
    model = Model()
    model.free.set()
    queue = queue_of(model, way=Way(1))
    assert queue.submit({"rate": np.array(16_000), **rows(1)}).result(10)["y"].shape == (1, 2)


def test_too_many_are_refused_and_late_ones_are_not_run() -> None:
    model = Model()
    queue = queue_of(model, most_waiting=1)
    running = queue.submit(rows(1))
    model.running.wait(10)
    late = queue.submit(rows(1), timeout_s=0.5)
    with pytest.raises(Overloaded, match="1 request waiting"):
        queue.submit(rows(1)).result(10)
    with pytest.raises(TooLate):
        late.result(10)
    assert len(queue.queue) == 0  # its place is free before the run ends
    model.free.set()
    running.result(10)
    assert model.batches == [1]


def test_a_cancelled_request_is_not_run() -> None:
    model = Model()
    queue = queue_of(model)
    running = queue.submit(rows(1))
    model.running.wait(10)
    waiting = queue.submit(rows(1))
    assert len(queue.queue) == 1 and waiting.cancel()
    wait_until(lambda: len(queue.queue) == 0)  # its place is free before the run ends
    model.free.set()
    running.result(10)
    assert queue.close(10) == 0 and model.batches == [1]


def test_a_request_that_cannot_run_costs_no_other_answer() -> None:
    model = Model()
    queue = queue_of(model)
    futures = [queue.submit(rows(1))]
    model.running.wait(10)
    futures += [queue.submit(rows(1, -1.0)), queue.submit(rows(1))]
    model.free.set()
    assert (futures[0].result(10)["y"] == 2.0).all() and (futures[2].result(10)["y"] == 2.0).all()
    with pytest.raises(InferenceFailed, match="negative"):
        futures[1].result(10)


def test_closing_answers_what_was_taken_and_takes_no_more() -> None:
    model = Model()
    queue = queue_of(model, way=Way(1))
    futures = [queue.submit(rows(1)) for _ in range(3)]
    threading.Timer(0.1, model.free.set).start()
    assert queue.close(10) == 0
    assert [len(future.result(0)["y"]) for future in futures] == [1, 1, 1]
    with pytest.raises(Draining):
        queue.submit(rows(1)).result(10)


def test_all_models_stop_taking_requests_before_the_first_is_waited_for() -> None:
    """The second took requests for as long as the first had to answer its own."""
    slow, other = Model(), Model()
    service = InferenceService([served(slow, "a"), served(other, "b")], Settings())
    first, second = map(Asked, service.queues)
    first.submit(rows(1))
    slow.running.wait(10)
    closing = begin(service.close())
    with pytest.raises(Draining):
        second.submit(rows(1)).result(10)
    assert not closing.done()
    slow.free.set()
    assert closing.result(10) == 0


def test_closing_says_how_many_were_not_answered_in_time() -> None:
    model = Model()
    queue = queue_of(model, way=Way(1))
    for _ in range(3):
        queue.submit(rows(1))
    model.running.wait(10)
    assert queue.close(0.05) == 3  # one of them runs
    model.free.set()


def test_of_a_sequence_one_step_runs_at_a_time_while_others_run_beside_it() -> None:
    """On a cluster, where several requests run at once."""
    begun, free, order = threading.Semaphore(0), threading.Event(), list[tuple[object, float]]()

    def run(feed: Mapping[str, np.ndarray], step: SequenceStep) -> dict[str, np.ndarray]:
        order.append((step.sequence, float(feed["x"][0, 0])))
        begun.release()
        free.wait(10)
        return dict(feed)

    model: Any = SimpleNamespace(name="m", version="1", at_once=3, on_cluster=True, way=Way(1), run=run)
    queue = Asked(ModelQueue(model))
    answers = [queue.submit(rows(1, value), None, SequenceStep(name)) for name, value in (("a", 1), ("a", 2), ("b", 3))]
    for _ in range(2):
        assert begun.acquire(timeout=10)
    assert sorted(order, key=str) == [("a", 1.0), ("b", 3.0)]
    free.set()
    assert [each.result(10)["x"][0, 0] for each in answers] == [1.0, 2.0, 3.0]
    assert queue.close(10) == 0 and order[-1] == ("a", 2.0)


@pytest.mark.parametrize(
    ("error", "refusal", "words"),
    [
        (BadDevice("no device is left"), Unavailable, "no device is left"),
        (KeyError(343), ServerFailed, "its log says why"),
        (MemoryError(), ServerFailed, "its log says why"),
        (ValueError("index 9 is out of range"), InferenceFailed, "index 9 is out of range"),
    ],
)
def test_only_inputs_are_the_fault_of_a_request(error: Exception, refusal: type[Refusal], words: str) -> None:
    class Failing:
        def run(self, _: object) -> None:
            raise error

    failing: Any = Failing()
    queue = queue_of(failing)
    with pytest.raises(refusal, match=words):
        queue.submit(rows(1)).result(10)


def test_a_lost_device_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    def run(*_: object) -> None:
        raise BadDevice("no device is left")

    model: Any = SimpleNamespace(name="m", version="1", at_once=1, on_cluster=True, way=Way(1), run=run)
    queue = Asked(ModelQueue(model))
    for value in range(5):
        with pytest.raises(Unavailable):
            queue.submit(rows(1, value)).result(10)
    assert queue.close(10) == 0
    assert [record.message for record in caplog.records] == ["m version 1: BadDevice: no device is left"]


@pytest.mark.parametrize(
    ("error", "refusal"),
    [
        (BadData("1-server failed: index 9 is out of range"), InferenceFailed),
        (BadDevice('device "server" is lost'), Unavailable),
        (RuntimeError("no such actor"), ServerFailed),
    ],
)
def test_on_a_cluster_only_what_a_component_says_of_its_inputs_is_the_clients_fault(
    error: Exception, refusal: type[Refusal]
) -> None:
    assert type(failed(error, on_cluster=True)) is refusal
