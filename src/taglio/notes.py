"""Notes for the user: lines beside the figures, each of a kind that says how important it is and what to do about it.

The stage that finds a reason for a note words it. Prints nothing.
"""

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """What a note is about, the most important first: whether the answers mean anything comes first, then whether the
    figures hold for other inputs, then whether the times hold, then what else could be gained. The value names the kind
    in JSON. `advice` is what to do; "" where the note says it itself, or there is nothing to do."""

    STOPPED = "stopped", "run it again for the fastest plan"
    PLANNED_INSTEAD = "planned-instead", "compare other builds with deploy/samples, not with the source model"
    NAN_OUTPUT = "nan-output", "check the data and their preprocessing"
    CONSTANT_OUTPUT = "constant-output"
    SCALED_INPUT = "scaled-input"
    CONSTANT_INPUT = "constant-input"
    ONE_CLASS = "one-class"
    OTHER_BLANK = "other-blank"
    RANDOM_ANSWERS = "random-answers"
    UNSAFE_PROCESSOR = "unsafe-processor"
    NOISY_MACHINE = "noisy-machine"
    UNPROVEN_GAIN = "unproven-gain", "deploy float32, or loosen the limit if you can"
    UNCONFIRMED = "unconfirmed"
    NO_GAIN = "no-gain"
    LIMIT_TOO_LOW = "limit-too-low", "loosen the limit if you can"
    UNLIKE_CALIBRATION = "unlike-calibration"
    UPPER_END = "upper-end", "give more data, or a smaller limit"
    SELECTED = "selected"
    FEW_INPUTS = "few-inputs"
    SHARED_INPUTS = "shared-inputs", "give other inputs, or separate calibration data (--calibration)"
    REPEATED_INPUTS = "repeated-inputs", "give more distinct inputs"
    MEASURED_SIZES = "measured-sizes", "give data of every size that you serve"
    SATURATION = "saturation"
    SHARED_SCALE = "shared-scale", "serve it with --batch 1, or keep the rows of a batch alike"
    BUSY_MACHINE = "busy-machine"
    REJECTED_PLAN = "rejected-plan", "loosen the limit if you can, or give more data"
    SLOW_PROCESSOR = "slow-processor"
    SIMPLIFIED = "simplified"
    FIXED_SHAPES = "fixed-shapes"
    CHANGED_LENGTH = "changed-length", "limit a task instead, such as --metric ctc"
    RANKED_ROWS = "ranked-rows"
    UNUSED_LABELS = "unused-labels", "name the task with --metric"
    QUANTIZED_SOURCE = "quantized-source"
    NO_FLOAT_OUTPUT = "no-float-output", "limit a task instead, such as --metric top1"
    NOT_JOINED = "not-joined"
    NOT_COMPARED = "not-compared"
    NOT_MEASURED = "not-measured", "a higher --effort measures more"
    THREADS = "threads"
    LOWERED_LEVEL = "lowered-level"
    REFERENCE = "reference"
    DATA = "data"
    NOT_INSTALLED = "not-installed"
    FACT = "fact"  # only describes

    advice: str

    def __new__(cls, name: str, advice: str = "") -> "Kind":
        """A kind with its name in JSON."""
        kind = object.__new__(cls)
        kind._value_, kind.advice = name, advice
        return kind


@dataclass(frozen=True, slots=True)
class Note:
    """A line for the user."""

    kind: Kind
    text: str

    def __str__(self) -> str:
        """The line without advice."""
        return self.text
