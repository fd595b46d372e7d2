"""Read a machine's energy counters (RAPL). Estimates nothing: without counters the result is None."""

import re
from pathlib import Path

POWERCAP = Path("/sys/class/powercap")
_PACKAGE = re.compile(r"[a-z-]+-rapl:\d+")
_MICRO = 1e-6


def read(folder: Path = POWERCAP) -> dict[str, tuple[float, float]] | None:
    """By processor package, joules counted so far and the value at which the counter wraps; None without readable
    counters.

    Sub-domains (cores, memory controller) are included in their package.
    """
    counters = {}
    for path in sorted(folder.glob("*")):
        if not _PACKAGE.fullmatch(path.name):
            continue
        try:
            counted, end = (int((path / name).read_text()) for name in ("energy_uj", "max_energy_range_uj"))
        except (OSError, ValueError):  # on most systems readable only by root
            return None
        counters[path.name] = counted * _MICRO, end * _MICRO
    return counters or None


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
