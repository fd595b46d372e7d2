"""The end of an optimisation: the race that confirms what was decided. Plans nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

from taglio.confirm.race import Patience
from taglio.confirm.speedup import Speedup
from taglio.flow.confirm import confirmed
from taglio.lab.work import Work
from taglio.notes import Note
from taglio.plan.result import Limits, Plan
from taglio.search.decide import Decision
from taglio.search.ledger import Entry
from taglio.ways.result import Rate


@dataclass(frozen=True, slots=True, eq=False)
class Ended:
    """What is delivered: the decision after the race or the search over ways, what was confirmed of it, and notes."""

    work: Work
    decision: Decision
    speedup: Speedup | None
    rate: Rate | None
    notes: tuple[Note, ...]


def by_race(work: Work, decision: Decision, limits: Limits, patience: Patience, also: Sequence[Entry] = ()) -> Ended:
    """Confirm a decision by a race: the winner, a rival that openings show to be faster, or float where it keeps all
    limits and no gain is shown. Entries in `also` take part beside the rivals of the winner. A slow model has no
    rivals: each would be run on all held-out inputs."""
    ends = {decision.plan.fingerprint(): decision}
    is_slow = work.setup.run_s * len(work.data.all_held_out.samples) > work.budget.plans_s
    entries = [] if is_slow else [*also, *decision.ledger.rivals(decision.winner)]
    rivals = {decision.of(work, entry).plan.fingerprint(): entry for entry in entries}
    plans = [decision.plan, *(decision.of(work, entry).plan for entry in rivals.values())]

    def accepted(plan: Plan) -> bool:
        key = plan.fingerprint()
        if key not in ends and (end := decision.accepting(work, rivals[key], limits)) is not None:
            ends[key] = end
        return key in ends

    float_plan = None
    if decision.ledger.float32.holds and work.replaced is None:
        float_stays = decision.of(work, decision.ledger.float32)
        float_plan = float_stays.plan
        ends.setdefault(float_plan.fingerprint(), float_stays)
    confirmation = confirmed(work, plans, float_plan, patience, accepted)
    return Ended(work, ends[confirmation.plan.fingerprint()], confirmation.speedup, None, confirmation.notes)
