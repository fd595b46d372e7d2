"""Messages: tensors in transit, and their request's steps and hops so far. Times are each machine's monotonic clock."""

import math
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from taglio.errors import TaglioError

# A tensor of at least this size is sent in two parts, the second of the other size: receiving a megabyte takes a device
# 1 to 12 ms, which then overlaps with the transfer of the rest, at the cost of one more message.
_LARGE, _REST = 500_000, 64_000


class Step(NamedTuple):
    """A component ran on `device` from `start_s` to `end_s`, after waiting for its turn from `ready_s`."""

    component: str
    device: str
    ready_s: float
    start_s: float
    end_s: float


class Hop(NamedTuple):
    """A message was packed at `sent_s` (clock of `source`) and unpacked at `read_s` (clock of `target`)."""

    message: int
    source: str
    target: str
    sent_s: float
    read_s: float


class SessionStep(NamedTuple):
    """Which step of which session a request is, and whether it is the last one."""

    session: str
    number: int
    last: bool = False


class Cut(NamedTuple):
    """A tensor sent in two parcels: its name, and its type and shape when joined."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    first: bool


@dataclass(slots=True, eq=False)
class Parcel:
    """One message: tensors by name (a list for a sequence), or the error that prevented them, and the steps and hops
    before it. `session` says which step of a session the request is, if any.

    Time-stamped when sent and when read. With `cut` it is one of two parts and holds bytes of that tensor.
    """

    request: int
    message: int
    source: str
    tensors: dict[str, Any]
    steps: tuple[Step, ...] = ()
    hops: tuple[Hop, ...] = ()
    error: TaglioError | None = None
    cut: Cut | None = None
    session: SessionStep | None = None

    def parts(self) -> "tuple[Parcel, ...]":
        """The parcels to send, in order: itself, or two parts if a tensor is large."""
        sizes = {name: each.nbytes for name, each in self.tensors.items() if isinstance(each, np.ndarray)}
        name = max(sizes, key=sizes.__getitem__, default="")
        if sizes.get(name, 0) < _LARGE:  # sequences are sent whole
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
        # As plain tuples: Ray's pickler handles any other object one by one in Python.
        steps, hops = tuple(map(tuple, self.steps)), tuple(map(tuple, self.hops))
        cut, session = (None if each is None else tuple(each) for each in (self.cut, self.session))
        sent = (self.request, self.message, self.source, self.tensors, steps, hops, self.error, cut, session)
        return _arrive, (sent, time.monotonic())


def _arrive(sent: tuple[Any, ...], sent_s: float) -> Parcel:
    request, message, source, tensors, steps, hops, error, cut, session = sent
    way = (*(Hop(*each) for each in hops), Hop(message, source, "", sent_s, time.monotonic()))
    back = tuple(Step(*each) for each in steps)
    more = (cut and Cut(*cut), session and SessionStep(*session))
    return Parcel(request, message, source, tensors, back, way, error, *more)


def merged(parcels: Iterable[Parcel], device: str = "") -> tuple[dict[str, Any], tuple[Step, ...], tuple[Hop, ...]]:
    """The tensors of `parcels`, and the steps and hops before them, each once; hops that end here get the target
    `device`. Raises the error that a parcel holds."""
    tensors: dict[str, Any] = {}
    steps: dict[str, Step] = {}
    hops: dict[tuple[int, str], Hop] = {}
    for parcel in parcels:
        if parcel.error is not None:
            raise parcel.error
        tensors.update(parcel.tensors)
        steps.update((each.component, each) for each in parcel.steps)
        for each in parcel.hops:
            hop = each if each.target else each._replace(target=device)
            hops[hop.message, hop.target] = hop
    return tensors, tuple(steps.values()), tuple(hops.values())


class Joint:
    """Joins parcels that arrive in two parts, in either order."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._halves: dict[tuple[int, int], Parcel] = {}

    def whole(self, parcel: Parcel) -> Parcel | None:
        """The whole parcel that this one is or completes; None while the other part is missing. Raises ValueError for
        parts that do not fit together."""
        if parcel.cut is None:
            return parcel
        name, dtype, shape, first = parcel.cut
        if first:  # while the rest is in transit
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
