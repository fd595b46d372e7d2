"""How busy this machine is with all the devices that are emulated on it. Emulates nothing.

Each device has its quota, but all of them, their engine and the links share the machine's processors: where those have
no time left, devices wait for each other as machines of their own would not.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from taglio.cluster.devices import EMULATION
from taglio.profile.busy import STAT, ticks

# A machine that is busy for longer has hardly a moment in which whoever wants to work finds a processor free.
FULL = 0.9


class Load:
    """From when it is made on."""

    def __init__(self, stat: Path = STAT, environment: Mapping[str, str] = os.environ) -> None:
        self._stat = stat if EMULATION in environment else None
        self._before = _ticks(self._stat)

    def share(self) -> float | None:
        """Of the time of all processors, what was worked; None outside an emulation, or where no time has passed."""
        (busy, every), (busy_before, every_before) = _ticks(self._stat), self._before
        return (busy - busy_before) / (every - every_before) if every > every_before else None


def crowded(share: float | None) -> str | None:
    """What to say of figures that were taken while the machine was so busy; None where it had time left."""
    if share is None or share <= FULL:
        return None
    return (
        f"this machine's {os.cpu_count()} processors were busy for {share:.0%} of the time with all that is emulated on"
        " it: devices waited for each other, as machines of their own would not, and times and rates are worse for it"
    )


def _ticks(stat: Path | None) -> tuple[int, int]:
    return (0, 0) if stat is None else ticks(stat.read_text())
