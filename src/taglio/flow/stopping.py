"""The end of a search before it is done: its time is up, or the user presses Ctrl-C. Measures nothing."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from taglio.notes import Kind, Note
from taglio.progress import Progress

# The note of a result whose search was stopped.
STOPPED = Note(Kind.STOPPED, "the search was stopped early: this is the best plan so far")


class TimeIsUp(BaseException):
    """A search has to end. Not an Exception: what handles failures of runtimes must let it pass."""


@dataclass(slots=True)
class Watched:
    """Progress that is passed on to `progress`, and that ends the work that reports it after `end_s` of
    time.perf_counter(). `best` adds to the name of each stage what would be delivered now."""

    progress: Progress | None
    best: Callable[[], str]
    end_s: float = inf

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Raises TimeIsUp when the time is over."""
        if time.perf_counter() > self.end_s:
            raise TimeIsUp
        if self.progress is not None:
            self.progress(f"{stage}{self.best()}", done, total)
