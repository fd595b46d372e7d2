"""Tensors on their way, and what the request met so far. Times are seconds of each machine's own monotonic clock."""

import ctypes
import math
import threading
import time
from typing import Any, NamedTuple

import numpy as np

from taglio.errors import TaglioError

# glibc's mallopt(3): the option, and bytes. Its own values make a process ask the system for the pages of every large
# copy anew, which takes 2 ms a megabyte between two machines.
_MALLOPT = {-3: 32 * 2**20, -1: 128 * 2**20}  # M_MMAP_THRESHOLD (the most it takes), M_TRIM_THRESHOLD

# A tensor from so many bytes on goes in two parts, the last of so many: what a device takes to receive a megabyte, 1 to
# 12 ms, then passes while the rest is on its way, for one message more.
_LARGE, _REST = 500_000, 64_000


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


class Cut(NamedTuple):
    """The tensor of which a parcel has its first bytes or the rest: its name, and what it is when both are together."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    first: bool


class Parcel:
    """One message: tensors by name, or the error that kept them from being made, and the steps and hops behind it.
    `session` is the one that the request belongs to, and its number in there.

    Stamped as it is sent and read. With `cut` it is one of two parts, and has bytes of that tensor instead of it.
    """

    __slots__ = ("cut", "error", "hops", "message", "request", "session", "source", "steps", "tensors")

    def __init__(
        self,
        request: int,
        message: int,
        source: str,
        tensors: dict[str, np.ndarray],
        steps: tuple[Step, ...] = (),
        hops: tuple[Hop, ...] = (),
        error: TaglioError | None = None,
        *,
        cut: Cut | None = None,
        session: tuple[str, int] | None = None,
    ) -> None:
        self.request, self.message, self.source, self.session = request, message, source, session
        self.tensors, self.steps, self.hops, self.error, self.cut = tensors, steps, hops, error, cut

    def parts(self) -> "tuple[Parcel, ...]":
        """What is sent of it, in order: itself, or two parts where a tensor is large."""
        name = max(self.tensors, key=lambda each: self.tensors[each].nbytes, default="")
        if not name or self.tensors[name].nbytes < _LARGE:
            return (self,)
        tensor = np.ascontiguousarray(self.tensors[name])
        data = tensor.reshape(-1).view(np.uint8)
        most = {**self.tensors, name: data[:-_REST]}
        first, rest = (Cut(name, tensor.dtype.str, tensor.shape, each) for each in (True, False))
        told = (self.steps, self.hops, self.error)
        return (
            Parcel(self.request, self.message, self.source, most, *told, cut=first, session=self.session),
            Parcel(self.request, self.message, self.source, {name: data[-_REST:]}, cut=rest),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # As plain tuples: whatever else it is made of, Ray's pickler looks at in Python, one by one.
        steps, hops = tuple(map(tuple, self.steps)), tuple(map(tuple, self.hops))
        cut = None if self.cut is None else tuple(self.cut)
        sent = (self.request, self.message, self.source, self.tensors, steps, hops, self.error, cut, self.session)
        return _arrive, (sent, time.monotonic())


def _arrive(sent: tuple[Any, ...], sent_s: float) -> Parcel:
    request, message, source, tensors, steps, hops, error, cut, session = sent
    way = (*(Hop(*each) for each in hops), Hop(message, source, "", sent_s, time.monotonic()))
    back = tuple(Step(*each) for each in steps)
    return Parcel(request, message, source, tensors, back, way, error, cut=cut and Cut(*cut), session=session)


class Joint:
    """Puts parcels together that arrive in two parts, of which either may be the first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._halves: dict[tuple[int, int], Parcel] = {}

    def whole(self, parcel: Parcel) -> Parcel | None:
        """The parcel that this is or completes; None while the other part is missing. Raises ValueError for parts that
        make no such tensor."""
        if parcel.cut is None:
            return parcel
        name, dtype, shape, first = parcel.cut
        if first:  # while the rest is on its way
            data = np.empty(math.prod(shape) * np.dtype(dtype).itemsize, np.uint8)
            data[:-_REST] = parcel.tensors[name]
            parcel.tensors[name] = data
        with self._lock:
            other = self._halves.pop((parcel.request, parcel.message), None)
            if other is None:
                self._halves[parcel.request, parcel.message] = parcel
                return None
        whole, rest = (parcel, other) if first else (other, parcel)
        whole.tensors[name][-_REST:] = rest.tensors[name]
        whole.tensors[name] = whole.tensors[name].view(dtype).reshape(shape)
        read_s = max(whole.hops[-1].read_s, rest.hops[-1].read_s)
        whole.hops = (*whole.hops[:-1], whole.hops[-1]._replace(read_s=read_s))
        whole.cut = None
        return whole
