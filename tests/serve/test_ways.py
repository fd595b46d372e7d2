"""A model is served in the way that its workspace names, as far as the processors allow."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from taglio.cores import available_cores
from taglio.runtimes.way import Way
from taglio.serve.queue import Ran
from taglio.serve.served import open_model, opened, way_here
from tests.built import product, workspace
from tests.serve.conftest import Server
from tests.serve.test_queue import Model, queue_of, rows
from tests.serve.test_serve import ask, infer, request


@pytest.mark.parametrize(
    ("planned", "threads", "models", "cores", "here"),
    [
        (Way(1, 4, 2), None, 1, 8, Way(1, 4, 2)),
        (Way(2, 4), None, 1, 4, Way(2, 2)),
        (Way(4, 2), None, 1, 2, Way(2, 1)),
        (Way(1, 4), None, 2, 4, Way(1, 2)),
        (Way(2, 2, spinning=True), None, 4, 4, Way(1, 1)),
        (Way(1, 4), 2, 1, 4, Way(2, 2)),
        (Way(1, 4), 8, 1, 4, Way(8, 1)),
    ],
)
def test_runs_at_once_have_no_more_threads_than_there_are_processors(
    planned: Way, threads: int | None, models: int, cores: int, here: Way
) -> None:
    assert way_here(planned, threads, models, cores) == here
    assert threads is not None or models * here.used_threads <= cores


def test_a_way_of_one_run_at_a_time_changes_nothing(tmp_path: Path) -> None:
    assert way_here(Way(8, spinning=True), None, 1, 2) == Way(8, joined=8, spinning=True)
    model = open_model(workspace(tmp_path, product()), "m", "1")
    assert (model.at_once, model.way.joined) == (1, 8)
    rated = open_model(workspace(tmp_path / "rated", product(), way=Way(1, 1, 4)), "m", "1")
    assert (rated.at_once, rated.way.joined) == (1, 4)
    with opened([str(tmp_path / "rated")], batch=2) as models:
        assert [model.way.joined for model in models] == [2]


def test_as_many_runs_go_on_at_once_as_the_way_says() -> None:
    model, ran = Model(), list[Ran]()
    queue = queue_of(model, ran.append, Way(1, 2))
    model.free.set()
    queue.submit(rows(1)).result(10)
    model.free.clear()
    answers = [queue.submit(rows(1)) for _ in range(3)]
    assert not any(answer.done() for answer in answers)
    assert len(queue.queue) == 1
    model.free.set()
    assert [answer.result(10)["y"].tolist() for answer in answers] == [[[2.0, 2.0]]] * 3
    assert queue.close(10) == 0 and threading.get_ident() not in model.threads
    assert [len(batch.came_s) for batch in ran] == [1, 1, 1, 1]


def test_the_way_is_announced(serving: Callable[..., Server], tmp_path: Path) -> None:
    folder = workspace(tmp_path, product(), way=Way(1, 2, 4))
    server = serving(f"product={folder}")
    at_once = min(2, available_cores())
    assert server.models == [
        {
            "name": "product",
            "version": "1",
            "alone": "",
            "way": {"threads": 1, "at_once": at_once, "joined": 4, "spinning": False, "shared": False},
        }
    ]
    answers: list[int] = []
    callers = [threading.Thread(target=lambda: answers.append(infer(server, request())[0])) for _ in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert answers == [200] * 8 and ask(server, "/v2/health/ready")[0] == 200
