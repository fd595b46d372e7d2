"""How many examples a property is tried with."""

import os

from hypothesis import settings

FAST = bool(os.environ.get("TAGLIO_TEST_FAST"))  # set by make test-fast


def tries(count: int) -> int:
    """`count`, or a tenth of it in `make test-fast`."""
    return max(3, count // 10) if FAST else count


def examples(count: int, *, steady: bool = True) -> settings:
    """`tries(count)` examples; the same in every run if `steady`."""
    several = settings(max_examples=tries(count))
    return settings(several, derandomize=True, database=None) if steady else several
