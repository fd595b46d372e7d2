"""How int8 is done: one `Scheme` value, which calibration, error, profile, build and run share."""

import re
from dataclasses import dataclass, replace
from typing import Literal, get_args

from taglio.errors import BadOption

Uncalibrated = Literal["int8-weights", "int8-dynamic", "int4-weights", "bfloat16"]


@dataclass(frozen=True, slots=True)
class Scheme:
    """Static int8: activations in u8, each with its own zero point, or if `signed` in s8 symmetric about 0; weights in
    s8 symmetric about 0, with a scale per output channel. Ranges of activations are those of the values that occur in
    calibration.

    `reduced_range` gives weights 7 bits, also those of int8-dynamic, for processors without VNNI: their 16-bit sums of
    u8×s8 products saturate, and so do those of s8×s8, which ONNX Runtime computes as u8×s8.

    `uncalibrated` are the forms beside static int8 that plans may use (quantize/uncalibrated.py).
    """

    signed: bool = False
    reduced_range: bool = False
    uncalibrated: tuple[Uncalibrated, ...] = ()

    def __str__(self) -> str:
        static = "-".join([*_STATIC[self.signed], *(["rr"] if self.reduced_range else [])])
        return "+".join([static, *self.uncalibrated])

    @property
    def may_saturate(self) -> bool:
        """Whether sums of two products may overflow 16 bits, on processors that add them in 16 bits."""
        return not self.reduced_range

    @property
    def narrow(self) -> "Scheme":
        """The scheme with weights of 7 bits."""
        return replace(self, reduced_range=True)


# The words of static int8, by whether activations are signed.
_STATIC = {False: ("qdq", "u8s8", "asym", "pc"), True: ("qdq", "s8s8", "sym", "pc")}

DEFAULT_SCHEME = Scheme()


def parse_scheme(text: str) -> Scheme:
    """Parse what `str(scheme)` writes, in any order, such as `qdq-u8s8-asym-pc-rr+int8-dynamic`. Raises BadOption."""
    static, *forms = text.strip().lower().split("+")
    tokens = [*re.split(r"[-:,]", static), *forms]
    signed = "s8s8" in tokens
    uncalibrated: tuple[Uncalibrated, ...] = get_args(Uncalibrated)
    known = (*_STATIC[signed], "rr", *uncalibrated)
    for token in tokens:
        if token not in known:
            other = _STATIC[not signed]
            raise BadOption(f'scheme "{text}": "{token}" is not one of {", ".join(known)} (or {"-".join(other)})')
    return Scheme(signed, "rr" in tokens, tuple(name for name in uncalibrated if name in tokens))
