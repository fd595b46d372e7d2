"""What other limits would give according to the tables: solved, not measured."""

from dataclasses import dataclass, replace

from taglio.error.runtime_part import left_for_int8
from taglio.plan.one_machine import make_plan
from taglio.plan.result import Limits
from taglio.plan.tables import Tables
from taglio.search.search import solve_s

# Multiples of the user's limit.
_FACTORS = (3.0, 10.0)
# An output with a larger error is useless.
_MOST = 0.5
_TIME_LIMIT_S = 2.0


@dataclass(frozen=True, slots=True)
class Level:
    """The plan that a limit would allow: its predicted speed-up over float."""

    max_error: float
    speed_up: float
    int8_blocks: int


def curve(tables: Tables, limits: Limits, *, base: float, ahead: float, effort: float = 1.0) -> tuple[Level, ...]:
    """Predicted speed-ups at larger limits, in a place where the float model has the error `base` and is `ahead` times
    as fast as the float model that is compared with. Empty if the metric moves in steps: a multiple of a limit means
    nothing there."""
    if tables.error is None or limits.max_error is None or not limits.metric.smooth or not tables.graph.choices():
        return ()
    levels = []
    for factor in _FACTORS:
        bound = factor * limits.max_error
        if not 0.0 < bound <= _MOST:
            continue
        wider = replace(limits, max_error=left_for_int8(bound, base))
        plan = make_plan(tables, wider, time_limit_s=min(_TIME_LIMIT_S, solve_s(effort)))
        seconds = plan.predicted_latency_s.value
        if plan.status != "infeasible" and seconds > 0.0:
            levels.append(Level(bound, ahead * tables.float_s / seconds, len(plan.assignment())))
    return tuple(levels)
