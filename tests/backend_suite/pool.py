"""Run a function over many items, each in a process that may crash, hang or run out of memory: that costs the item
alone."""

import multiprocessing
import os
import resource
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import Connection
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
# Processes are forked from one that has imported what they need, and has opened no session.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["__main__", "tests.backend_suite.check", "tests.fuzz.targets"])
_MEMORY_BYTES = 8 * 1024**3


@dataclass(frozen=True, slots=True)
class Died:
    """The process ended within the item, by itself or because its time was over."""

    timeout: bool
    exit_code: int | None = None


def run_all(
    function: Callable[[Item], Result], items: Iterable[Item], *, workers: int, timeout_s: float
) -> Iterator[tuple[Item, Result | Died]]:
    """Results as they come. `function` must be importable, items and results picklable; `timeout_s` is a time limit of
    each item."""
    waiting, running = iter(items), dict[Future[Any], Item]()
    with ThreadPoolExecutor(workers) as threads:
        while True:
            for item in islice(waiting, workers - len(running)):
                running[threads.submit(_in_process, function, item, timeout_s)] = item
            if not running:
                return
            for ended in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(ended), ended.result()


def _in_process(function: Callable[[Item], Result], item: Item, timeout_s: float) -> Result | Died:
    ours, theirs = _CONTEXT.Pipe(duplex=False)
    process = _CONTEXT.Process(target=_answer, args=(function, item, theirs), daemon=True)
    process.start()
    theirs.close()
    with ours:
        try:
            result: Any = ours.recv() if ours.poll(timeout_s) else Died(timeout=True)
        except EOFError:
            process.join()
            result = Died(timeout=False, exit_code=process.exitcode)
    process.kill()
    process.join()
    return result  # type: ignore[no-any-return]


def _answer(function: Callable[[Any], Any], item: Any, pipe: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    pipe.send(function(item))
