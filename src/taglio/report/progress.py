"""A progress bar on standard error for long stages. Standard output stays clean for scripts."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from taglio.progress import Progress as Tell


@contextmanager
def bar(quiet: bool = False) -> Iterator[Tell | None]:
    """A callback (what, done, total) that draws, from its first call on; None if `quiet` or without a terminal."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    progress = Progress(*columns, console=Console(stderr=True, emoji=False), transient=True)
    tasks: dict[str, TaskID] = {}

    def tell(what: str, done: int, total: int) -> None:
        progress.start()
        if what not in tasks:
            tasks[what] = progress.add_task(what, total=total)
        progress.update(tasks[what], completed=done, total=total)

    try:
        yield tell
    finally:
        if tasks:
            progress.stop()
