"""Tensors on their way, and what the request met so far. Times are seconds of each machine's own monotonic clock."""

import ctypes
import time
from typing import Any, NamedTuple

import numpy as np

from taglio.errors import TaglioError

# glibc's mallopt(3): the option, and bytes. Its own values make a process ask the system for the pages of every large
# copy anew, which takes 2 ms a megabyte between two machines.
_MALLOPT = {-3: 32 * 2**20, -1: 128 * 2**20}  # M_MMAP_THRESHOLD (the most it takes), M_TRIM_THRESHOLD


def keep_memory() -> None:
    """Have this process keep the memory that parcels were copied to on their way, for the next ones. Does nothing where
    the C library cannot."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, size in _MALLOPT.items():
            mallopt(option, size)


class Step(NamedTuple):
    """A component ran on `device` from `start_s` to `end_s`, after it had waited its turn from `ready_s`."""

    component: str
    device: str
    ready_s: float
    start_s: float
    end_s: float


class Hop(NamedTuple):
    """A message was packed at `sent_s` by the clock of `source` and unpacked at `read_s` by that of `target`."""

    message: int
    source: str
    target: str
    sent_s: float
    read_s: float


class Parcel:
    """One message: tensors by name, or the error that kept them from being made, and the steps and hops behind it.

    Stamped as it is sent and read.
    """

    __slots__ = ("error", "hops", "message", "request", "source", "steps", "tensors")

    def __init__(
        self,
        request: int,
        message: int,
        source: str,
        tensors: dict[str, np.ndarray],
        steps: tuple[Step, ...] = (),
        hops: tuple[Hop, ...] = (),
        error: TaglioError | None = None,
    ) -> None:
        self.request, self.message, self.source = request, message, source
        self.tensors, self.steps, self.hops, self.error = tensors, steps, hops, error

    def __reduce__(self) -> tuple[Any, ...]:
        # As plain tuples: whatever else it is made of, Ray's pickler looks at in Python, one by one.
        steps, hops = tuple(map(tuple, self.steps)), tuple(map(tuple, self.hops))
        sent = (self.request, self.message, self.source, self.tensors, steps, hops, self.error)
        return _arrive, (sent, time.monotonic())


def _arrive(sent: tuple[Any, ...], sent_s: float) -> Parcel:
    request, message, source, tensors, steps, hops, error = sent
    way = (*(Hop(*each) for each in hops), Hop(message, source, "", sent_s, time.monotonic()))
    return Parcel(request, message, source, tensors, tuple(Step(*each) for each in steps), way, error)
