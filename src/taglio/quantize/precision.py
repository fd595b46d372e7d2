"""The forms that a block may have, and the assignment of one to each block. Builds no graph."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import get_args

from taglio.model.graph import Block
from taglio.model.operators import HOLDS_BODIES
from taglio.quantize.scheme import Scheme, Uncalibrated
from taglio.runtimes.openvino import NAME as OPENVINO


@dataclass(frozen=True, slots=True)
class Precision:
    """How a block computes.

    `int8`: all operators and the output in int8. `int8-anchor`: the Conv, MatMul or Gemm in int8 and the activation
    after it in float, so the output is float. `int8-weights`, `int8-dynamic`, `int4-weights`: a MatMul or Gemm with a
    quantised matrix and float inputs and output; `int8-dynamic` also an LSTM, and with `reduced_range` its weights have
    7 bits, as those of a static scheme; the two others also a MatMulNBits of the source with as many bits
    (uncalibrated.py). `scheme` is that of static int8, None for the other forms.
    """

    name: str
    scheme: Scheme | None = None
    reduced_range: bool = False

    @property
    def int8_output(self) -> bool:
        """Whether the block's outputs leave it as int8."""
        return self.name == "int8"

    @property
    def weight_bits(self) -> int:
        """Bits per weight in a file; OpenVINO rounds those of bfloat16 when it opens the file."""
        return {"float32": 32, "bfloat16": 32, "int4-weights": 4}.get(self.name, 8)

    @property
    def uncalibrated(self) -> bool:
        """Whether the form needs no range of any tensor: the runtime converts what it reads while it runs."""
        return self.name in UNCALIBRATED

    @property
    def may_saturate(self) -> bool:
        """Whether its sums of u8×s8 products may overflow 16 bits, on processors that add them in 16 bits. The kernels
        of int8-weights and int4-weights do not."""
        if self.name == "int8-dynamic":
            return not self.reduced_range
        return self.scheme is not None and not self.scheme.reduced_range

    def fits(self, block: Block) -> bool:
        """Whether `block` has this form."""
        if self == FLOAT32:
            return True
        if self.name == "bfloat16":
            # Tensors inside a graph that an operator holds cannot be rounded from outside.
            return block.writes_float and not block.movement and HOLDS_BODIES.isdisjoint(block.kind.split("+"))
        if block.recurrent:
            return self.name == "int8-dynamic"
        if block.blockwise_bits:
            return self.name == f"int{block.blockwise_bits}-weights"
        if self.uncalibrated:
            return block.quantizable and block.matrix
        return block.quantizable and (self.int8_output or block.soft_tail)

    def misfit(self, block: Block) -> str:
        """Why this form does not fit `block`; "" if it does."""
        if self.fits(block):
            return ""
        if self.name == "bfloat16":
            return "it writes no float32, only moves values, or holds a graph of its own"
        lacking = "constant matrix of at least 32 by 32" if self.uncalibrated else "activation behind its anchor"
        return block.refusal or f"it has no {lacking}"


FLOAT32 = Precision("float32")
UNCALIBRATED: Mapping[Uncalibrated, Precision] = {name: Precision(name) for name in get_args(Uncalibrated)}
BFLOAT16 = UNCALIBRATED["bfloat16"]


def uncalibrated_forms(reduced_range: bool) -> dict[Uncalibrated, Precision]:
    """The forms without calibration, by name. `reduced_range` gives the weights of int8-dynamic 7
    bits: the kernels of the others do not add in 16 bits."""
    return {**UNCALIBRATED, "int8-dynamic": Precision("int8-dynamic", reduced_range=reduced_range)}


# Block name -> precision; a block that is not named computes in float32.
Assignment = Mapping[str, Precision]
# Blocks that are not float with the names of their forms: equal for equal assignments, which a mapping is not.
Forms = tuple[tuple[str, str], ...]


def key_of(assignment: Assignment) -> Forms:
    """A key that is equal for equal assignments."""
    return tuple(sorted((block, precision.name) for block, precision in assignment.items()))


def form_of(assignment: Assignment, block: str) -> str:
    """The name of the precision of a block."""
    return assignment.get(block, FLOAT32).name


def first_fit(block: Block, forms: Iterable[Precision]) -> Precision | None:
    """The first of `forms` that `block` has; None if it has none of them."""
    return next((form for form in forms if form.fits(block)), None)


def precisions(scheme: Scheme, place: str = "") -> tuple[Precision, ...]:
    """The precisions that a plan under `scheme` chooses from, in `place` if it is given: not all have kernels there."""
    static = (FLOAT32, Precision("int8", scheme), Precision("int8-anchor", scheme))
    others = uncalibrated_forms(scheme.reduced_range)
    forms = static + tuple(others[form] for form in scheme.uncalibrated)
    return tuple(form for form in forms if has_kernels(place, form)) if place else forms


def int8_of(forms: Iterable[Precision]) -> Precision:
    """The one of `forms` in which a whole block is in static int8."""
    return next(form for form in forms if form.int8_output)


def has_kernels(place: str, form: Precision) -> bool:
    """Whether `place` has kernels of a form."""
    return form.name != "bfloat16" or place == OPENVINO
