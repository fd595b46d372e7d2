"""Detect other programs' use of the processors during a measurement, and how far it puts figures in doubt.

The operating system counts the busy time of every processor; what this process did not use was used by others, or
stolen by the host of a virtual machine. Rounds of a measurement are grouped into windows long enough for the system's
ticks. Rounds in disturbed windows are left out and measured again, up to a limit.
"""

import os
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from taglio.cores import quota

STAT = Path("/proc/stat")
# Others may use this share of the processors: no machine is ever completely idle.
QUIET = 0.1
# The system counts in hundredths of a second.
WINDOW_S = 0.25
# If some rounds were disturbed, at most this many times as many rounds are measured.
PATIENCE = 2


@dataclass(frozen=True, slots=True)
class Window:
    """Rounds `begin` to `end` (exclusive), and the share of the processors that other programs used meanwhile."""

    begin: int
    end: int
    others: float


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


def kept(windows: Sequence[Window], least: int) -> list[int]:
    """The rounds that count: those in quiet windows, and if fewer than `least`, those in the next quietest."""
    rounds: list[int] = []
    for window in sorted(windows, key=attrgetter("others")):
        if window.others > QUIET and len(rounds) >= least:
            break
        rounds += range(window.begin, window.end)
    return sorted(rounds)


def enough(windows: Sequence[Window], wanted: int) -> bool:
    """Whether to stop: `wanted` rounds are quiet, or `PATIENCE` times as many are measured."""
    quiet = sum(window.end - window.begin for window in windows if window.others <= QUIET)
    return quiet >= wanted or sum(window.end - window.begin for window in windows) >= PATIENCE * wanted


def others_in(windows: Sequence[Window], rounds: Collection[int]) -> float:
    """The mean share of the processors that others used in these rounds."""
    shares = [window.others for window in windows for index in range(window.begin, window.end) if index in rounds]
    return sum(shares) / len(shares) if shares else 0.0


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
    """Groups rounds into windows as they are measured, with the share that others used in each."""

    def __init__(
        self,
        read: Callable[[], tuple[float, float, float]] | None = None,
        child_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`child_s` returns the processor seconds of a child process, which are no other program's."""
        self._read = read or _reader(child_s)
        self.windows: list[Window] = []
        self._begin, self._last = 0, self._read()
        self._since_s = time.perf_counter()

    def look(self, done: int, *, last: bool = False) -> None:
        """Call after `done` rounds: closes the window if it is long enough, or if this was the `last` round."""
        now_s = time.perf_counter()
        if done > self._begin and (last or now_s - self._since_s >= WINDOW_S):
            reading = self._read()
            busy, own, total = (after - before for after, before in zip(reading, self._last, strict=True))
            # The last window may be too short for the system's ticks.
            short = now_s - self._since_s < WINDOW_S and self.windows
            share = self.windows[-1].others if short else others_share(busy, own, total)
            self.windows.append(Window(self._begin, done, share))
            self._begin, self._last, self._since_s = done, reading, now_s


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
