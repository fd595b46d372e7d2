"""Nodes and initialisers of a graph that is being built. Only records what was quantised; quantises nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from taglio import weights
from taglio.quantize.scheme import Scheme


@dataclass(slots=True)
class Emitter:
    """The contents of one graph or subgraph.

    `made` are the tensors that were added once: pairs, casts, copies, and what is dequantised from constants. `written`
    maps a tensor to the scheme in which its producer wrote it in int8. `wire` maps (tensor, reading block) to the
    scheme in which a tensor travels to a float block; the block is "" for the caller. `store` takes large constants.
    """

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: dict[str, onnx.TensorProto] = field(default_factory=dict)
    made: set[str] = field(default_factory=set)
    written: dict[str, Scheme] = field(default_factory=dict)
    wire: Mapping[tuple[str, str], Scheme] = field(default_factory=dict)
    store: weights.WeightFiles | None = None

    def constant(self, name: str, values: np.ndarray) -> str:
        """Add an initialiser once and return its name."""
        if name not in self.initializers:
            self.initializers[name] = weights.constant(np.asanyarray(values), name, self.store)
        return name

    def once(self, kind: str, inputs: Sequence[str], output: str, name: str, **attributes: Any) -> str:
        """Append an operator called `name` that writes `output`, unless that is there; returns `output`."""
        if output not in self.made:
            self.made.add(output)
            self.nodes.append(helper.make_node(kind, inputs, [output], name=name, **attributes))
        return output

    def cast(self, source: str, name: str, kind: int) -> str:
        """Write `source` to `name` as values of an ONNX type, once."""
        return self.once("Cast", [source], name, f"{name}/cast", to=kind)

    def rounded(self, source: str, name: str, kind: int) -> str:
        """Write `source`, rounded to an ONNX type of 16 bits, to `name` in float32, once."""
        return self.cast(self.cast(source, f"{name}/low", kind), name, TensorProto.FLOAT)
