"""A machine's energy counters (RAPL): reading them, and fitting watts, idle and computing, to them under loads of
several levels. Estimates nothing: without counters the result is None."""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from taglio.errors import MeasurementFailed
from taglio.profile.speed import reference_seconds
from taglio.progress import Progress, reported

POWERCAP = Path("/sys/class/powercap")
_PACKAGE = re.compile(r"[a-z-]+-rapl:\d+")
_MICRO = 1e-6
# Shares of the time that the machine computes, each measured so many times for so many seconds.
_SHARES, _ROUNDS, _SECONDS = (0.0, 0.25, 0.5, 0.75, 1.0), 3, 2.0
# Computing and resting alternate this often.
_CYCLE_S = 0.1
# Keeps the machine busy for a share of so many seconds; returns the seconds that it was busy.
Load = Callable[[float, float], float]


@dataclass(frozen=True, slots=True)
class Power:
    """Mean watts of a machine that computed for the share `busy` of the time."""

    busy: float
    watts: float


@dataclass(frozen=True, slots=True)
class Watts:
    """The least-squares line through `measured`, at no load and at full load, and the root-mean-square distance of
    the measurements from it."""

    idle_watts: float
    active_watts: float
    residual_watts: float
    measured: tuple[Power, ...]

    def at(self, busy: float) -> float:
        """The line's watts at a share of computing."""
        return (1.0 - busy) * self.idle_watts + busy * self.active_watts


def read(folder: Path = POWERCAP) -> dict[str, tuple[float, float]] | None:
    """By processor package, joules counted so far and the value at which the counter wraps; None without readable
    counters.

    Sub-domains (cores, memory controller) are included in their package.
    """
    found = {}
    for path in sorted(folder.glob("*")):
        if not _PACKAGE.fullmatch(path.name):
            continue
        try:
            counted = int((path / "energy_uj").read_text()) * _MICRO
            end = int((path / "max_energy_range_uj").read_text()) * _MICRO
        except (OSError, ValueError):  # on most systems readable only by root
            return None
        found[path.name] = counted, end
    return found or None


def between(
    before: dict[str, tuple[float, float]] | None, after: dict[str, tuple[float, float]] | None
) -> float | None:
    """Joules between two readings, less than one wrap of each counter apart; None without counters."""
    if before is None or after is None or before.keys() != after.keys():
        return None
    total = 0.0
    for name, (first, end) in before.items():
        last = after[name][0]
        total += last - first if last >= first else last - first + end
    return total


def calibrate(
    threads: int, progress: Progress | None = None, load: Load | None = None, folder: Path = POWERCAP
) -> Watts:
    """Watts of this machine at rest and with `threads` threads computing (`load` replaces the computation).

    Raises MeasurementFailed without energy counters that can be read.
    """
    if read(folder) is None:
        raise MeasurementFailed(
            f"{folder}: no energy counters (RAPL) that can be read: run as root on a machine that has them, or write "
            "idle_watts and active_watts from its data sheet"
        )
    load = load or _computing(threads)
    found = list[Power]()
    for share in reported(_SHARES * _ROUNDS, "measuring power", progress):
        before, begun = read(folder), time.monotonic()
        busy_s = load(share, _SECONDS)
        took_s, joules = time.monotonic() - begun, between(before, read(folder))
        if joules is None:
            raise MeasurementFailed(f"{folder}: its energy counters changed meanwhile: run again")
        found.append(Power(busy_s / took_s, joules / took_s))
    return fitted(found)


def fitted(measured: Sequence[Power]) -> Watts:
    """The least-squares line through the measurements; watts are not negative."""
    busy, watts = np.array([[each.busy, each.watts] for each in measured]).T
    idle, active = np.linalg.lstsq(np.stack([1.0 - busy, busy], 1), watts)[0].clip(0.0).tolist()
    line = Watts(idle, active, 0.0, tuple(measured))
    off = [line.at(each.busy) - each.watts for each in measured]
    return replace(line, residual_watts=float(np.sqrt(np.mean(np.square(off)))))


def _computing(threads: int) -> Load:
    reference_seconds(threads, 0.0)  # opens the computation

    def load(share: float, seconds: float) -> float:
        busy_s, begun = 0.0, time.monotonic()
        while (now := time.monotonic()) - begun < seconds:
            if share > 0.0:
                reference_seconds(threads, share * _CYCLE_S)
                busy_s += time.monotonic() - now
            time.sleep(max(0.0, (1.0 - share) * _CYCLE_S))
        return busy_s

    return load
