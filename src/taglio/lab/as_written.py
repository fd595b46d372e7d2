"""How far ONNX Runtime's answers are from those of the source as it is written. Plans nothing.

1. The reference is the source without ONNX Runtime's optimisations, with integer sums that do not saturate
   (model/written.py).
2. The float model, which taglio plans with, runs with the optimisations of the set-up. On a few inputs, each run twice
   in opposite orders, its answers are compared with the reference.
3. If they agree within rounding, the float model answers all inputs: it is faster. Otherwise the source answers them,
   and the difference is said with its cause, which is computed and not guessed: the float model is run again with sums
   that do not saturate.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnxruntime import InferenceSession

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
# Inputs that are compared, fewer of a model that takes longer than this for them.
INPUTS, ENOUGH_S = 8, 4.0


@dataclass(frozen=True, slots=True)
class Agreement:
    """The relative L2 `distance` of the float model's answers from the reference, that of the worst output; 0 if they
    agree within rounding, or if there is no reference but them. `saturates`: sums of the model's own products are the
    cause. `remark` is a line for the user, or ""."""

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
    unfolded: Callable[[], SourceModel] | None = None,
) -> Agreement:
    """Compare `model`, as ONNX Runtime runs it with `options`, with the source as `written` reads it, on `samples`.
    `room_bytes` is the memory for answers (None: no limit). `unfolded` reads the source with its quantised operators,
    if `written` folds them to float: how far the reference is from it is said."""
    if model.random or not samples:
        return Agreement()
    names, label = list(model.outputs), model.name
    run = _Runs(names, samples, label, bounded_outputs(model.proto))
    try:
        source = written()
        session = open_exact(source.proto, label, options.threads)
        reference = Shelf((run.one(session, index) for index in range(len(samples))), room_bytes)
        unstable = run.distance(session, reference, reversed(range(len(samples))))
        del session, source  # and their memory
        folding = "" if unfolded is None else run.distance_by_folding(unfolded(), reference, options.threads)
    except TaglioError as error:
        return Agreement(remark=f"errors are relative to ONNX Runtime's optimised answers: {one_line(error, 300)}")
    inputs = plural(len(samples), "input")
    if unstable > ROUNDING:
        return Agreement(
            remark=f"the model's answers depend on the order of requests: on {inputs} they differ by {unstable:.2%} in "
            "reverse order, and errors include that"
        )

    def distances(proto: onnx.ModelProto) -> tuple[float, float]:
        session = open_session(proto, replace(options, lean=True), label=label)
        forwards = run.distance(session, reference, range(len(samples)))
        return forwards, run.distance(session, reference, reversed(range(len(samples))))

    forwards, backwards = distances(model.proto)
    distance = max(forwards, backwards)
    if distance <= ROUNDING:
        return Agreement(remark=folding)
    exact = with_exact_sums(model.proto, fused=True)
    saturates = exact is not model.proto and max(distances(exact)) < distance / 2.0
    if saturates:
        cause = f"sums of its own u8×s8 products ({saturating_products(model.proto)}) saturate on this processor"
    elif abs(forwards - backwards) > ROUNDING:
        cause = "its optimisations change the answers, which then depend on the order of requests"
    else:
        cause = "its optimisations change the answers"
    remark = f"ONNX Runtime's answers differ from those that the model's graph defines by {distance:.2%} on {inputs}"
    remark = f"{remark}: {cause}; errors are relative to the graph's own answers"
    return Agreement(distance, saturates, "; ".join(filter(None, (remark, folding))))


def bounded_outputs(proto: onnx.ModelProto) -> frozenset[str]:
    """The outputs that are values of a function with bounded values, or products of some, moved or not."""
    producer = writers(proto.graph.node)
    bounded: dict[str, bool] = {}
    for node in proto.graph.node:  # in topological order
        read = [name for name in node.input if name in producer]
        passed = node.op_type in MOVEMENT or node.op_type == "Mul"
        is_bounded = node.op_type in _BOUNDED or (passed and bool(read) and all(bounded.get(name) for name in read))
        bounded |= dict.fromkeys(node.output, is_bounded)
    return frozenset(value.name for value in proto.graph.output if bounded.get(value.name))


@dataclass(frozen=True, slots=True)
class _Runs:
    """Runs of sessions on the same `samples`."""

    names: list[str]
    samples: Sequence[Mapping[str, np.ndarray]]
    label: str
    bounded: frozenset[str]

    def one(self, session: InferenceSession, index: int) -> list[np.ndarray]:
        """The answers to one sample."""
        return run_session(session, self.names, self.samples[index], self.label)

    def distance(self, session: InferenceSession, reference: Sequence[list[np.ndarray]], order: Iterable[int]) -> float:
        """The distance of a session's answers from the `reference`, run in this `order`."""
        tally = Tally(self.names)
        for index in order:
            tally.add(reference[index], self._beyond_rounding(reference[index], self.one(session, index)))
        return float(finite(tally.value()))

    def _beyond_rounding(self, reference: Sequence[Any], answers: Sequence[Any]) -> list[Any]:
        """`answers`, with the values of the reference for bounded outputs that differ by no more than rounding at 1."""

        def same(name: str, left: Any, right: Any) -> bool:
            return (
                name in self.bounded
                and left.shape == right.shape
                and bool(np.allclose(left, right, rtol=0.0, atol=_AT_ONE, equal_nan=True))
            )

        triples = zip(self.names, reference, answers, strict=True)
        return [left if same(name, left, right) else right for name, left, right in triples]

    def distance_by_folding(self, unfolded: SourceModel, reference: Sequence[list[np.ndarray]], threads: int) -> str:
        """A line on how far the `reference` is from the quantised source that it was folded from."""
        session = open_exact(unfolded.proto, self.label, threads)
        distance = self.distance(session, reference, range(len(self.samples)))
        return (
            f"folded to float, the model's answers differ from those of its quantised operators by {distance:.2%}; "
            "errors are relative to the float ones"
        )
