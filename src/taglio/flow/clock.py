"""The clock of an optimisation: seconds by stage, and the effort of the next within a time limit. Runs no stage."""

import time
from dataclasses import replace
from math import inf

from taglio.confirm import race
from taglio.confirm.race import Patience

# What stages take at effort 1, roughly, by which a time limit is divided; the share of it that no effort changes
# (opening sessions, calibration); and the least effort.
TYPICAL_S = {"screen": 7.0, "profile": 6.0, "error": 3.0, "plan": 10.0, "confirm": 8.0}
FIXED, LEAST = 0.6, 0.03
# A race within a time limit takes at least this.
_LEAST_RACE_S = 5.0
# Of a time limit, the share that is kept for timing the best so far, the race and the delivery, in seconds between two
# bounds; and what the delivery takes.
_RESERVED, _LEAST_RESERVED_S, _MOST_RESERVED_S, _DELIVERY_S = 0.35, 10.0, 40.0, 4.0
# The search over ways has at least this share of its usual time.
_LEAST_WAYS = 0.1


class Clock:
    """Seconds by stage, and the effort of the next within a time limit."""

    def __init__(self, effort: float, limit_s: float) -> None:
        self.laps: dict[str, float] = {}
        self._effort, self._limit_s = effort, limit_s
        self._begun = self._last = time.perf_counter()

    def effort(self, stage: str) -> float:
        """The effort at which this stage and those after it typically take what is left of the time."""
        stages = [*TYPICAL_S]
        typical_s = sum(TYPICAL_S[name] for name in stages[stages.index(stage) :])
        left_s = self._limit_s - sum(self.laps.values())
        return min(self._effort, max(LEAST, (left_s / typical_s - FIXED) / (1.0 - FIXED)))

    def search_ends_s(self) -> float:
        """When the search must end so that the race and the delivery fit into the time limit, by
        time.perf_counter()."""
        reserve_s = min(_MOST_RESERVED_S, max(_LEAST_RESERVED_S, _RESERVED * self._limit_s))
        return self._begun + self._limit_s - reserve_s

    def patience(self, most_s: float = inf) -> Patience:
        """How long the race may take within the time limit, at most `most_s`. A low effort does not shorten it: its
        result is what is told, and with half of the time two of three intervals of a detector missed."""
        usual = race.USUAL
        left_s = min(most_s, max(_LEAST_RACE_S, self._limit_s - sum(self.laps.values()) - _DELIVERY_S))
        seconds, slow_seconds = min(usual.seconds, left_s), min(usual.slow_seconds, left_s)
        return replace(usual, seconds=seconds, slow_seconds=slow_seconds, most_seconds=left_s)

    def rate_share(self, patience: Patience) -> float:
        """The share of its usual time that the search over ways has, with its confirmation, where a race may take as
        long as `patience` says."""
        return patience.seconds / race.USUAL.seconds * min(1.0, max(_LEAST_WAYS, self._effort))

    def lap(self, stage: str) -> None:
        """Count the seconds since the last lap as those of a stage."""
        now = time.perf_counter()
        self.laps[stage] = self.laps.get(stage, 0.0) + now - self._last
        self._last = now
