"""What was measured of variants of a model: values, and nothing else."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from taglio.profile.wall_time import WallTime

MIXED_FORMS = "mixed"


@dataclass(frozen=True, slots=True)
class Variant:
    """What one session runs: `blocks` blocks in one `form` (`MIXED_FORMS`: in several), the others in float32, in a
    `runtime`. `scheme` says how int8 is done."""

    runtime: str
    form: str
    scheme: str = ""
    blocks: int = 0


@dataclass(frozen=True, slots=True)
class Measurement:
    """One variant in a race with the float model in the same runtime. None stands for what was not measured.

    `seconds` are those of a run, `float_s` the float model's in the same rounds. `error` is the loss on a few held-out
    inputs, as the runtime computes it. `score_s` is the latency to expect of a plan that uses the form within the limit
    (`expected_s`). `refused` says why the variant does not run, or why it was not raced; `kept` whether plans may use
    it.
    """

    variant: Variant
    seconds: float | None = None
    float_s: float | None = None
    error: float | None = None
    score_s: float | None = None
    refused: str = ""
    kept: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Floats:
    """The float model raced in several places: its wall times by place, and the share of the processors that other
    programs used meanwhile. Empty if only one place was usable."""

    times: Mapping[str, WallTime] = field(default_factory=dict)
    others: float = 0.0


NOT_RACED = Floats()


def expected_s(float_s: float, seconds: float, error: float, limit: float) -> float:
    """The latency to expect of a plan, from float and from all blocks in another form, which have an `error`.

    A limit of half the error is assumed to allow half of the time to be saved: what is faster with twice the error is
    not better under a tight limit.
    """
    return float_s - (float_s - seconds) * (1.0 if error <= limit else limit / error)
