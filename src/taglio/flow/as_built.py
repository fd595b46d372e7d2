"""Errors of plans as built for a place, expected from those that the search measured in float32. Measures nothing.

Where the float model has the error b, a plan with the error e is expected to have √(e² + b²). But int8 kernels of other
runtimes round differently, and blocks in int8 have no part in b, which may be most of the error. So the plans that are
timed in a place are measured there too, and the ratio to what was expected corrects other plans, which are like them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf
from statistics import median

from taglio.error.runtime_part import left_for_int8, together
from taglio.flow.search import Tried, keeps_pins, key_of
from taglio.model.graph import Graph
from taglio.plan.result import Interval, Limits
from taglio.runtimes.onnxruntime import NAME

# A plan whose expected error is this many times the limit does not keep it.
_FAR = 3.0


def shifted(expected: Interval, base: float) -> Interval:
    """The predicted error of a plan in float32 arithmetic as expected in a place where the float model has the error
    `base`."""
    low, value, high = (together(end, base) for end in (expected.low, expected.value, expected.high))
    return Interval(low, value, high, expected.coverage)


def unsure(tried: Tried, limits: Limits) -> bool:
    """Whether the error of a plan as built for its place is still to be measured: it may hold there, and is not in ONNX
    Runtime, where built models equal the switchable graph."""
    is_known = tried.built or tried.runtime == NAME or not tried.assignment
    assert limits.max_error is not None, "a plan that may hold has a limit"
    return not is_known and limits.metric.smooth and 0.0 < tried.error < _FAR * limits.max_error


@dataclass(slots=True)
class AsBuilt:
    """A place where the float model has the error `base`, under `limits`. `ratios` are measured / expected errors of
    plans by their keys; others have the `usual` one."""

    limits: Limits
    base: float
    ratios: dict[object, float] = field(default_factory=dict)
    usual: float = 1.0

    def note(self, tried: Tried, error: float) -> None:
        """Note the error that a plan of the search has here. One that is not finite teaches nothing."""
        if 0.0 < error < inf:
            self.ratios[key_of(tried.assignment)] = error / together(tried.error, self.base)

    def follow(self, leader: Tried) -> None:
        """Expect of plans that were not measured what was found of this one, or of most if it was not measured."""
        usual = median(self.ratios.values()) if self.ratios else 1.0
        self.usual = self.ratios.get(key_of(leader.assignment), usual)

    @property
    def bound(self) -> float:
        """The part of the limit that is left for int8."""
        assert self.limits.max_error is not None, "errors here are expected for a limit"
        return left_for_int8(self.limits.max_error / self.usual, self.base)

    def within(self) -> Limits:
        """The limits of the search."""
        return replace(self.limits, max_error=self.bound)

    def judged(self, graph: Graph, tried: Sequence[Tried]) -> list[Tried]:
        """Plans of the search, of which those hold that are expected to hold here; as they are if none is."""
        limits, judged = self.limits, []
        assert limits.max_error is not None, "errors here are expected for a limit"
        for plan in tried:
            holds = self._ratio(plan) * together(plan.error, self.base) <= limits.max_error
            judged.append(replace(plan, holds=holds and (not plan.name or keeps_pins(graph, limits, plan.plan))))
        return judged if any(plan.holds for plan in judged) else list(tried)

    def deployed(self, tried: Tried) -> Tried:
        """A plan of the search as expected here, under the full limits."""
        ratio = self._ratio(tried)
        error = ratio * together(tried.error, self.base)
        predicted = shifted(tried.plan.predicted_error, self.base).times(ratio)
        plan = replace(tried.plan, limits=self.limits, measured_error=error, predicted_error=predicted)
        built = key_of(tried.assignment) in self.ratios
        return replace(tried, error=error, plan=plan, built=built)

    def _ratio(self, tried: Tried) -> float:
        assignment = tried.assignment
        return self.ratios.get(key_of(assignment), self.usual) if assignment else 1.0
