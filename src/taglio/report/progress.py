"""The progress of long stages on standard error: a bar, or a line now and then where that is no terminal. Standard
output stays clean for scripts."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from taglio.progress import Progress as Callback


@contextmanager
def bar(quiet: bool = False) -> Iterator[Callback | None]:
    """A callback (what, done, total) that draws, from its first call on; None if `quiet`."""
    if quiet:
        yield None
    elif not sys.stderr.isatty():
        yield _lines(every_s=30.0)
    else:
        with _drawn() as report:
            yield report


@contextmanager
def _drawn() -> Iterator[Callback]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    progress = Progress(*columns, console=Console(stderr=True, emoji=False), transient=True)
    tasks: dict[str, TaskID] = {}

    def report(what: str, done: int, total: int) -> None:
        progress.start()
        if what not in tasks:
            tasks[what] = progress.add_task(what, total=total)
        progress.update(tasks[what], completed=done, total=total)

    try:
        yield report
    finally:
        if tasks:
            progress.stop()


def _lines(every_s: float) -> Callback:
    """Writes a line at most every `every_s` seconds, also before the first: a shorter stage writes none."""
    begun = last = monotonic()

    def report(what: str, done: int, total: int) -> None:
        nonlocal last
        now = monotonic()
        if now - last >= every_s:
            last = now
            sys.stderr.write(f"after {now - begun:.0f} s: {what}, {done} of {total}\n")

    return report
