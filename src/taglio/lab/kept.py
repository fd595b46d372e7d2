"""A cache of results about an opened model, each computed once. Computes nothing itself."""

from collections.abc import Callable, Hashable
from typing import Any, TypeVar, cast

T = TypeVar("T")


class Kept:
    """Results about a model, each computed once."""

    def __init__(self) -> None:
        self._known: dict[tuple[Hashable, ...], Any] = {}

    def once(self, key: tuple[Hashable, ...], make: Callable[[], T]) -> T:
        """The result under `key`, made on first use."""
        if key not in self._known:
            self._known[key] = make()
        return cast("T", self._known[key])

    def put(self, key: tuple[Hashable, ...], value: object) -> None:
        """Add a known result."""
        self._known[key] = value

    def all(self, kind: str) -> dict[Any, Any]:
        """All results whose keys begin with (kind, name), by name."""
        return {key[1]: value for key, value in self._known.items() if key[0] == kind}

    def forget(self, kind: str, but: Hashable = None) -> None:
        """Drop all results of a kind but the one with the name `but`: they take much memory and are no longer
        needed."""
        self._known = {key: value for key, value in self._known.items() if key[0] != kind or key[1] == but}
