"""How far ONNX Runtime's answers are from those of the source as it is written. Plans nothing.

1. The reference is the source without ONNX Runtime's optimisations, with integer sums that do not saturate
   (model/written.py).
2. The float model, which taglio plans with, runs with the optimisations of the set-up. On a few inputs its answers are
   compared with the reference.
3. If they agree within rounding, the float model answers all inputs, because it is faster. Otherwise the source answers
   them, and a remark gives the difference and its cause. To find the cause, the float model is run again with sums that
   do not saturate.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx

from taglio.error.tally import Tally, finite
from taglio.errors import TaglioError, one_line, plural
from taglio.memory import Shelf
from taglio.model.captures import writers
from taglio.model.exact import saturating_products, with_exact_sums
from taglio.model.load import Model
from taglio.model.operators import MOVEMENT
from taglio.model.written import SourceModel, open_exact
from taglio.runtimes.onnxruntime import SessionOptions, open_session, run_session

# Fusions reorder float sums; a larger relative distance is more than rounding.
ROUNDING = 1e-4
# Functions that end in 0 or ±1 are as exact as values of 1 are: ONNX Runtime's Sigmoid is 2 % off at 1e-6, where a
# detector finds nothing.
_BOUNDED, _AT_ONE = frozenset({"Sigmoid", "HardSigmoid", "Softmax", "Tanh", "Erf"}), 1e-6
# The number of inputs that are compared; fewer if the model takes more than ENOUGH_S seconds for them.
INPUTS, ENOUGH_S = 8, 4.0


@dataclass(frozen=True, slots=True)
class Agreement:
    """The relative L2 `distance` of the float model's answers from the reference, that of the worst output. It is 0 if
    they agree within rounding, or if the float model's answers are the only reference. `saturates`: sums of the model's
    own products are the cause. `remark` is a line for the user, or ""."""

    distance: float = 0.0
    saturates: bool = False
    remark: str = ""

    @property
    def agrees(self) -> bool:
        """Whether the float model's answers serve as the reference."""
        return self.distance == 0.0


def agreement_of(
    model: Model,
    written: Callable[[], SourceModel],
    samples: Sequence[Mapping[str, np.ndarray]],
    options: SessionOptions,
    room_bytes: float | None = None,
) -> Agreement:
    """Compare `model`, as ONNX Runtime runs it with `options`, with the source as `written` reads it, on `samples`.
    `room_bytes` is the memory for answers (None: no limit)."""
    if model.random or not samples:
        return Agreement()
    names, label, bounded = list(model.outputs), model.name, bounded_outputs(model.proto)
    try:
        source = written()
        session = open_exact(source.proto, label, options.threads)
        reference = Shelf((run_session(session, names, sample, label) for sample in samples), room_bytes)
        del session, source  # and their memory
    except TaglioError as error:
        return Agreement(remark=f"errors are relative to ONNX Runtime's optimised answers: {one_line(error, 300)}")

    def distance_of(proto: onnx.ModelProto) -> float:
        session, tally = open_session(proto, replace(options, lean=True), label=label), Tally(names)
        for sample, expected in zip(samples, reference, strict=True):
            answers = dict(zip(names, run_session(session, names, sample, label), strict=True))
            tally.add(expected, _beyond_rounding(expected, answers, bounded))
        return float(finite(tally.value()))

    distance = distance_of(model.proto)
    if distance <= ROUNDING:
        return Agreement()
    exact = with_exact_sums(model.proto, fused=True)
    saturates = exact is not model.proto and distance_of(exact) < distance / 2.0
    cause = "its optimisations change the answers"
    if saturates:
        cause = f"sums of its own u8×s8 products ({saturating_products(model.proto)}) saturate on this processor"
    return Agreement(
        distance,
        saturates,
        f"ONNX Runtime's answers differ from those that the model's graph defines by {distance:.2%} on "
        f"{plural(len(samples), 'input')}: {cause}; errors are relative to the graph's own answers",
    )


def bounded_outputs(proto: onnx.ModelProto) -> frozenset[str]:
    """The outputs that a function with bounded values writes, or that are products of such values, moved or not."""
    producer = writers(proto.graph.node)
    bounded: dict[str, bool] = {}
    for node in proto.graph.node:  # in topological order
        read = [name for name in node.input if name in producer]
        passed = node.op_type in MOVEMENT or node.op_type == "Mul"
        is_bounded = node.op_type in _BOUNDED or (passed and bool(read) and all(bounded.get(name) for name in read))
        bounded |= dict.fromkeys(node.output, is_bounded)
    return frozenset(value.name for value in proto.graph.output if bounded.get(value.name))


def _beyond_rounding(expected: Sequence[Any], answers: Mapping[str, Any], bounded: Collection[str]) -> list[Any]:
    """The `answers` by output, where those of `bounded` outputs are replaced by the `expected` values if they differ
    only by rounding at 1."""

    def is_rounding(name: str, left: Any, right: Any) -> bool:
        same_shape = name in bounded and left.shape == right.shape
        return same_shape and bool(np.allclose(left, right, rtol=0.0, atol=_AT_ONE, equal_nan=True))

    pairs = zip(expected, answers.items(), strict=True)
    return [left if is_rounding(name, left, right) else right for left, (name, right) in pairs]
