"""One self-contained HTML page of a workspace. Draws; measures nothing."""

from pathlib import Path

from taglio import workspace


def write(folder: Path) -> Path:
    """Write the page and return its path."""
    return folder / workspace.REPORT
