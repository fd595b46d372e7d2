"""Checks of arguments: each error names the argument, its value and the values allowed. Decides nothing else."""

from collections.abc import Sequence
from math import isfinite
from typing import Any

from taglio.errors import BadOption


def number(name: str, value: Any) -> float:
    """`value` as a finite number. Raises BadOption."""
    try:
        as_float = float(value)
    except (TypeError, ValueError):
        raise BadOption(f"`{name}` is {value!r}: give a number") from None
    if not isfinite(as_float):
        raise BadOption(f"`{name}` is {value}: give a finite number")
    return as_float


def positive(name: str, value: Any) -> float:
    """`value` as a finite number above 0. Raises BadOption."""
    if (as_float := number(name, value)) <= 0.0:
        raise BadOption(f"`{name}` is {value}: give a number above 0")
    return as_float


def not_negative(name: str, value: Any) -> float:
    """`value` as a finite number of at least 0. Raises BadOption."""
    if (as_float := number(name, value)) < 0.0:
        raise BadOption(f"`{name}` is {value}: give a number of at least 0")
    return as_float


def patterns(name: str, value: Any) -> tuple[str, ...]:
    """`value` as a tuple of patterns; a single string becomes a tuple of one. Raises BadOption."""
    texts = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Sequence | set) else None
    if texts is None or not all(isinstance(text, str) for text in texts):
        raise BadOption(f"`{name}` is {value!r}: give a pattern or several, such as ['conv*']")
    return texts
