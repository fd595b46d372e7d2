"""How int8 is done: one `Scheme` value, which calibration, error, profile, build and run share."""

import re
from dataclasses import dataclass, replace
from typing import Literal

from taglio.errors import BadOption

ActivationType = Literal["u8", "s8"]
Symmetry = Literal["asymmetric", "symmetric"]
Uncalibrated = Literal["w8", "dyn", "dyn7", "w4", "bf16"]

UNCALIBRATED: tuple[Uncalibrated, ...] = ("w8", "dyn", "dyn7", "w4", "bf16")


@dataclass(frozen=True, slots=True)
class Scheme:
    """Static int8. Ranges of activations are those of the values that occur in calibration.

    `reduced_range` gives weights 7 bits, for processors without VNNI: their 16-bit sums of u8×s8 products saturate, and
    so do those of s8×s8, which ONNX Runtime computes as u8×s8.

    `uncalibrated` are the forms beside static int8 that plans may use (quantize/uncalibrated.py): `w8` is int8-weights,
    `dyn` int8-dynamic, `dyn7` the same with weights of 7 bits, for the same processors, `w4` int4-weights, `bf16`
    bfloat16.
    """

    activation: ActivationType = "u8"
    weight: ActivationType = "s8"
    activation_symmetry: Symmetry = "asymmetric"
    weight_symmetric: bool = True
    per_channel: bool = True
    reduced_range: bool = False
    uncalibrated: tuple[Uncalibrated, ...] = ()

    def __post_init__(self) -> None:
        if self.activation == "s8" and self.weight == "u8":
            raise BadOption("scheme s8u8: ONNX Runtime has no kernel for s8 activations with u8 weights: use s8s8")
        if {"dyn", "dyn7"} <= {*self.uncalibrated}:
            raise BadOption(f"scheme {self}: int8-dynamic has weights of 8 bits or of 7: write dyn or dyn7")

    def __str__(self) -> str:
        parts = ["qdq", self.activation + self.weight, _SHORT[self.activation_symmetry]]
        parts += [] if self.weight_symmetric else ["wasym"]
        parts += ["pc" if self.per_channel else "pt"]
        parts += ["rr"] if self.reduced_range else []
        parts += self.uncalibrated
        return "-".join(parts)

    @property
    def may_saturate(self) -> bool:
        """Whether sums of two products may overflow 16 bits, on processors that add them in 16 bits."""
        return self != self.narrow

    @property
    def narrow(self) -> "Scheme":
        """The scheme with weights of 7 bits in every form whose sums may saturate."""
        forms = tuple("dyn7" if name == "dyn" else name for name in self.uncalibrated)
        return replace(self, reduced_range=self.reduced_range or self.weight == "s8", uncalibrated=forms)


_SHORT: dict[Symmetry, str] = {"asymmetric": "asym", "symmetric": "sym"}

DEFAULT_SCHEME = Scheme()


def parse_scheme(text: str) -> Scheme:
    """Parse what `str(scheme)` writes, in any order, such as `qdq-u8s8-sym-pc-rr`. Raises BadOption."""
    fields: dict[str, object] = {}
    tokens = re.split(r"[-:,]", text.strip().lower())
    for token in tokens:
        match token:
            case "qdq":
                pass
            case "u8s8" | "u8u8" | "s8s8" | "s8u8":
                fields["activation"], fields["weight"] = token[:2], token[2:]
            case "asym" | "sym":
                fields["activation_symmetry"] = next(k for k, v in _SHORT.items() if v == token)
            case "wsym" | "wasym":
                fields["weight_symmetric"] = token == "wsym"  # noqa: S105 - a word of the scheme's name
            case "pc" | "pt":
                fields["per_channel"] = token == "pc"  # noqa: S105 - the same
            case "rr":
                fields["reduced_range"] = True
            case _ if token not in UNCALIBRATED:
                raise BadOption(
                    f'scheme "{text}": "{token}" is not one of qdq, u8s8, u8u8, s8s8, asym, sym, wsym, wasym, pc, pt, '
                    f"rr, {', '.join(UNCALIBRATED)}"
                )
    fields["uncalibrated"] = tuple(name for name in UNCALIBRATED if name in tokens)
    return Scheme(**fields)  # type: ignore[arg-type]
