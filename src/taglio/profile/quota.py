"""The processor quota that this process is under, as its control groups say: a container's, or taglio emulate's."""

from collections.abc import Iterator
from math import inf
from pathlib import Path


def quota_s(root: Path = Path("/")) -> float:
    """Seconds of processors after which all threads pause until a period ends; infinite without a quota. Of nested
    groups that of the least share counts. `root` has proc and what is mounted."""
    try:
        shares = [(used / period, used) for used, period in _quotas(root)]
    except (OSError, ValueError):  # another system than Linux, or a kernel that says it otherwise
        return inf
    return min(shares, default=(inf, inf))[1]


def _quotas(root: Path) -> Iterator[tuple[float, float]]:
    """Quota and period in seconds of this process's group, and of those that it is nested in."""
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
                    yield int(used) * 1e-6, int(period) * 1e-6
            elif folder.is_relative_to(mount) and (folder / "cpu.cfs_quota_us").exists():
                used, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
                if int(used) > 0:
                    yield int(used) * 1e-6, int(period) * 1e-6
