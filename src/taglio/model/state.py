"""The states of a model: outputs that are inputs of the next step."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod

import numpy as np
import onnx

from taglio.data.spec import Array, InputSpec, Shape, batch_symbol
from taglio.errors import BadData, BadOption
from taglio.model.inputs import spec_of

# An output and the input that takes its value in the next step.
Pair = tuple[str, str]
# What exporters add to the name of a state to distinguish its input from its output.
_MARKS = re.compile(
    r"past_key_values|past_key_value|present_key_values|present|past|new|next|previous|prev|output|out|input|in|cache"
)
# The base of a name that is only a mark, such as past; a name that only says input or output has no base.
_ALONE, _WHICH_END = "state", re.compile(r"output|out|input|in")
_LAST, _FIRST = re.compile(r"(?<=[a-z0-9])_?[no]$", re.IGNORECASE), re.compile(r"(?<=[a-z])_?0$|(?<=[a-z0-9])_?i$")


def pairs(specs: Sequence[InputSpec], values: Iterable[onnx.ValueInfoProto], texts: Sequence[str]) -> tuple[Pair, ...]:
    """Parse OUTPUT=INPUT texts into pairs of a model's output and input. Raises BadOption for names that the model does
    not have, and for an output that does not fit its input."""
    parsed: list[Pair] = []
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
        if any(present == pair[0] or past == pair[1] for pair in parsed):
            raise BadOption(f'`state` "{text}": one of the two is already in another pair: name each once')
        parsed.append((present, past))
    return tuple(parsed)


def suggested(specs: Sequence[InputSpec], graph: onnx.GraphProto) -> tuple[Pair, ...]:
    """Pairs of an output and an input of the same type and shape whose names are the same but for a mark of direction:
    present.0.key and past_key_values.0.key, stateN and state, hn and h0.

    An input that is only passed on is no state. Nor are integers alone, which are lengths of what is returned, nor
    inputs that leave no other to give data for.
    """
    passed = {(node.output[0], node.input[0]) for node in graph.node if node.op_type == "Identity"}
    matches: list[Pair] = []
    for spec in specs:
        for value in graph.output:
            pair = (value.name, spec.name)
            named = value.name != spec.name and not _base(value.name, _LAST).isdisjoint(_base(spec.name, _FIRST))
            if named and pair not in passed and _fits(spec_of(value), spec):
                matches.append(pair)
    presents, pasts = [present for present, _ in matches], [past for _, past in matches]
    unambiguous = tuple(match for match in matches if presents.count(match[0]) == pasts.count(match[1]) == 1)
    dtypes = {spec.name: spec.dtype for spec in specs}
    holds_values = any("float" in dtypes[past] for _, past in unambiguous)
    return unambiguous if holds_values and len(unambiguous) < len(specs) else ()


def first_states(
    states: Iterable[Pair], inputs: Sequence[InputSpec], after: Callable[[Mapping[str, Array]], Mapping[str, Array]]
) -> dict[str, Array]:
    """The initial states of a session, by input: zeros. `after` runs the first step: the states before it, by input, ->
    those after it. Raises what `after` does if the model does not run.

    A dynamic dimension is either the batch, of size 1, or it grows, from 0 before the first step. The batch may have no
    name, or another name than in the other inputs, so 0 is tried: it is right if the step makes the dimension larger.
    If the model does not run on 0, the dimensions that grow are those that grow from 1.
    """
    symbol, specs = batch_symbol(inputs), {spec.name: spec for spec in inputs}
    pasts = [(specs[past], specs[past].shape or ()) for _, past in states]

    def shapes(other: int) -> list[Shape]:
        """1 for the batch and `other` for what may grow."""
        return [
            tuple(dim if isinstance(dim, int) else 1 if symbol is not None and dim == symbol else other for dim in dims)
            for _, dims in pasts
        ]

    def zeros(sizes: Sequence[Shape]) -> dict[str, Array]:
        return {spec.name: np.zeros(shape, spec.numpy_dtype()) for (spec, _), shape in zip(pasts, sizes, strict=True)}

    before = shapes(0)
    if all(map(prod, before)):
        return zeros(before)
    try:
        states_after = after(zeros(before))
    except BadData as error:
        before = shapes(1)
        try:
            states_after = after(zeros(before))
        except BadData:
            raise error from None
    first_shapes: list[Shape] = []
    for (spec, dims), old in zip(pasts, before, strict=True):
        sizes = zip(dims, old, states_after[spec.name].shape, strict=False)
        first_shapes.append(tuple(dim if isinstance(dim, int) else int(was == now) for dim, was, now in sizes))
    return zeros(first_shapes)


def _base(name: str, end: re.Pattern[str]) -> set[str]:
    """`name` without marks of direction, in the forms that it may have; empty if it only says input or output."""
    stems = {re.sub(r"[^a-z0-9]+", ".", _MARKS.sub("", text.lower())).strip(".") for text in (name, end.sub("", name))}
    fallback = {_ALONE} if _WHICH_END.sub("", name.lower()) else set()
    return {stem for stem in stems if stem} or fallback


def _fits(output: InputSpec, spec: InputSpec) -> bool:
    if output.dtype != spec.dtype or output.shape is None or spec.shape is None:
        return output.dtype == spec.dtype
    return len(output.shape) == len(spec.shape) and all(
        out == size or not isinstance(out, int) or not isinstance(size, int)
        for out, size in zip(output.shape, spec.shape, strict=True)
    )
