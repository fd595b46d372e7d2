"""The precisions a block may take, and the assignment of one to each block."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from taglio.model.graph import Block
from taglio.quantize.scheme import Scheme

Form = Literal["float", "whole", "anchor", "half"]


@dataclass(frozen=True, slots=True)
class Precision:
    """How a block computes.

    `whole`: all operators and the output in int8. `anchor`: the Conv, MatMul or Gemm in int8 and the activation after
    it in float, so the output is float. `half`: float16, with inputs and outputs rounded to it.
    """

    name: str
    scheme: Scheme | None
    form: Form

    @property
    def int8_output(self) -> bool:
        """Whether the block's outputs leave it as int8."""
        return self.form == "whole"

    def fits(self, block: Block) -> bool:
        """Whether `block` has this form."""
        if self.form == "float":
            return True
        if self.form == "half":
            return block.quantizable and not block.movement
        return block.quantizable and (self.form == "whole" or block.soft_tail)


FLOAT32 = Precision("float32", None, "float")
FLOAT16 = Precision("float16", None, "half")

# Block name -> precision; a block that is not named computes in float32.
Assignment = Mapping[str, Precision]


def precisions(scheme: Scheme) -> tuple[Precision, ...]:
    """The precisions that a plan under `scheme` chooses from."""
    return (FLOAT32, Precision("int8", scheme, "whole"), Precision("int8-anchor", scheme, "anchor"))
