"""A model to be placed, and what the placement is to be good at. Values only."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from taglio.error.model import ErrorModel
from taglio.model.graph import Graph
from taglio.plan.result import Limits
from taglio.profile.result import Profile
from taglio.quantize.precision import FLOAT32, Precision


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """A model to be placed: its profile on every device (scaled where assumed), error model, limits, requests a second
    (None: nothing is said of how often). `noise_limits` bounds the noise sum of outputs by name; `bases` are the errors
    of the float model on devices whose runtime changes it by itself."""

    name: str
    graph: Graph
    profiles: Mapping[str, Profile]
    error: ErrorModel | None
    limits: Limits
    rate_per_s: float | None = None
    noise_limits: Mapping[str, float] | None = None
    bases: Mapping[str, float] = field(default_factory=dict)

    @property
    def precisions(self) -> tuple[Precision, ...]:
        """The precisions to choose from."""
        return next(iter(self.profiles.values())).precisions


@dataclass(frozen=True, slots=True)
class Goal:
    """What is minimised: `latency` per second of every request (added over devices and links), `energy` per joule."""

    latency: float = 1.0
    energy: float = 0.0


def in_components(profile: Profile) -> Profile:
    """A profile of which components may be made: where its kernels explain more than its runs took, so that a run's
    overhead is below nothing, all blocks take less, by the same share."""
    if profile.overhead_s >= 0.0:
        return profile
    whole = sum(each.seconds for each in profile.blocks if each.precision == FLOAT32.name)
    share = max(0.0, 1.0 + profile.overhead_s / whole) if whole > 0.0 else 1.0
    blocks = tuple(replace(each, seconds=share * each.seconds) for each in profile.blocks)
    return replace(profile, blocks=blocks, overhead_s=0.0)


def scaled(profile: Profile, factor: float) -> Profile:
    """A profile whose times are all `factor` times as long: an assumption about another device."""
    glue = tuple(
        replace(
            each,
            float_s=factor * each.float_s,
            int8_s=factor * each.int8_s,
            quantize_s=factor * each.quantize_s,
            dequantize_s=factor * each.dequantize_s,
            anchor_float_s=None if each.anchor_float_s is None else factor * each.anchor_float_s,
            anchor_quantize_s=None if each.anchor_quantize_s is None else factor * each.anchor_quantize_s,
        )
        for each in profile.glue
    )
    blocks = tuple(
        replace(each, seconds=factor * each.seconds, deviation_s=factor * each.deviation_s) for each in profile.blocks
    )
    return replace(profile, blocks=blocks, glue=glue, overhead_s=factor * profile.overhead_s)
