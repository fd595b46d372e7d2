"""The states of a model: outputs that are inputs of the next step. Runs no model."""

import re
from collections.abc import Iterable, Sequence

import numpy as np
import onnx

from taglio.data.spec import Array, InputSpec, Shape, batch_symbol
from taglio.errors import BadOption
from taglio.model.inputs import spec_of

# An output and the input that takes its value in the next step.
Pair = tuple[str, str]
# What exporters add to the name of a state to distinguish its input from its output.
_MARKS = re.compile(
    r"past_key_values|past_key_value|present_key_values|present|past|new|next|previous|prev|output|out|input|in|cache"
)
_LAST, _FIRST = re.compile(r"(?<=[a-z0-9])_?[no]$", re.IGNORECASE), re.compile(r"(?<=[a-z])_?0$|(?<=[a-z0-9])_?i$")


def pairs(specs: Sequence[InputSpec], values: Iterable[onnx.ValueInfoProto], texts: Sequence[str]) -> tuple[Pair, ...]:
    """Parse OUTPUT=INPUT texts into pairs of a model's output and input. Raises BadOption for names that the model does
    not have, and for an output that does not fit its input."""
    found: list[Pair] = []
    inputs = {spec.name: spec for spec in specs}
    outputs = {value.name: spec_of(value) for value in values}
    for text in texts:
        present, equals, past = text.partition("=")
        if not equals or present not in outputs or past not in inputs:
            raise BadOption(
                f'`state` "{text}": write OUTPUT=INPUT; the outputs are {", ".join(outputs)}, the inputs '
                f"{', '.join(inputs)}"
            )
        if not _fits(outputs[present], inputs[past]):
            raise BadOption(
                f'`state` "{text}": the output is {outputs[present]}, the input {inputs[past]}: name a pair of '
                "the same type and shape"
            )
        if any(present == each[0] or past == each[1] for each in found):
            raise BadOption(f'`state` "{text}": one of the two is already in another pair: name each once')
        found.append((present, past))
    return tuple(found)


def suggested(specs: Sequence[InputSpec], values: Sequence[onnx.ValueInfoProto]) -> tuple[Pair, ...]:
    """Pairs of an output and an input that have the same type and shape, and the same name but for a mark of direction:
    present.0.key and past_key_values.0.key, stateN and state, hn and h0."""
    found: list[Pair] = []
    for spec in specs:
        for value in values:
            alike = _base(value.name, _LAST) & _base(spec.name, _FIRST)
            if alike and value.name != spec.name and _fits(spec_of(value), spec):
                found.append((value.name, spec.name))
    outputs, inputs = [each[0] for each in found], [each[1] for each in found]
    return tuple(each for each in found if outputs.count(each[0]) == inputs.count(each[1]) == 1)


def first_shape(spec: InputSpec, inputs: Sequence[InputSpec]) -> Shape:
    """The shape of a state before the first step: 1 for a dynamic batch, 0 for a dimension that grows."""
    symbol = batch_symbol(inputs)
    return tuple(dim if isinstance(dim, int) else int(symbol is not None and dim == symbol) for dim in spec.shape or ())


def first_states(states: Iterable[Pair], inputs: Sequence[InputSpec]) -> dict[str, Array]:
    """The initial states of a session, by input: zeros."""
    specs = {spec.name: spec for spec in inputs}
    return {past: np.zeros(first_shape(specs[past], inputs), specs[past].numpy_dtype()) for _, past in states}


def _base(name: str, end: re.Pattern[str]) -> set[str]:
    """`name` without marks of direction, in the forms that it may have; empty if nothing is left."""
    ways = {re.sub(r"[^a-z0-9]+", ".", _MARKS.sub("", each.lower())).strip(".") for each in (name, end.sub("", name))}
    return {each for each in ways if each}


def _fits(output: InputSpec, spec: InputSpec) -> bool:
    if output.dtype != spec.dtype or output.shape is None or spec.shape is None:
        return output.dtype == spec.dtype
    return len(output.shape) == len(spec.shape) and all(
        out == size or not isinstance(out, int) or not isinstance(size, int)
        for out, size in zip(output.shape, spec.shape, strict=True)
    )
