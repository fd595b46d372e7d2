"""The result of a run on several devices: predicted beside measured. Values only."""

from dataclasses import dataclass

from taglio.cluster.engine.runner import Interruption
from taglio.profile.wall_time import WallTime


@dataclass(frozen=True, slots=True)
class ComponentTime:
    """Seconds of one component on its device, without waiting for its turn. `ratio` = predicted / measured in the
    steady state."""

    component: str
    device: str
    predicted_s: float
    measured: WallTime
    ratio: float


@dataclass(frozen=True, slots=True)
class CrossingTime:
    """Seconds from packing a message to unpacking it at the other end, including the wait for the link; `uncertain_s`
    is the possible difference of the two devices' clocks."""

    source: str
    target: str
    tensors: tuple[str, ...]
    bytes: int
    predicted_s: float
    measured: WallTime
    uncertain_s: float


@dataclass(frozen=True, slots=True)
class PlanTime:
    """Seconds from request to answer under one plan on its devices, which answered so many `requests`; those that were
    sent again are not in `measured`, unless all were. `ratio` = predicted / measured in the steady state."""

    plan_sha256: str
    devices: tuple[str, ...]
    requests: int
    predicted_s: float
    measured: WallTime
    ratio: float


@dataclass(frozen=True, slots=True)
class ClusterRun:
    """`requests` answered in order on several devices. The distance is the largest relative L2 from the same components
    run in one process. `latency` is that of all requests; `plans` tell those that answered apart, the first one first,
    whose `predicted_s` and `ratio` stand here too. `rate_per_s` is over the whole run, and predicted only if requests
    were streamed. `resent` requests were sent more than once; each interruption is a loss, and `returns` are the
    requests from which the first plan ran again. With `steps` the requests were those of one session."""

    requests: int
    streamed: bool
    lanes: int
    latency: WallTime
    predicted_s: float
    ratio: float
    plans: tuple[PlanTime, ...]
    rate_per_s: float
    predicted_rate_per_s: float | None
    components: tuple[ComponentTime, ...]
    crossings: tuple[CrossingTime, ...]
    sent_bytes: int
    distance: float
    identical: int
    resent: int
    interruptions: tuple[Interruption, ...]
    returns: tuple[int, ...]
    plan_sha256: str
    notes: tuple[str, ...] = ()
    steps: bool = False
