"""The latency of requests that arrive at random, by replaying arrivals over measured runs. Measures nothing."""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from taglio.runtimes.way import Way

# The share of the limit on latency within which 19 of 20 requests must be answered, and the percentile that this is.
KEPT, PERCENTILE = 0.9, 95.0


@dataclass(frozen=True, slots=True, eq=False)
class ServiceTimes:
    """The seconds of runs by the number of items joined in them, measured with as many runs at once as the way has."""

    runs: Mapping[int, Sequence[float]]

    def median_s(self, items: int) -> float:
        """The median seconds of a run of `items`, interpolated linearly between the sizes that were measured."""
        sizes = sorted(self.runs)
        return float(np.interp(items, sizes, [np.median(self.runs[size]) for size in sizes]))


def waits(service: ServiceTimes, way: Way, per_s: float, seed: int = 0, requests: int = 4000) -> np.ndarray:
    """Seconds from arrival to answer, one for each of `requests` that arrive at random, `per_s` on average. A free run
    takes the requests that have arrived, at most `way.joined` of them, or waits for the next one. With 4,000 requests
    the 95th percentile is known to about 3 %."""
    draw = np.random.default_rng(seed)
    # Lists, since NumPy takes ten times as long to read one element.
    arrivals_s = (np.cumsum(draw.exponential(1.0, requests)) / per_s).tolist()
    sizes = sorted(service.runs)
    draws, medians = draw.random(requests).tolist(), [service.median_s(items) for items in range(way.joined + 1)]
    scaled = {size: (np.asarray(service.runs[size]) / np.median(service.runs[size])).tolist() for size in sizes}
    spread = [scaled[next((size for size in sizes if size >= items), sizes[-1])] for items in range(way.joined + 1)]
    free, latencies_s, first = [0.0] * way.at_once, list[float](), 0
    while first < requests:
        start, after = max(heapq.heappop(free), arrivals_s[first]), first + 1
        while after < requests and after - first < way.joined and arrivals_s[after] <= start:
            after += 1
        items = after - first
        end = start + medians[items] * spread[items][int(draws[first] * len(spread[items]))]
        latencies_s += [end - arrival_s for arrival_s in arrivals_s[first:after]]
        heapq.heappush(free, end)
        first = after
    return np.asarray(latencies_s)


def highest_rate(service: ServiceTimes, way: Way, limit_s: float, seed: int = 0) -> float:
    """The highest rate of requests that arrive at random at which 19 of 20 are answered within 0.9 of `limit_s`; 0 if
    no rate keeps the limit."""
    most_s = KEPT * limit_s

    def keeps(per_s: float) -> bool:
        return float(np.percentile(waits(service, way, per_s, seed), PERCENTILE)) <= most_s

    high = way.at_once * max(size / service.median_s(size) for size in service.runs)
    low = high / 1000.0
    if not keeps(low):
        return 0.0
    while high / low > 1.005:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return low
