"""Measure how busy this machine is with the devices emulated on it. Emulates nothing.

Each device has its quota, but all of them, their engine and the links share the machine's processors: when those are
fully used, devices wait for each other, unlike separate machines.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from taglio.cluster.devices import EMULATION
from taglio.profile.busy import STAT, ticks

# On a machine that is busy for a larger share of the time, work rarely finds a free processor.
FULL = 0.9


def busy_from_now(stat: Path = STAT, environment: Mapping[str, str] = os.environ) -> Callable[[], float | None]:
    """A function that gives the busy share of all processors' time from now to its call; None outside an emulation, or
    if no time has passed."""
    if EMULATION not in environment:
        return lambda: None
    before = ticks(stat.read_text())

    def share() -> float | None:
        busy, every = (now - then for now, then in zip(ticks(stat.read_text()), before, strict=True))
        return busy / every if every > 0 else None

    return share


def crowded(share: float | None) -> str | None:
    """A warning about figures measured at this busy share; None if the machine had time left."""
    if share is None or share <= FULL:
        return None
    return (
        f"this machine's {os.cpu_count()} processors were busy for {share:.0%} of the time with the emulated devices:"
        " they waited for each other, unlike separate machines, so times and rates are worse than on real devices"
    )
