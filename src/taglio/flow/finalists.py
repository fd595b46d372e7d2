"""Which plans are raced, and which of them wins.

A finalist is a plan in a place, its `Plan.runtime`. Finalists of one place are raced there beside float (plan.py). Here
the races of all places are put on one scale, and the fastest finalist that is accepted as deployed wins. What is
reported of it is measured again by confirm.py. Solves and times nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from taglio.errors import BadData, BadModel, one_line, plural
from taglio.flow.answers import Answers, answers
from taglio.flow.ledger import Floats
from taglio.flow.search import Tried, best, key_of
from taglio.flow.unseen import CANDIDATES, Rejected, rejection
from taglio.flow.work import Work
from taglio.plan.result import Interval, Limits
from taglio.profile.measure import FLOAT_RUN
from taglio.profile.result import Profile
from taglio.profile.wall_time import WallTime

# The most solved plans that are raced beside float, all-int8 and the plans by simple rules.
FINALISTS = 3
# A plan that is faster by less than this factor in a short race may be so by noise.
NOISE = 1.015
PLAIN = (FLOAT_RUN, "int8")


def same_assignment(one: Tried, other: Tried) -> bool:
    """Whether two plans are the same model in the same place."""
    same_place = one.runtime == other.runtime
    return same_place and key_of(one.assignment) == key_of(other.assignment)


def finalists(tried: Sequence[Tried], but: Sequence[Tried] = (), most: int = 100) -> dict[str, Tried]:
    """The plans of one place to race, by name: float, all-int8, the fastest solved plans that keep the limit, and the
    plans by simple rules; none that is among `but`. Of more than `most`, those are left out that are predicted to be
    the slowest, but for float and all-int8."""
    seen = {key_of(plan.assignment) for plan in but}
    named = {plan.name: plan for plan in tried if plan.name}
    plain = {name: plan for name, plan in named.items() if name in PLAIN and not but}
    others: dict[str, Tried] = {}
    seen |= {key_of(plan.assignment) for plan in named.values()}
    solved = 0
    for plan in best([plan for plan in tried if not plan.name], len(tried)):
        key = key_of(plan.assignment)
        if key and key not in seen and solved < FINALISTS:
            seen.add(key)
            solved += 1
            others[f"plan {solved + len(but)}"] = plan
    if not but:
        others |= {name: plan for name, plan in named.items() if name not in PLAIN}
    fastest = sorted(others, key=lambda name: others[name].predicted_s)[: max(0, most - len(plain))]
    return {name: plan for name, plan in others.items() if name in fastest} | plain


@dataclass(frozen=True, slots=True, eq=False)
class Raced:
    """Finalists of one place by name, and the wall times of those that ran, beside float there as FLOAT_RUN. `others`
    is the share of the processors that other programs used meanwhile."""

    finalists: Mapping[str, Tried]
    times: Mapping[str, WallTime]
    others: float = 0.0


def on_one_scale(raced: Mapping[str, Raced], floats: Floats, bases: Mapping[str, float]) -> Raced:
    """The races of all places as one. Each is scaled by its float model to the race of float in every place, and float
    in places without a race of their own takes part too. `bases` is the error of float by place; finalists of the first
    place keep their names. Times of float in that place are those of FLOAT_RUN."""
    first = next(iter(bases))
    finalists, times = dict[str, Tried](), dict[str, WallTime]()
    if first in floats.times:
        times[FLOAT_RUN] = floats.times[first]
    template = next(iter(raced.values())).finalists.get(FLOAT_RUN)
    for place, base in bases.items():
        suffix = "" if place == first else f", {place}"
        race, float_time = raced.get(place), floats.times.get(place)
        if race is None:
            if template is not None and float_time is not None:
                finalists[FLOAT_RUN + suffix] = float_in(place, template, base, float_time.median_s)
                times[FLOAT_RUN + suffix] = float_time
            continue
        scale = 1.0 if float_time is None else float_time.median_s / race.times[FLOAT_RUN].median_s
        finalists |= {name + suffix: finalist for name, finalist in race.finalists.items()}
        times |= {name + suffix: wall.times(scale) for name, wall in race.times.items()}
    # Where float was not raced in the first place, it is compared with where it was.
    times.setdefault(FLOAT_RUN, next(race.times[FLOAT_RUN] for race in raced.values()))
    return Raced(finalists, times, max([floats.others, *(race.others for race in raced.values())]))


def float_in(place: str, float_plan: Tried, base: float, seconds: float) -> Tried:
    """The float model in another place, where it has the error `base` and took so many seconds: no table predicts
    it."""
    plan = replace(
        float_plan.plan,
        runtime=place,
        status="measured",
        gap=0.0,
        measured_error=base,
        predicted_latency_s=Interval(seconds, seconds, seconds, float_plan.plan.predicted_latency_s.coverage),
        predicted_error=Interval(base, base, base, 0.0),
    )
    limit = plan.limits.max_error
    return replace(float_plan, error=base, holds=limit is None or base <= limit, plan=plan)


def in_pure_forms(profile: Profile, tried: Sequence[Tried]) -> Raced:
    """Float and all int8 of one place, as the profile timed them. All int8 of a model without candidates is float."""
    walls = {run.name: run.wall for run in profile.runs}
    chosen = {plan.name: plan for plan in tried if plan.name in PLAIN}
    times = {name: walls.get(name, walls[FLOAT_RUN]) for name in (FLOAT_RUN, *chosen)}
    return Raced(chosen, times, profile.conditions.others)


def as_predicted(tried: Mapping[str, Tried]) -> Raced:
    """Finalists of one place with their predicted times, for a search that was stopped before they were raced."""

    def wall(seconds: float) -> WallTime:
        return WallTime(seconds, 0.0, seconds, seconds, 1, seconds)

    known = {name: plan.predicted_s for name, plan in tried.items()}
    return Raced(tried, {name: wall(seconds) for name, seconds in known.items() if seconds > 0.0})


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """The finalists as judged, their times, `others` as in `Raced`, the `winner` (None: none keeps the limit), the
    `answers` of those whose built models were run on all held-out inputs, and those that were `rejected` there, in this
    order."""

    finalists: dict[str, Tried]
    times: dict[str, WallTime]
    others: float
    winner: str | None
    answers: dict[str, Answers]
    rejected: tuple[Rejected, ...] = ()

    @property
    def measured(self) -> int:
        """How many candidates were measured on unseen inputs."""
        is_seen = self.winner in self.answers and self.answers[self.winner].unseen is not None
        return len(self.rejected) + (is_seen and self.winner != FLOAT_RUN)


# What plans again, given the place ("": the first), the share of the limit to keep within, and whether no finalist
# holds. Returns all finalists then; None if it has nothing new.
SearchAgain = Callable[[str, float, bool], Raced | None]


def fastest_of(final: Mapping[str, Tried], times: Mapping[str, WallTime]) -> str:
    """The fastest by the clock among those that keep the limit."""
    holding = [name for name, plan in final.items() if plan.holds and name in times]
    return min(holding, key=lambda name: times[name].median_s)


def winner_of(final: Mapping[str, Tried], times: Mapping[str, WallTime]) -> str:
    """The fastest by the clock; float or all-int8 if it gains only noise on them."""
    most_s = NOISE * times[fastest_of(final, times)].median_s
    plain = {
        name: plan
        for name, plan in final.items()
        if plan.name in PLAIN and name in times and times[name].median_s <= most_s
    }
    chosen = fastest_of(plain, times) if any(plan.holds for plan in plain.values()) else fastest_of(final, times)
    # All-int8 of a model without candidates is the float model.
    same = FLOAT_RUN in final and final[FLOAT_RUN].holds and same_assignment(final[chosen], final[FLOAT_RUN])
    return FLOAT_RUN if same else chosen


def int8_of(final: Mapping[str, Tried], times: Mapping[str, WallTime]) -> str:
    """The name of all-int8 where it is fastest."""
    names = [name for name, plan in final.items() if plan.name == "int8" and name in times]
    return min(names, key=lambda name: times[name].median_s)


def judge(work: Work, raced: Raced, limits: Limits, search_again: SearchAgain = lambda *_: None) -> Judged:
    """The fastest finalist that is accepted as deployed, on all held-out inputs: see unseen.py.

    A finalist that breaks the limit on the inputs of the search cannot win, and does not count among the `CANDIDATES`
    for the unseen ones. Each candidate that is rejected there leaves less room for the next, and finalists are searched
    for again within it. So they are if nothing but float or all-int8 holds. When all candidates were rejected, only
    float is left.
    """
    final, times = dict(raced.finalists), dict(raced.times)
    answered: dict[str, Answers] = {}
    rejected: list[Rejected] = []
    others, int8, is_searched_again = raced.others, int8_of(final, times), False

    def find_more(place: str) -> bool:
        nonlocal others
        _leave_out(final, rejected, limits)
        is_needed = not any(plan.holds for plan in final.values())
        found = search_again(place, _room(rejected), is_needed) if len(rejected) < CANDIDATES else None
        if found is not None:
            final.update({name: plan for name, plan in found.finalists.items() if name not in final})
            times.update({name: wall for name, wall in found.times.items() if name not in times})
            others = found.others
            _leave_out(final, rejected, limits)
        return found is not None

    while True:
        winner = winner_of(final, times) if any(final[name].holds for name in final if name in times) else None
        asked = [name for name in dict.fromkeys((int8, winner)) if name is not None and name not in answered]
        _answer(work, final, asked, answered, limits)
        for name in {*asked, FLOAT_RUN} & set(final) & set(answered):
            # Only the fastest is judged on unseen inputs: another that fails there would be out without being counted.
            holds = final[name].holds and answered[name].keeps(limits)
            final[name] = _with_error(final[name], answered[name].judged, holds=holds)
        if winner in answered and final[winner].holds:
            final[winner] = replace(final[winner], holds=answered[winner].accepted(limits))
            if not final[winner].holds and winner != FLOAT_RUN:
                speed_up = times[FLOAT_RUN].median_s / times[winner].median_s
                rejected.append(_rejected(answered[winner], speed_up, limits, _room(rejected)))
                find_more(final[winner].runtime)
        if winner is not None and not final[winner].holds:
            continue
        is_poor = winner is None or (not rejected and _none_but_plain(final, winner))
        if not is_poor or is_searched_again or not find_more(""):
            return Judged(final, times, others, winner, answered, tuple(rejected))
        is_searched_again = True


def _room(rejected: Sequence[Rejected]) -> float:
    """The share of the limit that rejections leave."""
    return rejected[-1].room if rejected else 1.0


def _leave_out(final: dict[str, Tried], rejected: Sequence[Rejected], limits: Limits) -> None:
    """Leave out the finalists beyond the room that rejections leave: all but float after the last candidate."""
    if not rejected or limits.max_error is None:
        return
    most = _room(rejected) * limits.max_error
    for name, plan in final.items():
        if plan.holds and name != FLOAT_RUN and (len(rejected) >= CANDIDATES or plan.error > most):
            why = f"not measured on unseen inputs: {plural(len(rejected), 'faster plan')} failed there"
            final[name] = replace(plan, holds=False, refused=plan.refused or why)


def _none_but_plain(final: Mapping[str, Tried], winner: str) -> bool:
    """Whether float or all-int8 wins because no other plan holds, although there are some."""
    others = [finalist.holds for finalist in final.values() if finalist.name not in PLAIN]
    return final[winner].name in PLAIN and bool(others) and not any(others)


def _rejected(answer: Answers, speed_up: float, limits: Limits, room: float) -> Rejected:
    assert limits.max_error is not None, "only a limit rejects"
    assert answer.unseen is not None, "only unseen inputs reject"
    unseen = answer.unseen if answer.unseen_error is None else max(answer.unseen_error, limits.max_error)
    unseen_or_none = unseen if answer.unseen > limits.max_error else None
    return rejection(speed_up, answer.error, unseen_or_none, answer.likely_end, room)


def _answer(
    work: Work, final: dict[str, Tried], asked: Sequence[str], answered: dict[str, Answers], limits: Limits
) -> None:
    """Add the answers of the `asked` finalists to `answered`; one that cannot run outside ONNX Runtime is rejected."""
    if not asked:
        return
    try:
        answered |= answers(work, {name: final[name].plan for name in asked}, limits)
    except (BadData, BadModel) as error:
        if len(asked) > 1:
            for name in asked:
                _answer(work, final, [name], answered, limits)
        elif final[asked[0]].runtime == work.setup.options().runtime:
            raise
        else:
            final[asked[0]] = replace(final[asked[0]], holds=False, refused=one_line(error))


def with_answers(finalist: Tried, answer: Answers, limits: Limits) -> Tried:
    """A finalist with its error as deployed, and whether it is accepted."""
    holds = finalist.holds and answer.accepted(limits)
    return _with_error(finalist, answer.judged, holds=holds)


def _with_error(each: Tried, error: float, *, holds: bool) -> Tried:
    return replace(each, error=error, holds=holds, plan=replace(each.plan, measured_error=error))
