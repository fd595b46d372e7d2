"""A model to be placed, and what the placement is to be good at. Values only."""

from collections.abc import Mapping
from dataclasses import dataclass

from taglio.error.model import ErrorModel
from taglio.graph import Graph
from taglio.plan.result import Limits
from taglio.profile.result import Profile
from taglio.quantize.precision import Precision


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """A model to be placed: its profile on every device (scaled where assumed), error model, limits, requests a second
    (None: nothing is said of how often). `noise_limits` bounds the noise sum of outputs by name."""

    name: str
    graph: Graph
    profiles: Mapping[str, Profile]
    error: ErrorModel | None
    limits: Limits
    rate_per_s: float | None = None
    noise_limits: Mapping[str, float] | None = None

    @property
    def precisions(self) -> tuple[Precision, ...]:
        """The precisions to choose from."""
        return next(iter(self.profiles.values())).precisions


@dataclass(frozen=True, slots=True)
class Goal:
    """What is minimised: `latency` per second of every request (added over devices and links), `energy` per joule."""

    latency: float = 1.0
    energy: float = 0.0
