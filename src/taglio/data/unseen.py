"""Keep a third of the held-out inputs from everything that selects a plan. Decides by digests alone."""

from collections.abc import Hashable, Sequence
from dataclasses import replace

from taglio.data.dataset import Split, part

# Distinct held-out inputs from which a third is kept: eight at least are then unseen, and sixteen are searched on.
FEWEST = 24


def unseen_rows(held_out: Sequence[Hashable], calibration: Sequence[Hashable]) -> list[int]:
    """The rows of the held-out inputs to keep unseen: a third, or none.

    Both are digests of inputs. 1. Inputs that repeat each other stay on one side. 2. An input that also calibrates is
    not unseen. 3. Fewer than `FEWEST` distinct inputs stay together. 4. Every third is kept, so that data in the order
    of a folder are spread over both sides.
    """
    calibrated = set(calibration)
    fresh = [digest for digest in dict.fromkeys(held_out) if digest not in calibrated]
    if len(fresh) < FEWEST:
        return []
    unseen_digests = set(fresh[2::3])
    return [row for row, digest in enumerate(held_out) if digest in unseen_digests]


def with_unseen(data: Split, fewest_samples: int = 1) -> Split:
    """`data` with a third of the held-out inputs as `unseen`; as it is where there are too few, or where one side would
    have fewer than the `fewest_samples` that the metric needs."""
    held_out = data.held_out
    rows = unseen_rows(held_out.digests, data.calibration.digests)
    other_rows = sorted(set(range(len(held_out.digests))) - set(rows))
    if not rows or min(len(rows), len(other_rows)) < fewest_samples:
        return data
    return replace(data, held_out=part(held_out, other_rows), unseen=replace(part(held_out, rows), notes=()))
