"""The ledger: what was measured of variants and plans, as values, and queries on them. Measures nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf

from taglio.error.tally import OtherLoss, PartLoss
from taglio.plan.result import Limits, Plan
from taglio.profile.measure import FLOAT_RUN
from taglio.profile.wall_time import WallTime
from taglio.quantize.precision import Assignment, Forms, key_of
from taglio.search.unseen import accepted

# The name of the model with all blocks in int8, and the names of the models that are raced in every place.
INT8_RUN = "int8"
PLAIN = (FLOAT_RUN, INT8_RUN)
# In a short race, a plan that is faster by less than this factor may only seem so, by noise.
NOISE = 1.015
# Openings compare the winner with at most _RIVALS plans that are slower by less than these factors. The factor is
# larger for a plan of another place, which was not raced beside the winner: the time of float in each place relates
# them.
_CLOSE, _CLOSE_ELSEWHERE, _RIVALS = 1.05, 1.1, 2
# The name and the place of a plan.
Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Measurement:
    """One model in a race with the float model in the same `runtime`: `blocks` blocks in one `form`, the others in
    float32. `scheme` is the int8 scheme. None stands for what was not measured.

    `seconds` are those of a run, `float_s` the float model's in the same rounds. `error` is the loss on a few held-out
    inputs, as the runtime computes it. `score_s` is the latency to expect of a plan that uses the form within the limit
    (`expected_s`). `refused` says why the model does not run, or why it was not raced; `kept` whether plans may use
    it.
    """

    runtime: str
    form: str
    seconds: float | None = None
    float_s: float | None = None
    error: float | None = None
    score_s: float | None = None
    refused: str = ""
    kept: bool = False
    scheme: str = ""
    blocks: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """The float model in every place. The first is the one in which it is compared with the source. `rows` are its
    results, `times` its wall times in a race of all places (empty if there was none), and `others` the share of the
    processors that other programs used meanwhile."""

    rows: tuple[Measurement, ...]
    times: Mapping[str, WallTime] = field(default_factory=dict)
    others: float = 0.0

    @property
    def errors(self) -> dict[str, float]:
        """The float model's own error in the places where a model may be deployed."""
        return {place.runtime: place.error or 0.0 for place in self.rows if not place.refused}


@dataclass(frozen=True, slots=True)
class Answers:
    """A model's answers to all held-out inputs, as it is deployed.

    `error` is the loss against the float model, that of the worst of its `parts`. `judged` is the value that is
    compared with the limit (Tally.judged); `searched` is the same on the inputs of the search alone, `unseen` on the
    unseen ones (None: there are none), where `unseen_error` is the loss. `accuracy` is the task's value against labels,
    or top-1; None without suitable labels.

    `error_upper` is the loss that other inputs like these stay below in 19 of 20 cases, `likely_end` in four of five,
    and `error_lower` the loss that they exceed in 19 of 20; None if unknown. `by_input` are the losses of all inputs,
    those of the search first, () for a metric without a value by input. `unchanged` is the share of equal values in
    each output that is not float, `ragged` the number of inputs for which an output changes its length. `others` are
    the other limited metrics."""

    error: float
    judged: float
    accuracy: float | None
    parts: tuple[PartLoss, ...] = ()
    error_upper: float | None = None
    error_lower: float | None = None
    likely_end: float | None = None
    searched: float = 0.0
    unseen: float | None = None
    unseen_error: float | None = None
    by_input: tuple[float, ...] = ()
    unchanged: dict[str, float] = field(default_factory=dict)
    ragged: dict[str, int] = field(default_factory=dict)
    others: tuple[OtherLoss, ...] = ()

    @property
    def worst_input(self) -> float | None:
        """The largest loss of an input."""
        return max(self.by_input, default=None)

    def keeps(self, limits: Limits) -> bool:
        """Whether the limit holds on the inputs of the search."""
        return self.searched <= limits.allowed_error

    def accepted(self, limits: Limits) -> bool:
        """Whether the limit holds on the inputs of the search and the unseen ones (unseen.py)."""
        most = limits.allowed_error
        return self.judged <= most and accepted(most, self.searched, self.unseen, self.likely_end)


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """A plan, and what was measured of it in its place, `plan.runtime`. None stands for what was not measured.

    `error` is the value that is compared with the limit: from `answers`, or from the switchable graph before there are
    any. `loss` is the plain loss on the switchable graph, even if a part is lost or a further limit is broken. `holds`
    says whether the plan keeps all limits, as far as is known, and `refused` why it does not run or was not judged.
    `solved` plans come from the solver; others have the `name` of their rule, such as float32. A solved plan gets its
    name when it is raced.
    """

    plan: Plan
    error: float
    holds: bool
    name: str = ""
    solved: bool = False
    loss: float | None = None
    wall: WallTime | None = None
    answers: Answers | None = None
    refused: str = ""

    @property
    def assignment(self) -> Assignment:
        """The form of every block that is not float."""
        return self.plan.assignment()

    @property
    def forms(self) -> Forms:
        """A key that is equal for plans with equal forms."""
        return key_of(self.assignment)

    @property
    def predicted_s(self) -> float:
        """The predicted seconds of a run."""
        return self.plan.predicted_latency_s.value

    @property
    def measured_s(self) -> float:
        """The median seconds of a run; infinite if it was not timed."""
        return inf if self.wall is None else self.wall.median_s

    @property
    def runtime(self) -> str:
        """The place of the plan."""
        return self.plan.runtime

    @property
    def key(self) -> Key:
        """The name and the place, which identify a plan in the ledger."""
        return self.name, self.runtime

    def with_error(self, error: float, *, holds: bool) -> "Entry":
        """The same with another error."""
        return replace(self, error=error, holds=holds, plan=replace(self.plan, measured_error=error))


@dataclass(frozen=True, slots=True, eq=False)
class Ledger:
    """Plans that were tried, on one scale of time. `first` is the place in which the float model stands for the source,
    `others` the share of the processors that other programs used while plans were raced."""

    entries: Mapping[Key, Entry]
    first: str
    others: float = 0.0

    @property
    def float32(self) -> Entry:
        """The float model that plans are compared with."""
        return self.entries[FLOAT_RUN, self.first]

    @property
    def raced(self) -> list[Entry]:
        """The plans that were timed."""
        return [entry for entry in self.entries.values() if entry.wall is not None]

    @property
    def holding(self) -> list[Entry]:
        """The plans that were timed and keep the limits, the fastest first."""
        return sorted((entry for entry in self.raced if entry.holds), key=lambda entry: entry.measured_s)

    @property
    def int8(self) -> Entry:
        """The model with all blocks in int8, in the place where it runs fastest; the float model if it runs nowhere."""
        rows = [entry for entry in self.raced if entry.name == INT8_RUN and (entry.answers or not entry.refused)]
        return min(rows, key=lambda entry: entry.measured_s, default=self.float32)

    @property
    def winner(self) -> Entry | None:
        """The fastest plan that keeps the limits; float or all int8 if these keep them too and are slower only within
        noise. None if no plan keeps the limits."""
        holding = self.holding
        if not holding:
            return None
        most_s = NOISE * holding[0].measured_s
        plain = [entry for entry in holding if entry.name in PLAIN and entry.measured_s <= most_s]
        return (plain or holding)[0]

    def rivals(self, winner: Entry) -> list[Entry]:
        """At most two plans that keep the limits and that may be as fast as the `winner` within the noise of races: the
        fastest of each other place, then those of its own place. If float wins, there are none."""
        if winner.key == self.float32.key:
            return []
        own_place, elsewhere = list[Entry](), dict[str, Entry]()
        for entry in self.holding:
            is_here = entry.runtime == winner.runtime
            most_s = (_CLOSE if is_here else _CLOSE_ELSEWHERE) * winner.measured_s
            if entry.key in (winner.key, self.float32.key) or entry.measured_s > most_s:
                continue
            if is_here:
                own_place.append(entry)
            else:
                elsewhere.setdefault(entry.runtime, entry)
        return [*elsewhere.values(), *own_place][:_RIVALS]

    def having(self, *entries: Entry) -> "Ledger":
        """The same with some entries added or replaced."""
        return replace(self, entries={**self.entries, **{entry.key: entry for entry in entries}})


def expected_s(float_s: float, seconds: float, error: float, limit: float) -> float:
    """The latency to expect of a plan within `limit`, if float takes `float_s`, and all blocks in another form take
    `seconds` and have the `error`.

    A limit of half the error is assumed to allow half of the saving. So a form that is faster but has twice the error
    is not better under a tight limit.
    """
    return float_s - (float_s - seconds) * (1.0 if error <= limit else limit / error)
