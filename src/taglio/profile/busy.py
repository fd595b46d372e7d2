"""Detect other programs' use of the processors during a measurement, and how far it puts figures in doubt.

The operating system counts the busy time of every processor; what this process did not use was used by others, or
stolen by the host of a virtual machine.
"""

import os
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from taglio.cores import quota

STAT = Path("/proc/stat")
# Others may use this share of the processors: no machine is ever completely idle.
QUIET = 0.1


def ticks(text: str, processors: Collection[int] | None = None) -> tuple[int, int]:
    """Busy or stolen ticks, and all ticks, of these processors (None: of the machine), from `text` of /proc/stat."""
    names = {"cpu"} if processors is None else {f"cpu{processor}" for processor in processors}
    busy = total = 0
    for line in text.splitlines():
        name, *rest = line.split()
        if name in names:
            counts = [int(count) for count in rest[:8]]  # up to ticks stolen by the host (proc(5))
            idle, waiting_for_disk = counts[3:5]
            busy += sum(counts) - idle - waiting_for_disk
            total += sum(counts)
    return busy, total


def others_share(busy: float, own: float, total: float) -> float:
    """The share of all processor time `total` that was busy, but not by this process; 0 if no time has passed."""
    return min(1.0, max(0.0, (busy - own) / total)) if total > 0 else 0.0


def quietest(shares: Sequence[float], least: int) -> list[int]:
    """The turns that count, by the `shares` that others used meanwhile: the quiet ones, and if those are fewer than
    `least`, the next quietest."""
    order = sorted(range(len(shares)), key=lambda turn: shares[turn])
    return sorted(order[: max(least, sum(share <= QUIET for share in shares))])


def doubt(others: float) -> str | None:
    """One line of doubt about figures if other programs used too large a share `others` of the processors, or None. A
    program that gets a share s of the time takes 1/s times as long."""
    if others <= QUIET:
        return None
    off = 1.0 / (1.0 - min(others, 0.9)) - 1.0
    return (
        f"the machine was busy while models were timed (other programs used {others:.0%} of its processors): times may "
        f"be off by up to {off:.0%}; run again when it is quiet"
    )


class BusyWatch:
    """Notes the `shares` of the processors that other programs used, turn after turn."""

    def __init__(
        self,
        read: Callable[[], tuple[float, float, float]] | None = None,
        child_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`child_s` returns the processor seconds of a child process, which are no other program's."""
        self._read = read or _reader(child_s)
        self.shares: list[float] = []
        self._last = self._read()

    def look(self) -> float:
        """Call at the end of a turn: the share that others used in it."""
        reading = self._read()
        self.shares.append(others_share(*(after - before for after, before in zip(reading, self._last, strict=True))))
        self._last = reading
        return self.shares[-1]


def _reader(child_s: Callable[[], float]) -> Callable[[], tuple[float, float, float]]:
    """A function that returns processor seconds: busy, busy for this process and its child, and in total.

    All are 0 if the system does not report them, or if this process has a quota, which pauses it whatever others do.
    """
    if not hasattr(os, "sched_getaffinity") or not STAT.exists():
        return lambda: (0.0, 0.0, 0.0)
    processors, hertz = os.sched_getaffinity(0), os.sysconf("SC_CLK_TCK")
    if quota().share < len(processors):
        return lambda: (0.0, 0.0, 0.0)

    def read() -> tuple[float, float, float]:
        busy, total = ticks(STAT.read_text(), processors)
        return busy / hertz, time.process_time() + child_s(), total / hertz

    return read
