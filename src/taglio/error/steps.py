"""A monotone link from the L2 noise of the outputs to the loss of a metric that moves in steps. Pure."""

from collections.abc import Sequence

import numpy as np


def monotone(noises: Sequence[float], losses: Sequence[float]) -> tuple[tuple[float, float], ...]:
    """Knots (noise, loss) of the isotonic regression of `losses` on `noises` (pool adjacent violators), both rising.

    Between knots the link is linear; the first knot is (0, 0), the float model.
    """
    order = np.argsort(noises, kind="stable")
    pools: list[list[float]] = []  # loss, weight, lowest noise, highest noise
    for index in order:
        pools.append([float(losses[index]), 1.0, float(noises[index]), float(noises[index])])
        while len(pools) > 1 and pools[-2][0] >= pools[-1][0]:
            loss, weight, _, high = pools.pop()
            before = pools[-1]
            before[0] = (before[0] * before[1] + loss * weight) / (before[1] + weight)
            before[1] += weight
            before[3] = high
    knots = [(0.0, 0.0)]
    for loss, _, low, high in pools:
        for noise in (low, high):
            if noise > knots[-1][0]:
                knots.append((noise, max(loss, knots[-1][1])))
    return tuple(knots)
