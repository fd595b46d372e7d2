"""Nodes and initialisers of a graph in the making. Knows nothing of quantisation beyond who wrote what."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import numpy_helper

from taglio import weights
from taglio.quantize.scheme import Scheme


@dataclass(slots=True)
class Emitter:
    """One per graph or subgraph.

    `pairs` maps (tensor, activation key) to the float name behind its quantise/dequantise pair; `written` maps a
    tensor to the scheme under which its producer wrote it in int8; `named` to the key of its first pair. `wire` maps
    (tensor, reading block) to the scheme in which a float block's reading travels; the block is "" for the caller.
    `store` takes long constants.
    """

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: dict[str, onnx.TensorProto] = field(default_factory=dict)
    pairs: dict[tuple[str, object], str] = field(default_factory=dict)
    written: dict[str, Scheme] = field(default_factory=dict)
    named: dict[str, object] = field(default_factory=dict)
    wire: Mapping[tuple[str, str], Scheme] = field(default_factory=dict)
    store: weights.Store | None = None

    def constant(self, name: str, values: np.ndarray) -> str:
        """Add an initialiser once and return its name."""
        if name not in self.initializers:
            if self.store is None:
                self.initializers[name] = numpy_helper.from_array(np.asarray(values), name)
            else:
                self.initializers[name] = self.store.tensor(np.asanyarray(values), name)
        return name
