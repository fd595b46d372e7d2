"""The processor quota that this process is under, as its control groups say: a container's, or taglio emulate's."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Quota:
    """Seconds of processors in each period of so many seconds, after which all threads pause until it ends."""

    used_s: float = inf
    period_s: float = inf

    @property
    def share(self) -> float:
        """Of processors; infinite without a quota."""
        return self.used_s / self.period_s if self.used_s < inf else inf


def quota(root: Path = Path("/")) -> Quota:
    """Of nested groups that of the least share. `root` has proc and what is mounted."""
    try:
        return min(_quotas(root), key=lambda each: each.share, default=Quota())
    except (OSError, ValueError):  # another system than Linux, or a kernel that says it otherwise
        return Quota()


def _quotas(root: Path) -> Iterator[Quota]:
    """Of this process's group, and of those that it is nested in."""
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
