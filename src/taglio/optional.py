"""Import a package that only some users have. Knows none of them."""

import importlib
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from taglio.errors import BadOption


def optional(name: str, missing: str) -> Any:
    """The module `name`. Raises BadOption with the message `missing` if it is not installed."""
    try:
        with uninterrupted():
            return importlib.import_module(name)
    except ImportError:
        raise BadOption(missing) from None


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay the signals that stop a command (SIGINT, SIGTERM, SIGHUP) until the end of the block. While a compiled
    module is imported, for instance, an interruption would become an ImportError, or would be lost."""
    if threading.current_thread() is not threading.main_thread():  # signals are another's
        yield
        return
    came: list[int] = []
    handlers = {
        number: signal.signal(number, lambda number, _: came.append(number))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if callable(signal.getsignal(number))
    }
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])
