"""Whether other programs took processors away while something was timed, and what that makes of the figures.

The kernel counts what every processor worked; what this process did not use of it was used by others, or stolen by the
host of a virtual machine. Rounds of a measurement fall into windows long enough for the kernel's ticks; those of
disturbed windows are measured again, as long as there is time, and left out.
"""

import os
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from taglio.profile.quota import quota

STAT = Path("/proc/stat")
# Others may have this share of the processors: no machine is ever quite alone.
QUIET = 0.1
# Of the speed of the reference computation, between the ends of the middle half of its looks.
STEADY = 0.25
# The kernel counts in hundredths of a second.
WINDOW_S = 0.25
# How many times as many rounds are measured, at most, where some were disturbed.
PATIENCE = 2
# Of the lines of /proc/stat (proc(5)): ticks until and with those stolen by the host, idle and waiting for a disk.
_ALL, _IDLE, _WAITING = 8, 3, 4


@dataclass(frozen=True, slots=True)
class Window:
    """Rounds from `begin` up to `end`, and the share of the processors that others had meanwhile."""

    begin: int
    end: int
    others: float


def ticks(text: str, processors: Collection[int] | None = None) -> tuple[int, int]:
    """Ticks that were worked or stolen, and all, of these processors (None: of the machine), by /proc/stat's `text`."""
    names = {"cpu"} if processors is None else {f"cpu{each}" for each in processors}
    worked = every = 0
    for line in text.splitlines():
        name, *rest = line.split()
        if name in names:
            found = [int(each) for each in rest[:_ALL]]
            worked += sum(found) - found[_IDLE] - found[_WAITING]
            every += sum(found)
    return worked, every


def others_share(worked: float, own: float, every: float) -> float:
    """The share of processor time `every` that was worked, but not by us; 0 where no time has passed."""
    return min(1.0, max(0.0, (worked - own) / every)) if every > 0 else 0.0


def kept(windows: Sequence[Window], least: int) -> list[int]:
    """Rounds that count: of quiet windows, and where these are fewer than `least`, of the quietest others."""
    rounds: list[int] = []
    for each in sorted(windows, key=lambda window: window.others):
        if each.others > QUIET and len(rounds) >= least:
            break
        rounds += range(each.begin, each.end)
    return sorted(rounds)


def enough(windows: Sequence[Window], wanted: int) -> bool:
    """Whether to measure no more rounds: so many are quiet, or patience is at its end."""
    quiet = sum(each.end - each.begin for each in windows if each.others <= QUIET)
    return quiet >= wanted or sum(each.end - each.begin for each in windows) >= PATIENCE * wanted


def others_in(windows: Sequence[Window], rounds: Collection[int]) -> float:
    """The share that others had, in the mean over these rounds."""
    shares = [each.others for each in windows for index in range(each.begin, each.end) if index in rounds]
    return sum(shares) / len(shares) if shares else 0.0


def faster(one_s: Sequence[float], other_s: Sequence[float], by: float) -> bool:
    """Whether the first is faster by the factor `by` in the median of rounds that ran both, and would be faster in 19
    of 20 such measurements: by order statistics, the median's lower confidence limit (binomial) is above 1."""
    ratios = sorted(other / one for one, other in zip(one_s, other_s, strict=True))
    count = len(ratios)
    lower = ratios[max(0, int(0.5 * count - 0.82 * count**0.5))]
    return lower > 1.0 and ratios[count // 2] > by


def doubt(others: float, reference_half_s: tuple[float, float] | None = None) -> str | None:
    """What to say of figures taken while others had this share of the processors, and a fixed computation took what its
    middle half says; None on a quiet machine. A program that gets a share of the time takes as many times as long."""
    low, high = reference_half_s or (1.0, 1.0)
    varied = high / low - 1.0
    if others <= QUIET and varied <= STEADY:
        return None
    off = max(1.0 / (1.0 - min(others, 0.9)) - 1.0, varied)
    why = (
        f"other programs had {others:.0%} of its processors"
        if others > QUIET
        else f"its speed varied by {varied:.0%}, by a fixed computation"
    )
    return (
        f"the machine was busy while models were timed ({why}): seconds may be off by up to {off:.0%}; run again when "
        "it is quiet"
    )


class Watch:
    """Follows rounds as they are measured."""

    def __init__(self, read: Callable[[], tuple[float, float, float]] | None = None) -> None:
        self._read = read or _reader()
        self.windows: list[Window] = []
        self._begin, self._last = 0, self._read()
        self._since_s = time.perf_counter()

    def look(self, done: int, *, last: bool = False) -> None:
        """After `done` rounds: close the window where it is long enough, or nothing follows."""
        now_s = time.perf_counter()
        if done > self._begin and (last or now_s - self._since_s >= WINDOW_S):
            found = self._read()
            worked, own, every = (after - before for after, before in zip(found, self._last, strict=True))
            # What is left over at the end may be too short for the kernel's ticks.
            short = now_s - self._since_s < WINDOW_S and self.windows
            others = self.windows[-1].others if short else others_share(worked, own, every)
            self.windows.append(Window(self._begin, done, others))
            self._begin, self._last, self._since_s = done, found, now_s


def _reader() -> Callable[[], tuple[float, float, float]]:
    """Seconds of processors that were worked by all, worked by this process, and that there were.

    Nothing where the kernel does not say, or this process has a quota: that pauses it whatever others do.
    """
    if not hasattr(os, "sched_getaffinity") or not STAT.exists():
        return lambda: (0.0, 0.0, 0.0)
    processors, hertz = os.sched_getaffinity(0), os.sysconf("SC_CLK_TCK")
    if quota().share < len(processors):
        return lambda: (0.0, 0.0, 0.0)

    def read() -> tuple[float, float, float]:
        worked, every = ticks(STAT.read_text(), processors)
        return worked / hertz, time.process_time(), every / hertz

    return read
