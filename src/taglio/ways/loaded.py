"""Measure the latency of a delivered model while requests come at random. Chooses no rate and judges none."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from taglio.confirm.bench import Bench
from taglio.errors import MeasurementFailed
from taglio.ways.result import Load

# The least number of requests for which a percentile is given: fifty of them are slower than it. At most `P99_REQUESTS`
# are sent.
P95_REQUESTS, P99_REQUESTS = 1000, 5000


def loaded(bench: Bench, folder: Path, per_s: float, share: float, seconds: float) -> Load:
    """The latency under requests that arrive at random, `per_s` on average, which is a `share` of the capacity. `bench`
    holds `folder` open. As many requests are sent as are answered within `seconds`, from one to P99_REQUESTS. At a
    share of 1 or more the queue grows as long as requests arrive, so latencies depend on the number of requests.

    Raises MeasurementFailed if the model fails on a request.
    """
    count = max(1, min(P99_REQUESTS, int(seconds * per_s / max(1.0, share))))
    return load_of(bench.open_loop(folder, per_s, count), per_s, share)


def load_of(latencies_s: Sequence[float], per_s: float, share: float) -> Load:
    """The percentiles of latencies; None for those that need more requests. Raises MeasurementFailed for an infinite
    latency, which is that of a request on which the model failed."""
    values, count = np.asarray(latencies_s), len(latencies_s)
    failed = count - int(np.isfinite(values).sum())
    if failed:
        raise MeasurementFailed(f"the model failed on {failed} of {count:,} requests: run taglio check to see why")
    p50_s, p95_s, p99_s = (float(value) for value in np.percentile(values, [50, 95, 99]))
    return Load(
        share=share,
        per_s=per_s,
        requests=count,
        p50_s=p50_s,
        p95_s=p95_s if count >= P95_REQUESTS else None,
        p99_s=p99_s if count >= P99_REQUESTS else None,
    )
