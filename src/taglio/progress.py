"""Tell a caller how far a stage is. Prints nothing."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

# Gets a stage, the work done and the total.
Progress = Callable[[str, int, int], None]
T = TypeVar("T")


def reported(items: Sequence[T], stage: str, progress: Progress | None) -> Iterator[T]:
    """`items`; `progress` is told how many are done: none at first, one more when the next is asked for."""
    for done, item in enumerate(items):
        if progress:
            progress(stage, done, len(items))
        yield item
    if progress and items:
        progress(stage, len(items), len(items))
