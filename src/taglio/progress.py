"""Report the progress of a stage to its caller. Prints nothing."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

# Gets a stage, the work done and the total.
Progress = Callable[[str, int, int], None]
T = TypeVar("T")


def reported(items: Sequence[T], stage: str, progress: Progress | None) -> Iterator[T]:
    """Yield `items`, and call `progress` with the number that are done: 0 before the first, all after the last."""
    for done, item in enumerate(items):
        if progress:
            progress(stage, done, len(items))
        yield item
    if progress and items:
        progress(stage, len(items), len(items))
