"""A page that never costs the result it shows: what fails while it is drawn is left out and named. Draws nothing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from taglio import artifact

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Written:
    """A page on the disk, and one line that says what it lacks ("" for nothing)."""

    path: Path
    remark: str = ""


def write(path: Path, text: str, lacks: Sequence[str]) -> Written:
    """Write a page's text. Raises BadArtifact where the disk refuses."""
    artifact.write_bytes(path, text.encode())
    return Written(path, f"{path} lacks {'; '.join(lacks)}" if lacks else "")


def offer(make: Callable[[], Written]) -> str:
    """Write a page beside a result that stands without it; one line on what is missing, "" for nothing."""
    try:
        return make().remark
    except Exception as error:  # whatever a page does, the result is there
        return f"the page was not written: {told(error)}"


def drawn(draw: Callable[[], T], name: str, lacks: list[str], otherwise: Callable[[str], T]) -> T:
    """One part of a page. Where drawing it fails, `lacks` gets a line and `otherwise` makes what stands for it."""
    try:
        return draw()
    except Exception as error:  # any error: the other parts stand without this one
        lacks.append(f'"{name}" ({told(error)})')
        return otherwise(f"This part could not be drawn ({told(error)}).")


def told(error: Exception) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
