"""Latency under requests that come at random: percentiles of few requests are left out, failures are not latencies."""

from collections.abc import Iterator
from math import inf
from pathlib import Path

import numpy as np
import pytest

from taglio.confirm.bench import Bench
from taglio.deploy.write import write_source
from taglio.errors import MeasurementFailed
from taglio.model.load import load as load_network
from taglio.ways.loaded import load_of, loaded
from tests.end_to_end.command import Case


@pytest.fixture(scope="module")
def folder(tiny: Case, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that takes a moment."""
    folder = tmp_path_factory.mktemp("source")
    write_source(folder, tiny.model, ["x"], load_network(tiny.model).outputs, 1)
    return folder


@pytest.fixture(scope="module")
def bench(folder: Path, tiny: Case) -> Iterator[Bench]:
    """A process that holds it open."""
    with Bench([{"x": np.load(tiny.data)[:1]}]) as bench:
        bench.open([folder])
        yield bench


@pytest.mark.parametrize(
    ("count", "has_p95", "has_p99"), [(999, False, False), (1000, True, False), (4999, True, False), (5000, True, True)]
)
def test_a_percentile_of_too_few_requests_is_left_out(count: int, has_p95: bool, has_p99: bool) -> None:
    load = load_of([index / count for index in range(1, count + 1)], 100.0, 0.8)
    assert load.requests == count
    assert load.p50_s == pytest.approx(0.5, abs=0.01)
    assert load.p95_s == (pytest.approx(0.95, abs=0.01) if has_p95 else None)
    assert load.p99_s == (pytest.approx(0.99, abs=0.01) if has_p99 else None)


def test_a_request_on_which_the_model_fails_has_no_latency() -> None:
    with pytest.raises(MeasurementFailed, match=r"failed on 1 of 1,001 requests"):
        load_of([0.001] * 1000 + [inf], 100.0, 0.8)


@pytest.mark.parametrize(
    ("per_s", "share", "count"), [(50.0, 0.5, 10), (400.0, 4.0, 20), (1e6, 0.01, 5000), (1.0, 0.5, 1)]
)
def test_requests_are_as_many_as_are_answered_in_time(
    bench: Bench, folder: Path, per_s: float, share: float, count: int
) -> None:
    """Four times the capacity takes four times as long to answer as to come."""
    assert loaded(bench, folder, per_s, share, 0.2).requests == count
