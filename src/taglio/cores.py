"""The processors that this process may use. Measures nothing.

Its affinity limits them, and the quota of its control groups (a container's, or that of taglio cluster emulate).
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from numbers import Integral
from pathlib import Path

from taglio.errors import BadOption, plural


@dataclass(frozen=True, slots=True)
class Quota:
    """`used_s` processor seconds in each period of `period_s` seconds; then all threads pause until the period ends."""

    used_s: float = inf
    period_s: float = inf

    @property
    def share(self) -> float:
        """The quota in processors; infinite without one."""
        return self.used_s / self.period_s if self.used_s < inf else inf


def available_cores(root: Path = Path("/")) -> int:
    """Cores that this process may use: those of its affinity, at most its quota, rounded down, and at least one. More
    threads than the quota allows would use it up early in each period, and then all pause until the next."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share = quota(root).share
    return affinity if share >= affinity else max(1, int(round(share, 3)))  # 0.3 s of 0.1 s is 2.9999999999999996


@contextmanager
def limited_to(cpus: int | None) -> Iterator[None]:
    """Let this process and its children use only `cpus` of its processors (None: all). Raises BadOption for more than
    there are, for what is no whole number, and if the system cannot limit a process."""
    if cpus is None:
        yield
        return
    if not isinstance(cpus, Integral):
        raise BadOption(f"`cpus` is {cpus!r}: give a whole number")
    if not 1 <= cpus <= available_cores():
        raise BadOption(f"`cpus` is {cpus}, but this process may use {plural(available_cores(), 'core')}: give fewer")
    if not hasattr(os, "sched_setaffinity"):
        raise BadOption("`cpus` needs Linux: leave it out, or give `threads`")
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:cpus])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def quota(root: Path = Path("/")) -> Quota:
    """The smallest quota of this process's nested groups; no quota if they cannot be read. `root` is the folder that
    holds proc and the mounted control groups."""
    try:
        return min(_quotas(root), key=lambda limit: limit.share, default=Quota())
    except (OSError, ValueError):  # not Linux, or a kernel with another format
        return Quota()


def _quotas(root: Path) -> Iterator[Quota]:
    """The quotas of this process's group and of all groups around it."""
    paths = {}
    for line in (root / "proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        paths.update(dict.fromkeys(controllers.split(","), path))
    for line in (root / "proc/mounts").read_text().splitlines():
        _, place, kind, options, *_ = line.split()
        controller = "cpu" if kind == "cgroup" and "cpu" in options.split(",") else ""
        if controller not in paths or (not controller and kind != "cgroup2"):
            continue
        mount = root / place.lstrip("/")
        group = mount / paths[controller].lstrip("/")
        for folder in (group, *group.parents):
            if folder.is_relative_to(mount) and (folder / "cpu.max").exists():
                used, period = (folder / "cpu.max").read_text().split()
                if used != "max":
                    yield Quota(int(used) * 1e-6, int(period) * 1e-6)
            elif folder.is_relative_to(mount) and (folder / "cpu.cfs_quota_us").exists():
                used, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
                if int(used) > 0:
                    yield Quota(int(used) * 1e-6, int(period) * 1e-6)
