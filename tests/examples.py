"""How many examples a property is tried with."""

import os

from hypothesis import HealthCheck, settings

FAST = bool(os.environ.get("TAGLIO_TEST_FAST"))  # set by make test-fast


def examples(count: int, *, steady: bool = True) -> settings:
    """`count` examples, or a tenth of them in `make test-fast`; the same in every run if `steady`."""
    most = max(3, count // 10) if FAST else count
    calm = settings(max_examples=most, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    return settings(calm, derandomize=True, database=None) if steady else calm
