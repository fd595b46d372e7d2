"""How much a search may measure. Every number that trades time for quality stands here, once."""

from dataclasses import dataclass, replace
from typing import Any

# Fields that the effort scales, and the least effort of those that decide whether a plan is right.
_SECONDS = (
    "race_s", "profile_s", "opening_s", "study_s", "alone_s", "verify_s", "plans_s", "refine_s",
)  # fmt: skip
_LEAST = {"race_s": 0.3, "opening_s": 0.6, "alone_s": 0.3, "verify_s": 0.3, "plans_s": 0.3, "refine_s": 0.8}


@dataclass(frozen=True, slots=True)
class Budget:
    """Seconds and counts of a search at effort 1, which takes about 40 s for a model of 10 ms a run.

    Seconds are those of running models; opening them comes on top, so counts of sessions have bounds of their own.

    * `race_s`: float, all int8 and the other forms in one place.
    * `profile_s`: the runs of the profile; `opening_s`: opening its sessions, where these take long.
    * `alone_s`: errors of blocks alone, at most; `study_s`: the whole study of errors, where that is longer.
    * `verify_s`: the error of one plan, on at most `verify_inputs` inputs; `plans_s`: the errors of all plans.
    * `solved`: plans that are solved and measured; `solved_again`: after the tables were refined.
    * `refine_s`: racing plans in one place, and again those that are new after the tables were refined.
    * `gain`: what could save less than this share of the time is not measured.
    """

    race_s: float = 0.5
    profile_s: float = 0.6
    opening_s: float = 4.0
    alone_s: float = 4.5
    study_s: float = 2.0
    verify_s: float = 1.2
    verify_inputs: int = 32
    plans_s: float = 6.0
    solved: int = 10
    solved_again: int = 6
    refine_s: float = 0.75
    gain: float = 0.02

    def at(self, effort: float) -> "Budget":
        """The budget of another effort."""
        changes: dict[str, Any] = {name: max(effort, _LEAST.get(name, 0.0)) * getattr(self, name) for name in _SECONDS}
        return replace(self, **changes)
