"""Joules that a machine's own counters have seen (RAPL). Models nothing: without counters there is no answer."""

import re
from pathlib import Path

POWERCAP = Path("/sys/class/powercap")
_PACKAGE = re.compile(r"[a-z-]+-rapl:\d+")
_MICRO = 1e-6


def read(folder: Path = POWERCAP) -> dict[str, tuple[float, float]] | None:
    """By processor package, joules counted so far and where the count starts again; None without readable counters.

    Sub-domains (cores, memory controller) are part of their package and left out.
    """
    found = {}
    for path in sorted(folder.glob("*")):
        if not _PACKAGE.fullmatch(path.name):
            continue
        try:
            counted = int((path / "energy_uj").read_text()) * _MICRO
            end = int((path / "max_energy_range_uj").read_text()) * _MICRO
        except (OSError, ValueError):  # readable by root only on most systems
            return None
        found[path.name] = counted, end
    return found or None


def between(
    before: dict[str, tuple[float, float]] | None, after: dict[str, tuple[float, float]] | None
) -> float | None:
    """Joules from one reading to a later one, less than one round of each counter apart; None without counters."""
    if before is None or after is None or before.keys() != after.keys():
        return None
    total = 0.0
    for name, (first, end) in before.items():
        last = after[name][0]
        total += last - first if last >= first else last - first + end
    return total
