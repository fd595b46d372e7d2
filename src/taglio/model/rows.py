"""Whether the rows of a batch keep apart, tried by running them beside other rows. Joins no requests.

Rows keep apart if

1. every input has a dynamic first dimension, and no operator is random, has one scale for all rows, or runs a subgraph:
   such operators may couple rows for values that no trial has;
2. every output has one entry per row along its first dimension;
3. rows get the same answers in batches of several sizes and orders as alone, up to the order of sums;
4. values a thousand times as large in all other rows do not change a row's answer, nor do the largest integers of the
   samples. Whatever is reduced, normalised or compared along the batch changes it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np
import onnx

from taglio.data.spec import InputSpec
from taglio.errors import one_line
from taglio.model.captures import operators
from taglio.model.inputs import Feed
from taglio.model.operators import HOLDS_BODIES, RANDOM
from taglio.runtimes.difference import difference

_ONE_SCALE = frozenset({"DynamicQuantizeLinear", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM", "QAttention"})


def why_rows_mix(
    models: Iterable[onnx.ModelProto],
    inputs: Iterable[InputSpec],
    feeds: Sequence[Feed],
    run: Callable[[Feed], Mapping[str, Any]],
) -> str:
    """Why a batch may be answered differently from its rows alone, in one line; "" if no trial shows it.

    `models` run one after another; their weights are not read. `feeds` are two or more of one shape, of which batches
    are made, and `run` answers a feed or a batch, by output.
    """
    for spec in inputs:
        if not spec.shape:
            return f"input {spec.name} has no batch dimension"
        if isinstance(spec.shape[0], int):
            return f"input {spec.name} has a fixed first dimension of {spec.shape[0]}"
    for node in (node for model in models for node in operators(model)):
        if reason := _why_coupled(node.op_type):
            return f"{node.op_type} {node.name or node.output[0]} {reason}"
    try:
        return _tried(feeds, run)
    except Exception as error:  # the runtimes' exceptions share no useful base class
        return f"it does not run on every batch: {one_line(error, 200)}"


def _why_coupled(kind: str) -> str:
    if kind in RANDOM:
        return "is random"
    if kind in _ONE_SCALE:
        return "scales all rows together: one row's values would change the others'"
    return "runs a subgraph, perhaps another one for other rows" if kind in HOLDS_BODIES else ""


def _tried(feeds: Sequence[Feed], run: Callable[[Feed], Mapping[str, Any]]) -> str:
    """The answer of `why_rows_mix` by running `feeds` alone and in batches."""
    last = len(feeds) - 1
    counts = [len(next(iter(feed.values()))) for feed in feeds]
    alone = [_arrays(run(feed)) for feed in feeds]
    for feed, count, answer in zip(feeds, counts, alone, strict=True):
        if name := next((name for name, value in feed.items() if value.shape[:1] != (count,)), ""):
            return f"input {name} has another number of rows than the first input"
        if name := next((name for name, value in answer.items() if value.shape[:1] != (count,)), ""):
            return f"output {name} does not have one entry per row along its first dimension"
    together: dict[str, np.ndarray] = {}
    for order in ((last, 0), range(last, 0, -1), range(last + 1)):
        together = _arrays(run(_joined([feeds[index] for index in order])))
        expected = _joined([alone[index] for index in order])
        # Another order of sums explains a relative L2 distance of 1e-3; batches of the same size do not reach 1e-6.
        if reason := _differs(expected, together, 1e-3):
            return f"{reason} in a batch of {len(order)} samples from that of each alone"
    integers = {name: value for name, value in _joined(feeds).items() if value.dtype.kind in "iub" and value.size}
    largest = {name: np.max(value) for name, value in integers.items()}
    for kept, rows in ((0, slice(counts[0])), (last, slice(-counts[last], None))):
        batch = [feed if index == kept else _loud(feed, (-1) ** index, largest) for index, feed in enumerate(feeds)]
        beside_loud = {name: value[rows] for name, value in _arrays(run(_joined(batch))).items()}
        if reason := _differs({name: value[rows] for name, value in together.items()}, beside_loud, 1e-6):
            return f"{reason} with the values of the other rows in a batch"
    return ""


def _arrays(answer: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {name: np.asarray(value) for name, value in answer.items()}


def _joined(feeds: Sequence[Feed]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([feed[name] for feed in feeds]) for name in feeds[0]}


def _differs(expected: Feed, answer: Feed, limit: float) -> str:
    """The beginning of a line about an output that differs by more than `limit`; "" if none does."""
    for name, value in expected.items():
        distance = difference(value, answer[name])
        if not distance <= limit:
            return f"output {name} differs {f'by {distance:.2%}' if isfinite(distance) else 'in shape'}"
    return ""


def _loud(feed: Feed, sign: int, largest: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """A feed with large floats of one sign. Integers may be indices, or divide others: they become the `largest` that
    samples have."""
    with np.errstate(over="ignore"):  # infinite as float16, which changes other rows no less
        return {
            name: (sign * 1e3 * (1.0 + np.abs(value))).astype(value.dtype)
            if value.dtype.kind == "f"
            else np.full_like(value, largest.get(name, value))
            for name, value in feed.items()
        }
