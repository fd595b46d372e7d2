"""Errors of plans as built for a place, expected from those that the search measured in float32. Measures nothing.

Where the float model has the error b, a plan with the error e is expected to have √(e² + b²). But int8 kernels of other
runtimes round differently, and blocks in int8 have no part in b, which may be most of the error. So the plans that are
timed in a place are measured there too, and the ratio to what was expected corrects other plans, which are like them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import median

from taglio.error.runtime_part import left_for_int8, together
from taglio.model.graph import Graph
from taglio.plan.result import Interval, Limits
from taglio.runtimes.onnxruntime import NAME
from taglio.search.ledger import Entry
from taglio.search.search import keeps_pins

# A plan whose expected error is this many times the limit does not keep it.
_FAR = 3.0


def shifted(expected: Interval, base: float) -> Interval:
    """The predicted error of a plan in float32 arithmetic as expected in a place where the float model has the error
    `base`."""
    low, value, high = (together(end, base) for end in (expected.low, expected.value, expected.high))
    return Interval(low, value, high)


@dataclass(frozen=True, slots=True)
class AsBuilt:
    """A place where the float model has the error `base`, under `limits`. Entries have the errors of the search. Those
    that were not measured as built are `usual` times as far off as expected."""

    limits: Limits
    base: float
    usual: float = 1.0

    @property
    def bound(self) -> float:
        """The part of the limit that is left for int8."""
        return left_for_int8(self._most / self.usual, self.base)

    @property
    def within(self) -> Limits:
        """The limits of the search."""
        return replace(self.limits, max_error=self.bound)

    @property
    def _most(self) -> float:
        assert self.limits.max_error is not None, "errors here are expected for a limit"
        return self.limits.max_error

    def following(self, leader: Entry, entries: Iterable[Entry]) -> "AsBuilt":
        """The same place, where entries that were not measured are expected to be as far off as the `leader`, or as
        most `entries` if it was not measured."""
        measured = [self._ratio(entry) for entry in entries if entry.built is not None]
        usual = median(measured) if measured else 1.0
        return replace(self, usual=usual if leader.built is None else self._ratio(leader))

    def unsure(self, entry: Entry) -> bool:
        """Whether the error of a plan as built is still to be measured: it may hold, and is not in ONNX Runtime, where
        built models equal the switchable graph."""
        is_known = entry.built is not None or entry.runtime == NAME or not entry.assignment
        return not is_known and self.limits.metric.smooth and 0.0 < self._error(entry) < _FAR * self._most

    def judged(self, graph: Graph, entries: Iterable[Entry]) -> list[Entry]:
        """The entries, of which those hold that are expected to hold here; as they are if none is."""
        before = list(entries)
        judged = [
            replace(
                entry,
                holds=self._error(entry) <= self._most and (entry.solved or keeps_pins(graph, self.limits, entry.plan)),
            )
            for entry in before
        ]
        return judged if any(entry.holds for entry in judged) else before

    def deployed(self, entry: Entry) -> Entry:
        """A plan of the search as expected here, under the full limits."""
        predicted = shifted(entry.plan.predicted_error, self.base).times(self._ratio(entry))
        plan = replace(entry.plan, limits=self.limits, predicted_error=predicted)
        return replace(entry, plan=plan).with_error(self._error(entry), holds=entry.holds)

    def _error(self, entry: Entry) -> float:
        return self._ratio(entry) * together(entry.error, self.base)

    def _ratio(self, entry: Entry) -> float:
        """How many times larger the error is than expected."""
        if not entry.assignment:
            return 1.0
        return self.usual if entry.built is None else entry.built / together(entry.error, self.base)
