"""Measure how busy this machine is with the devices emulated on it. Emulates nothing.

Each device has its quota, but all of them, their engine and the links share the machine's processors: when those are
fully used, devices wait for each other, unlike separate machines.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from taglio.cluster.devices import EMULATION
from taglio.profile.busy import STAT, ticks

# On a machine that is busy for a larger share of the time, work rarely finds a free processor.
FULL = 0.9


class Load:
    """The machine's load since this object was created."""

    def __init__(self, stat: Path = STAT, environment: Mapping[str, str] = os.environ) -> None:
        self._stat = stat if EMULATION in environment else None
        self._before = _ticks(self._stat)

    def share(self) -> float | None:
        """Busy share of all processors' time; None outside an emulation, or if no time has passed."""
        (busy, every), (busy_before, every_before) = _ticks(self._stat), self._before
        return (busy - busy_before) / (every - every_before) if every > every_before else None


def crowded(share: float | None) -> str | None:
    """A warning about figures measured at this busy share; None if the machine had time left."""
    if share is None or share <= FULL:
        return None
    return (
        f"this machine's {os.cpu_count()} processors were busy for {share:.0%} of the time with the emulated devices:"
        " they waited for each other, unlike separate machines, so times and rates are worse than on real devices"
    )


def _ticks(stat: Path | None) -> tuple[int, int]:
    return (0, 0) if stat is None else ticks(stat.read_text())
