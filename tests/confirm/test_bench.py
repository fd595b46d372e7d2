"""Real loads on a delivered folder: the embedded digits model and small graphs, in a process without taglio."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from taglio.confirm.bench import Bench
from taglio.deploy import verify
from taglio.deploy.write import write_in_way, write_source
from taglio.errors import MeasurementFailed
from taglio.runtimes.way import Way
from tests.models import parsed


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A delivered product of matrices with any number of rows."""
    folder = tmp_path_factory.mktemp("source")
    weights = np.random.default_rng(0).normal(size=(64, 64))
    model = parsed("(float[rows, 64] x) => (float[rows, 64] y) { y = MatMul (x, w) }", {"w": weights})
    write_source(folder, model, ["x"], ["y"], 1)
    return folder


@pytest.fixture
def bench() -> Iterator[Bench]:
    rows = np.random.default_rng(1).normal(size=(5, 1, 64)).astype(np.float32)
    with Bench([{"x": row} for row in rows]) as bench:
        yield bench


def in_way(source: Path, folder: Path, way: Way) -> Path:
    write_in_way(folder, source, way)
    return folder


def test_callers_answer_each_request_as_it_is_answered_alone(source: Path, tmp_path: Path) -> None:
    folder = in_way(source, tmp_path / "joined", Way(1, 2, joined=4))
    alone = verify.DeployedModel(source)
    requests = [
        {"x": np.random.default_rng(seed).normal(size=(1 + seed % 3, 64)).astype(np.float32)} for seed in range(40)
    ]
    with verify.Callers(folder) as callers:
        answers = [callers.submit(request) for request in requests]
    for request, answer in zip(requests, answers, strict=True):
        expected = alone.run(request)["y"]
        assert answer.result()["y"].shape == expected.shape
        assert answer.result()["y"] == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_a_bad_request_fails_and_the_next_is_answered(source: Path, tmp_path: Path) -> None:
    with verify.Callers(in_way(source, tmp_path / "way", Way(1, 2))) as callers:
        bad = callers.submit({"x": np.zeros((1, 3), np.float32)})
        assert bad.exception() is not None
        assert callers.submit({"x": np.zeros((1, 64), np.float32)}).result()["y"].shape == (1, 64)
    with pytest.raises(RuntimeError, match="closed"):
        callers.submit({"x": np.zeros((1, 64), np.float32)})


def test_several_threads_a_run_have_sessions_of_their_own(source: Path, tmp_path: Path) -> None:
    feed = {"x": np.ones((1, 64), np.float32)}
    answers = [
        verify.DeployedModel(in_way(source, tmp_path / str(way), way)).run(feed)["y"]
        for way in (Way(2, 2), Way(2, 2, shared=True), Way(1, 3))
    ]
    assert all(answer == pytest.approx(answers[0], rel=1e-5) for answer in answers)


def test_bursts_count_items_and_not_runs(bench: Bench, source: Path, tmp_path: Path) -> None:
    folders = [in_way(source, tmp_path / "one", Way(1)), in_way(source, tmp_path / "eight", Way(1, joined=8))]
    assert len(bench.open(folders)) == 2
    one, eight = bench.closed_loop(folders, 0.05, 2)
    assert [len(one), len(eight)] == [2, 2]
    for bursts, joined in ((one, 1), (eight, 8)):
        for burst in bursts:
            assert burst.per_s == pytest.approx(joined * len(burst.runs) / sum(burst.runs), rel=1e-6)


def test_an_open_loop_times_requests_from_their_arrival(bench: Bench, source: Path, tmp_path: Path) -> None:
    folder = in_way(source, tmp_path / "way", Way(1, 2, joined=4))
    bench.open([folder])
    latencies = bench.open_loop(folder, 2000.0, 200)
    assert len(latencies) == 200
    assert 0.0 < min(latencies) < max(latencies) < 5.0


def test_what_cannot_be_opened_is_said_and_the_process_goes_on(bench: Bench, source: Path, tmp_path: Path) -> None:
    broken = in_way(source, tmp_path / "broken", Way(1))
    (broken / "session.json").write_text("{}")
    with pytest.raises(MeasurementFailed, match="KeyError"):
        bench.open([broken])
    bench.open([source])
    bench.close()
    bench.open([source])
    assert bench.closed_loop([source], 0.02, 1)[0][0].per_s > 0.0
