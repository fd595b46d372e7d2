"""Run a function over many items in processes that may crash, hang or run out of memory: that costs the item alone."""

import multiprocessing
import os
import resource
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
_CONTEXT = multiprocessing.get_context("spawn")
_MEMORY_BYTES = 8 * 1024**3
# Sessions that ONNX Runtime opened leave memory behind: a process is replaced after so many items.
_ITEMS_A_PROCESS = 400
_START_S = 300.0


@dataclass(frozen=True, slots=True)
class Died:
    """The process ended within the item, by itself or because its time was over."""

    timeout: bool
    exit_code: int | None = None


@dataclass(slots=True)
class _Worker:
    process: Any
    pipe: Connection
    item: Any = None
    since: float = 0.0
    done: int = 0


def run_all(
    function: Callable[[Item], Result], items: Iterable[Item], *, workers: int, timeout_s: float
) -> Iterator[tuple[Item, Result | Died]]:
    """Results as they come. `function` must be importable, items and results picklable; `timeout_s` is a time limit of
    each item."""
    queue = iter(items)
    live: list[_Worker] = []
    try:
        while True:
            while len(live) < workers and (item := next(queue, None)) is not None:
                live.append(_give(_start(function), item))
            if not live:
                return
            wait([each.pipe for each in live], timeout=0.5)
            for worker in list(live):
                result: Any = None
                if worker.pipe.poll():
                    try:
                        result = worker.pipe.recv()
                    except (EOFError, ConnectionError):
                        worker.process.join()
                        result = Died(timeout=False, exit_code=worker.process.exitcode)
                elif time.monotonic() - worker.since > timeout_s:
                    result = Died(timeout=True)
                else:
                    continue
                yield worker.item, result
                live.remove(worker)
                worker.done += 1
                if isinstance(result, Died) or worker.done >= _ITEMS_A_PROCESS:
                    _stop(worker)
                elif (item := next(queue, None)) is not None:
                    live.append(_give(worker, item))
                else:
                    _stop(worker)
    finally:
        for worker in live:
            _stop(worker)


def _start(function: Callable[[Any], Any]) -> _Worker:
    ours, theirs = _CONTEXT.Pipe()
    process = _CONTEXT.Process(target=_serve, args=(function, theirs), daemon=True)
    process.start()
    theirs.close()
    # The time limit is of items, not of what a busy machine takes to import them.
    if not ours.poll(_START_S) or ours.recv() is not None:
        process.kill()
        raise RuntimeError(f"a process for {function.__name__} did not start within {_START_S} s")
    return _Worker(process, ours)


def _give(worker: _Worker, item: Any) -> _Worker:
    worker.item, worker.since = item, time.monotonic()
    worker.pipe.send(item)
    return worker


def _stop(worker: _Worker) -> None:
    worker.pipe.close()
    worker.process.kill()
    worker.process.join()


def _serve(function: Callable[[Any], Any], pipe: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    pipe.send(None)
    while True:
        try:
            item = pipe.recv()
        except (EOFError, ConnectionError):
            return
        pipe.send(function(item))
