"""The replay of arrivals, beside formulas of queueing theory and a calculation by hand."""

import heapq

import numpy as np
import pytest

from taglio.runtimes.way import Way
from taglio.ways.replay import KEPT, PERCENTILE, ServiceTimes, highest_rate, waits

FIXED = ServiceTimes({1: [0.01]})


def test_the_mean_of_one_server_with_fixed_runs_is_that_of_the_formula() -> None:
    # Pollaczek and Khinchine: waiting = load · run / (2 · (1 − load)).
    took = waits(FIXED, Way(1, 1), 70.0, seed=3, requests=200_000)
    assert float(np.mean(took)) == pytest.approx(0.01 + 0.7 * 0.01 / (2.0 * 0.3), rel=0.03)


def test_the_mean_of_two_servers_with_exponential_runs_is_erlangs() -> None:
    runs = np.random.default_rng(0).exponential(0.01, 20_000).tolist()
    took = waits(ServiceTimes({1: runs}), Way(1, 2), 140.0, seed=1, requests=200_000)
    load = 140.0 * float(np.mean(runs)) / 2.0
    waiting = 2.0 * load**2 / (1.0 + load) / (2.0 / float(np.mean(runs)) * (1.0 - load))  # Erlang C for two servers
    assert float(np.mean(took)) == pytest.approx(float(np.mean(runs)) + waiting, rel=0.04)


def test_joined_requests_wait_as_an_event_by_event_calculation_says() -> None:
    way, runs = Way(1, 2, joined=4), {1: 0.010, 2: 0.013, 4: 0.020}
    service = ServiceTimes({items: [seconds] for items, seconds in runs.items()})
    took = waits(service, way, 220.0, seed=5, requests=3000)
    came = np.cumsum(np.random.default_rng(5).exponential(1.0, 3000)) / 220.0
    events, free, waiting, expected = [(at, 0, index) for index, at in enumerate(came)], 2, list[int](), np.zeros(3000)
    heapq.heapify(events)
    while events:
        now, kind, index = heapq.heappop(events)
        free, waiting = (free + 1, waiting) if kind else (free, [*waiting, index])
        while free and waiting:
            batch, waiting = waiting[:4], waiting[4:]
            end = now + {1: 0.010, 2: 0.013, 3: 0.0165, 4: 0.020}[len(batch)]
            expected[batch] = end - came[batch]
            free -= 1
            heapq.heappush(events, (end, 1, -1))
    assert took == pytest.approx(expected, abs=1e-12)


def test_the_highest_rate_is_where_the_limit_is_reached() -> None:
    rate = highest_rate(FIXED, Way(1, 2), 0.05)
    latencies = [float(np.percentile(waits(FIXED, Way(1, 2), rate * factor), PERCENTILE)) for factor in (1.0, 1.03)]
    assert latencies[0] <= KEPT * 0.05 < latencies[1]


def test_a_limit_below_a_single_run_allows_nothing() -> None:
    assert highest_rate(FIXED, Way(1, 2), 0.005) == 0.0


def test_between_measured_sizes_a_run_takes_what_lies_on_the_line() -> None:
    service = ServiceTimes({1: [1.0, 2.0, 3.0], 4: [8.0]})
    assert [service.median_s(items) for items in (1, 2, 4)] == [2.0, 4.0, 8.0]
