"""How int8 is done. One `Scheme` value travels through calibration, error, profile, build and run."""

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

from taglio.errors import BadOption

Format = Literal["qdq", "qoperator"]
ActivationType = Literal["u8", "s8"]
Symmetry = Literal["asymmetric", "symmetric", "restricted"]
Calibration = Literal["minmax", "entropy", "percentile"]
Repair = Literal["ranges", "rounding", "bias"]

# In the order in which they are made: each starts from what those before it found (quantize/repair).
REPAIRS: tuple[Repair, ...] = ("ranges", "rounding", "bias")


@dataclass(frozen=True, slots=True)
class Scheme:
    """Static int8. `restricted` activations put the zero point at the type's minimum where the tensor is never
    negative and in its middle otherwise (as ActivationRestrictedAsymmetric does in ONNX Runtime, here for either type).

    `reduced_range` gives weights 7 bits, for processors without VNNI, whose u8×s8 sums saturate at 16 bits. So do
    those of s8×s8, which ONNX Runtime computes as u8×s8.
    """

    format: Format = "qdq"
    activation: ActivationType = "u8"
    weight: ActivationType = "s8"
    activation_symmetry: Symmetry = "asymmetric"
    weight_symmetric: bool = True
    per_channel: bool = True
    reduced_range: bool = False
    calibration: Calibration = "minmax"
    repairs: tuple[Repair, ...] = ()

    def __post_init__(self) -> None:
        if self.activation == "s8" and self.weight == "u8":
            raise BadOption("scheme s8u8: ONNX Runtime has no kernel for s8 activations with u8 weights: use s8s8")

    def __str__(self) -> str:
        parts = [self.format, self.activation + self.weight, _SHORT[self.activation_symmetry]]
        parts += [] if self.weight_symmetric else ["wasym"]
        parts += ["pc" if self.per_channel else "pt"]
        parts += ["rr"] if self.reduced_range else []
        parts += [] if self.calibration == "minmax" else [self.calibration]
        parts += self.repairs
        return "-".join(parts)

    @property
    def may_saturate(self) -> bool:
        """Whether sums of its products may not fit 16 bits, where the processor adds pairs of them in 16."""
        return self.weight == "s8" and not self.reduced_range

    @property
    def calibrated(self) -> str:
        """Under which name its calibration is kept: repairs depend on the whole scheme, ranges on their method."""
        return str(self) if self.repairs else self.calibration

    @property
    def activation_key(self) -> tuple[ActivationType, Symmetry, str]:
        """What two neighbours must share for one int8 tensor to serve both."""
        return (self.activation, self.activation_symmetry, self.calibrated)


_SHORT: dict[Symmetry, str] = {"asymmetric": "asym", "symmetric": "sym", "restricted": "restr"}

# What --scheme auto measures: the forms that ONNX Runtime's x86 and Arm kernels are known to favour. Weights per tensor
# are a few per cent faster than per channel, and worse.
AUTO_SCHEMES: tuple[Scheme, ...] = (
    Scheme(activation_symmetry="asymmetric"),
    Scheme(activation_symmetry="asymmetric", per_channel=False),
    Scheme(activation_symmetry="restricted"),
    Scheme(activation_symmetry="restricted", per_channel=False),
    Scheme(activation_symmetry="symmetric"),
    Scheme(activation="s8", activation_symmetry="symmetric"),
)
DEFAULT_SCHEME = AUTO_SCHEMES[0]


def with_repairs(scheme: Scheme, names: Collection[str]) -> Scheme:
    """`scheme` with these repairs as well. Raises BadOption for one that is none."""
    for name in names:
        if name not in REPAIRS:
            raise BadOption(f'repair "{name}" is none of {", ".join(REPAIRS)}')
    return replace(scheme, repairs=tuple(each for each in REPAIRS if each in names or each in scheme.repairs))


def parse_scheme(text: str) -> Scheme:
    """Read the form that `str(scheme)` writes, in any order: `qdq-u8s8-sym-pc-rr-entropy`. Raises BadOption."""
    fields: dict[str, object] = {}
    repairs = set[str]()
    for token in re.split(r"[-:,]", text.strip().lower()):
        match token:
            case "qdq" | "qoperator":
                fields["format"] = token
            case "u8s8" | "u8u8" | "s8s8" | "s8u8":
                fields["activation"], fields["weight"] = token[:2], token[2:]
            case "asym" | "sym" | "restr":
                fields["activation_symmetry"] = next(k for k, v in _SHORT.items() if v == token)
            case "wsym" | "wasym":
                fields["weight_symmetric"] = token == "wsym"  # noqa: S105 - a word of the scheme's name
            case "pc" | "pt":
                fields["per_channel"] = token == "pc"  # noqa: S105 - the same
            case "rr":
                fields["reduced_range"] = True
            case "minmax" | "entropy" | "percentile":
                fields["calibration"] = token
            case "ranges" | "rounding" | "bias":
                repairs.add(token)
            case _:
                raise BadOption(
                    f'scheme "{text}": "{token}" is none of qdq, qoperator, u8s8, u8u8, s8s8, asym, sym, restr, '
                    f"wsym, wasym, pc, pt, rr, minmax, entropy, percentile, {', '.join(REPAIRS)}"
                )
    return with_repairs(Scheme(**fields), repairs)  # type: ignore[arg-type]
