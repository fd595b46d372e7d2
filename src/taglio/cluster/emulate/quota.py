"""Control groups: how much processor time a device has, and which processes are on it. Starts none.

Both versions of the kernel's interface: version 1 has been run; version 2 is written against the kernel's
documentation (Documentation/admin-guide/cgroup-v2.rst) and has not been run.
"""

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from math import isinf
from pathlib import Path

# The shortest period that the scheduler's tick (4 ms at HZ=250) leaves even: at 5 ms it already takes 15 % more than
# the quota says, at 100 ms a device stands still for 50 ms in one piece. In microseconds.
PERIOD_US = 10_000
SHORTEST_QUOTA_US = 1_000  # the kernel's own limit
LONGEST_PERIOD_US = 1_000_000
PATIENCE_S = 10.0


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """Where groups with the cpu controller are made."""

    version: int
    folder: Path


def hierarchy(mounts: Path = Path("/proc/mounts")) -> Hierarchy | None:
    """The hierarchy that has the cpu controller and can be written; None without one."""
    for line in mounts.read_text().splitlines():
        _, place, kind, options, *_ = line.split()
        folder = Path(place)
        if kind == "cgroup" and "cpu" in options.split(",") and os.access(folder, os.W_OK):
            return Hierarchy(1, folder)
        if kind == "cgroup2" and os.access(folder, os.W_OK):
            controllers = folder / "cgroup.controllers"
            if controllers.exists() and "cpu" in controllers.read_text().split():
                return Hierarchy(2, folder)
    return None


def create(place: Hierarchy, names: tuple[str, ...]) -> Path:
    """The group of a device: nested folders `names` below the hierarchy. Raises OSError."""
    folder = place.folder
    for name in names:
        if place.version == 2 and "cpu" not in (folder / "cgroup.subtree_control").read_text().split():
            (folder / "cgroup.subtree_control").write_text("+cpu")
        folder /= name
        folder.mkdir(exist_ok=True)
    return folder


def limit(folder: Path, cpus: float) -> None:
    """Let a group use `cpus` processors' time, infinite for all there is. Raises OSError."""
    quota_us, period_us = _quota(cpus)
    if (folder / "cpu.max").exists():
        (folder / "cpu.max").write_text(f"{'max' if quota_us < 0 else quota_us} {period_us}")
        return
    (folder / "cpu.cfs_quota_us").write_text("-1")  # a period shorter than the old quota would be refused
    (folder / "cpu.cfs_period_us").write_text(str(period_us))
    (folder / "cpu.cfs_quota_us").write_text(str(quota_us))


def _quota(cpus: float) -> tuple[int, int]:
    """Microseconds of quota (-1: no limit) and of its period. A small share takes a longer period."""
    if isinf(cpus):
        return -1, PERIOD_US
    period_us = min(LONGEST_PERIOD_US, max(PERIOD_US, round(SHORTEST_QUOTA_US / cpus)))
    return max(SHORTEST_QUOTA_US, round(cpus * period_us)), period_us


def processes(folder: Path) -> list[int]:
    """Process ids in a group and the groups below it."""
    found = []
    for each in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
        try:
            found += [int(word) for word in (each / "cgroup.procs").read_text().split()]
        except FileNotFoundError:
            continue
    return found


def destroy(folder: Path) -> None:
    """Kill everything in a group and remove it with the groups below it; one that is gone is no error."""
    limit_end = time.monotonic() + PATIENCE_S
    while (alive := processes(folder)) and time.monotonic() < limit_end:
        for pid in alive:
            _quietly(partial(os.kill, pid, signal.SIGKILL))
        time.sleep(0.02)
    for each in _deepest_first(folder):
        while True:
            try:
                each.rmdir()
                break
            except FileNotFoundError:
                break
            except OSError:  # the kernel lets go of a dead process a moment later
                if time.monotonic() > limit_end:
                    raise
                time.sleep(0.02)


def _deepest_first(folder: Path) -> Iterator[Path]:
    below = sorted((path for path in folder.rglob("*") if path.is_dir()), key=lambda path: -len(path.parts))
    yield from below
    yield folder


def _quietly(action: partial[None]) -> None:
    try:
        action()
    except ProcessLookupError:
        return
