"""Messages: tensors in transit, and their request's steps and hops so far. Times are each machine's monotonic clock."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from taglio.errors import TaglioError


class ComponentStep(NamedTuple):
    """A component ran on `device` from `start_s` to `end_s`."""

    component: str
    device: str
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


@dataclass(slots=True, eq=False)
class Parcel:
    """One message: tensors by name (a list for a sequence), or the error that prevented them, and the steps and hops
    before it. `session` says which step of a session the request is, if any.

    Time-stamped when sent and when read.
    """

    request: int
    message: int
    source: str
    tensors: dict[str, Any]
    steps: tuple[ComponentStep, ...] = ()
    hops: tuple[Hop, ...] = ()
    error: TaglioError | None = None
    session: SessionStep | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # As plain tuples: Ray's pickler handles any other object one by one in Python.
        steps, hops = tuple(map(tuple, self.steps)), tuple(map(tuple, self.hops))
        session = None if self.session is None else tuple(self.session)
        sent = (self.request, self.message, self.source, self.tensors, steps, hops, self.error, session)
        return _arrive, (sent, time.monotonic())


def _arrive(sent: tuple[Any, ...], sent_s: float) -> Parcel:
    request, message, source, tensors, steps, hops, error, session = sent
    all_hops = (*(Hop(*hop) for hop in hops), Hop(message, source, "", sent_s, time.monotonic()))
    all_steps = tuple(ComponentStep(*step) for step in steps)
    return Parcel(request, message, source, tensors, all_steps, all_hops, error, session and SessionStep(*session))


def merged(
    parcels: Iterable[Parcel], device: str = ""
) -> tuple[dict[str, Any], tuple[ComponentStep, ...], tuple[Hop, ...]]:
    """The tensors of `parcels`, and the steps and hops before them, each once; hops that end here get the target
    `device`. Raises the error that a parcel holds."""
    tensors: dict[str, Any] = {}
    steps: dict[str, ComponentStep] = {}
    hops: dict[tuple[int, str], Hop] = {}
    for parcel in parcels:
        if parcel.error is not None:
            raise parcel.error
        tensors.update(parcel.tensors)
        steps.update((step.component, step) for step in parcel.steps)
        for hop in parcel.hops:
            target = hop.target or device
            hops[hop.message, target] = hop._replace(target=target)
    return tensors, tuple(steps.values()), tuple(hops.values())
