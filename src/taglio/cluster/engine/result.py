"""The result of a run on several devices: predicted beside measured. Values only."""

from dataclasses import dataclass
from statistics import median

from taglio.cluster.engine.host import Loaded
from taglio.cluster.engine.recover import Switch
from taglio.cluster.engine.serve import Interruption
from taglio.profile.speed import middle_half
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
class DeviceEnergy:
    """Joules of one request on a device: its active watts times the measured busy seconds, its links' joules for the
    bytes sent, its energy counters over the whole run, including all processes, divided by the requests, and its idle
    watts times the seconds that it waited. None: the cluster file has no such watts or joules, or there are no
    counters."""

    device: str
    modelled_joules: float | None
    sent_joules: float | None
    counted_joules: float | None
    idle_joules: float | None


@dataclass(frozen=True, slots=True)
class DeviceSpeed:
    """Seconds of one fixed computation on a device: when it was profiled, as median and quartiles (None: not known),
    and at each check, before the requests and after them."""

    device: str
    profiled_s: float | None
    profiled_half_s: tuple[float, float] | None
    seen_s: tuple[float, ...]

    @property
    def slower(self) -> float | None:
        """Its time relative to the profile. None if not known, or within the scatter of checks (interquartile ranges
        overlap). On a machine with busy neighbours single checks differ by 20 %."""
        if self.profiled_s is None or self.profiled_half_s is None:
            return None
        low, high = middle_half(self.seen_s)
        overlap = low <= self.profiled_half_s[1] and self.profiled_half_s[0] <= high
        return None if overlap else median(self.seen_s) / self.profiled_s


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
    were streamed. `resent` requests were sent more than once; each `interruption` is a loss, each `switch` a change of
    plan without one. With `steps` the requests were those of one session. `machine_busy` is the busy share of a machine
    that emulates all devices (None outside an emulation).
    """

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
    speeds: tuple[DeviceSpeed, ...]
    energy: tuple[DeviceEnergy, ...]
    predicted_joules: float | None
    loaded: tuple[Loaded, ...]
    sent_bytes: int
    distance: float
    identical: int
    resent: int
    interruptions: tuple[Interruption, ...]
    switches: tuple[Switch, ...]
    plan_sha256: str
    notes: tuple[str, ...] = ()
    machine_busy: float | None = None
    steps: bool = False
