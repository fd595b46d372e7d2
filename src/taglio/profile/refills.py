"""How often a model runs before it is timed, to fill the processor's caches. Times nothing.

Standard library only: the workers of `compare` import it too, in environments without taglio's packages.
"""


def refills(run_s: float) -> int:
    """The number of runs before a timed one, for a model that takes `run_s` seconds and runs after other models."""
    return min(3, int(0.04 / max(run_s, 1e-9)))
