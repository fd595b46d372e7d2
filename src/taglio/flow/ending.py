"""The end of an optimisation: the race or the search over ways that confirms what was decided. Plans nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from taglio.confirm.race import Patience
from taglio.confirm.speedup import Speedup
from taglio.flow.confirm import Confirmed, confirmed
from taglio.flow.plan import Decision
from taglio.flow.rate import RatePatience, rated
from taglio.flow.running import Running, in_way
from taglio.flow.work import Work
from taglio.plan.result import Limits, Plan
from taglio.profile.measure import FLOAT_RUN
from taglio.ways.choose import Goal
from taglio.ways.result import Rate


@dataclass(frozen=True, slots=True, eq=False)
class Ended:
    """What is delivered: the decision after the race or the search over ways, what was confirmed of it, and remarks for
    the user."""

    work: Work
    decision: Decision
    speedup: Speedup | None
    rate: Rate | None
    remarks: tuple[str, ...]


def by_race(work: Work, decision: Decision, limits: Limits, patience: Patience, also: Sequence[str] = ()) -> Ended:
    """Confirm a decision by a race. Finalists in `also` take part in it beside the rivals of the winner."""
    decision, confirmation = _confirmed(work, decision, limits, patience, also)
    return Ended(work, decision, confirmation.speedup, None, confirmation.remarks)


def by_race_with_threads(
    work: Work, decision: Decision, limits: Limits, way: Running, patience: Patience, threads_remark: str
) -> Ended:
    """Confirm a decision by a race, with the threads that suit it. `threads_remark` is on those that it was measured
    with."""
    work, threads_remark = way.fitted(work, decision.plan, threads_remark)
    ended = by_race(work, decision, limits, patience)
    return replace(ended, remarks=(*ended.remarks, *filter(None, [threads_remark])))


def by_rate(work: Work, decision: Decision, limits: Limits, goal: Goal, patience: RatePatience) -> Ended:
    """Choose and confirm the way in which the plans that the search found have the highest rate."""
    result = rated(work, decision, limits, goal, patience)
    work = work.but(setup=in_way(work.setup, result.rate.way))
    return Ended(work, result.decision, None, result.rate, result.remarks())


def _confirmed(
    work: Work, decision: Decision, limits: Limits, patience: Patience, also: Sequence[str]
) -> tuple[Decision, Confirmed]:
    """The decision after the race: the winner, a rival that openings show to be faster, or float where it keeps all
    limits and no gain is shown. A slow model has no rivals: each would be run on all held-out inputs."""
    ends = {decision.plan.fingerprint(): decision}
    is_slow = work.setup.run_s * len(work.data.all_held_out.samples) > work.budget.plans_s
    names = [] if is_slow else list(dict.fromkeys((*also, *decision.rivals())))
    rivals = {decision.of(work, name).plan.fingerprint(): name for name in names}
    plans = [decision.plan, *(decision.of(work, name).plan for name in rivals.values())]

    def accepted(plan: Plan) -> bool:
        key = plan.fingerprint()
        if key not in ends and (end := decision.accepting(work, rivals[key], limits)) is not None:
            ends[key] = end
        return key in ends

    as_float = decision.finalists.get(FLOAT_RUN)
    float_plan = None
    if as_float is not None and as_float.holds and work.replaced is None:
        float_stays = decision.of(work, FLOAT_RUN)
        float_plan = float_stays.plan
        ends.setdefault(float_plan.fingerprint(), float_stays)
    confirmation = confirmed(work, plans, float_plan, patience, accepted)
    return ends[confirmation.plan.fingerprint()], confirmation
