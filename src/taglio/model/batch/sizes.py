"""Arithmetic on shapes, as exporters write it: Shape → Gather → Concat → Reshape. Moves no rows."""

import operator
from collections.abc import Callable

import onnx

from taglio.model.batch.values import ONE, Size, Step, Value, product
from taglio.model.operators import integer

# A longer tensor of integers is no shape.
MOST_ELEMENTS = 64
_INTEGERS = (onnx.TensorProto.INT32, onnx.TensorProto.INT64)


def _quotient(left: int, right: int) -> int:
    """ONNX's quotient of integers, which is rounded towards zero."""
    return abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)


_ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "Add": operator.add, "Sub": operator.sub, "Mul": operator.mul, "Div": _quotient, "Max": max, "Min": min,
    "Equal": operator.eq, "Less": operator.lt, "LessOrEqual": operator.le, "Greater": operator.gt,
    "GreaterOrEqual": operator.ge, "And": operator.and_, "Or": operator.or_,
}  # fmt: skip


def computed(step: Step) -> Value | None:
    """The output of an operator on shapes; None for other operators, and where its elements are not known."""
    rule = _RULES.get(step.node.op_type)
    return rule(step) if rule else None


def opaque(*parts: object) -> Size:
    """A size of which only its origin is known: the same parts give the same size."""
    return Size(1, (f"({' '.join(map(str, parts))})",))


def _shape(step: Step) -> Value | None:
    value = step.value(0)
    if value is None or value.shape is None:
        return None
    sizes = value.shape[integer(step.node, "start") : integer(step.node, "end", len(value.shape))]
    return Value((Size(len(sizes)),), sizes)


def _count(step: Step) -> Value | None:
    value = step.value(0)
    return None if value is None or value.shape is None else Value((), (product(value.shape),))


def _same(step: Step) -> Value | None:
    if step.node.op_type == "Cast" and integer(step.node, "to") not in _INTEGERS:
        return None
    return step.value(0)


def _reshaped(step: Step) -> Value | None:
    """A scalar or a list becomes a list, or a list of one a scalar."""
    sizes, axes = step.elements(0), step.numbers("axes", 1)
    if sizes is None or axes is None or len(step.shape()) > 1:
        return None
    if step.node.op_type == "Squeeze" and len(sizes) == 1:
        return Value((), sizes)
    listed = step.node.op_type == "Reshape" and len(axes) == 1
    return Value((Size(len(sizes)),), sizes) if listed or (axes == (0,) and not step.shape()) else None


def _picked(step: Step) -> Value | None:
    sizes, indices = step.elements(0), step.numbers("", 1)
    if sizes is None or not indices or len(step.shape()) != 1:
        return None
    if not -len(sizes) <= min(indices) <= max(indices) < len(sizes):
        return None
    return Value(step.shape(1), tuple(sizes[index] for index in indices))


def _sliced(step: Step) -> Value | None:
    sizes, parts = step.elements(0), [step.numbers(name, at) for name, at in (("starts", 1), ("ends", 2), ("", 4))]
    if sizes is None or None in parts or len(step.shape()) != 1 or any(len(part or ()) > 1 for part in parts):
        return None
    (start, *_), (end, *_), (stride, *_) = (part or (1,) for part in parts)
    elements = sizes[start:end:stride]
    return Value((Size(len(elements)),), elements)


def _joined(step: Step) -> Value | None:
    sizes: list[Size] = []
    for name, value in zip(step.node.input, step.values, strict=True):
        length = value.shape[0].constant if value and value.shape and len(value.shape) == 1 else None
        if value is None or length is None or length > MOST_ELEMENTS:
            return None
        sizes += value.elements or [opaque(name, index) for index in range(length)]
    return Value((Size(len(sizes)),), tuple(sizes))


def _pairwise(step: Step) -> Value | None:
    """Elements with elements, or with a scalar or list of one."""
    if len(step.values) != 2:
        return None
    return _elementwise(step, lambda left, right: _combined(step.node.op_type, left, right))


def _chosen(step: Step) -> Value | None:
    def choice(condition: Size, yes: Size, no: Size) -> Size | None:
        if condition.constant is not None or yes == no:
            return yes if condition.number else no
        return None if yes.batched or no.batched else opaque("where", condition, yes, no)

    return _elementwise(step, choice)


def _elementwise(step: Step, combine: Callable[..., Size | None]) -> Value | None:
    lists = [value.elements if value and len(value.shape or ()) <= 1 else None for value in step.values]
    length = max((len(sizes or ()) for sizes in lists), default=0)
    if any(sizes is None or len(sizes) not in (1, length) for sizes in lists):
        return None
    full = [(sizes or ()) * (1 if len(sizes or ()) == length else length) for sizes in lists]
    results = [combine(*column) for column in zip(*full, strict=True)]
    if None in results:
        return None
    rank = max((len(value.shape or ()) for value in step.values if value), default=0)
    return Value((Size(length),) * rank, tuple(size for size in results if size is not None))


def _combined(kind: str, left: Size, right: Size) -> Size | None:
    """The result for two elements; None where it is not a product of sizes and depends on the number of rows."""
    if left.constant is not None and right.constant is not None:
        return None if kind == "Div" and not right.number else Size(int(_ARITHMETIC[kind](left.number, right.number)))
    if kind == "Mul":
        return product((left, right))
    if kind == "Div" and (quotient := left.over(right)) is not None:
        return quotient
    if kind == "Equal" and (left == right or _never_equal(left, right)):
        return Size(int(left == right))
    if kind in ("Add", "Sub") and right == Size(0):
        return left
    return None if left.batched or right.batched else opaque(kind, left, right)


def _never_equal(left: Size, right: Size) -> bool:
    """Whether one is a dimension, or a product of dimensions, and the other is negative."""
    numbers = [size.number for size in (left, right) if size.constant is not None]
    dims = [size for size in (left, right) if size.number > 0 and not any("(" in symbol for symbol in size.symbols)]
    return numbers != [] and numbers[0] < 0 and dims != []


def _multiplied(step: Step) -> Value | None:
    sizes = step.elements(0)
    keeps = integer(step.node, "keepdims", 1)
    return (
        None
        if sizes is None or integer(step.node, "noop_with_empty_axes")
        else Value((ONE,) if keeps else (), (product(sizes),))
    )


_RULES: dict[str, Callable[[Step], Value | None]] = {
    "Shape": _shape, "Size": _count, "Identity": _same, "Cast": _same, "Squeeze": _reshaped, "Unsqueeze": _reshaped,
    "Reshape": _reshaped, "Gather": _picked, "Slice": _sliced, "Concat": _joined, "Where": _chosen,
    "ReduceProd": _multiplied, **dict.fromkeys(_ARITHMETIC, _pairwise),
}  # fmt: skip
