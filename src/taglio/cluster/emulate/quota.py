"""Control groups: a device's CPU quota and its processes. Starts no process.

Supports both versions of the kernel's interface: version 1 has been run; version 2 follows the kernel's documentation
(Documentation/admin-guide/cgroup-v2.rst) and has not been run.
"""

import os
import signal
import time
from contextlib import suppress
from math import isinf
from pathlib import Path

# The shortest period in microseconds at which the scheduler's tick (4 ms at HZ=250) keeps quotas accurate: at 5 ms a
# device already gets 15 % more than its quota, at 100 ms it pauses for 50 ms at a stretch.
PERIOD_US = 10_000
SHORTEST_QUOTA_US = 1_000  # the kernel's own limit


def hierarchy(mounts: Path = Path("/proc/mounts")) -> Path | None:
    """The folder of the writable hierarchy with the cpu controller; None if there is none."""
    for line in mounts.read_text().splitlines():
        _, place, kind, options, *_ = line.split()
        folder = Path(place)
        controllers = folder / "cgroup.controllers"
        has_cpu = (kind == "cgroup" and "cpu" in options.split(",")) or (
            kind == "cgroup2" and controllers.exists() and "cpu" in controllers.read_text().split()
        )
        if has_cpu and os.access(folder, os.W_OK):
            return folder
    return None


def create(folder: Path, group: Path) -> None:
    """Create a device's group, and those above it, below the hierarchy in `folder`. Raises OSError."""
    for name in group.relative_to(folder).parts:
        control = folder / "cgroup.subtree_control"  # only in version 2
        if control.exists() and "cpu" not in control.read_text().split():
            control.write_text("+cpu")
        folder /= name
        folder.mkdir(exist_ok=True)


def limit(folder: Path, cpus: float) -> None:
    """Limit a group to the time of `cpus` processors (infinite: no limit). Raises OSError."""
    quota_us, period_us = _quota(cpus)
    if (folder / "cpu.max").exists():
        (folder / "cpu.max").write_text(f"{'max' if quota_us < 0 else quota_us} {period_us}")
        return
    (folder / "cpu.cfs_quota_us").write_text("-1")  # the kernel refuses a period shorter than the old quota
    (folder / "cpu.cfs_period_us").write_text(str(period_us))
    (folder / "cpu.cfs_quota_us").write_text(str(quota_us))


def _quota(cpus: float) -> tuple[int, int]:
    """Quota (-1: no limit) and period in microseconds. A small share needs a longer period."""
    if isinf(cpus):
        return -1, PERIOD_US
    period_us = min(1_000_000, max(PERIOD_US, round(SHORTEST_QUOTA_US / cpus)))  # a second is the kernel's longest
    return max(SHORTEST_QUOTA_US, round(cpus * period_us)), period_us


def processes(folder: Path) -> list[int]:
    """Process ids in a group and the groups below it."""
    pids = []
    for group in _groups(folder):
        with suppress(FileNotFoundError):
            pids += [int(word) for word in (group / "cgroup.procs").read_text().split()]
    return pids


def destroy(folder: Path) -> None:
    """Kill everything in a group and remove it with the groups below it; a missing one is no error."""
    limit_end = time.monotonic() + 10.0
    while (alive := processes(folder)) and time.monotonic() < limit_end:
        for pid in alive:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    for group in reversed(_groups(folder)):
        while group.exists():
            try:
                group.rmdir()
            except OSError:  # the kernel releases a dead process a moment later
                if time.monotonic() > limit_end:
                    raise
                time.sleep(0.02)


def _groups(folder: Path) -> list[Path]:
    """A group, and the groups below it behind theirs."""
    return [folder, *sorted(path for path in folder.rglob("*") if path.is_dir())]
