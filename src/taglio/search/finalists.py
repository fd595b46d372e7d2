"""Which plans are raced, and which of them wins.

A finalist is a plan that is raced in its place beside float (explore.py). Here the races of all places are put on one
scale, and the fastest finalist that is accepted as deployed wins. What is reported of it is measured again by
confirm.py. Solves and times nothing.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from taglio.errors import BadData, BadModel, one_line, plural
from taglio.lab.work import Work
from taglio.plan.result import Interval, Limits
from taglio.profile.measure import FLOAT_RUN
from taglio.profile.result import Profile
from taglio.profile.wall_time import WallTime
from taglio.search.answers import answers
from taglio.search.ledger import PLAIN, Answers, Entry, Key, Ledger, Places
from taglio.search.search import best
from taglio.search.unseen import CANDIDATES, Rejected, rejection

# The most solved plans that are raced beside float, all-int8 and the plans by simple rules.
FINALISTS = 3


def finalists(tried: Iterable[Entry], but: Sequence[Entry] = (), most: int = 100) -> list[Entry]:
    """The plans of one place to race, with names: float, all-int8, the fastest solved plans that keep the limit, and
    the plans by simple rules; none that is among `but`. Of more than `most`, those are left out that are predicted to
    be the slowest, but for float and all-int8."""
    entries, seen = list(tried), {entry.forms for entry in but}
    plain = [entry for entry in entries if entry.name in PLAIN and not but]
    ruled = [entry for entry in entries if entry.name and entry.name not in PLAIN and not but]
    solved = [entry for entry in best(entries, len(entries)) if not entry.name and entry.forms not in seen]
    named = [replace(entry, name=f"plan {number + len(but)}") for number, entry in enumerate(solved[:FINALISTS], 1)]
    others = [*named, *ruled]
    fastest = sorted(others, key=lambda entry: entry.predicted_s)[: max(0, most - len(plain))]
    return [entry for entry in others if entry in fastest] + plain


def on_one_scale(raced: Mapping[str, Ledger], places: Places) -> Ledger:
    """The ledgers of all places as one. Each is scaled by its float model to the race of float in every place, and
    float in places without a race of their own takes part too. In the first place float stands for the source."""
    first = next(iter(places.errors))
    entries = dict[Key, Entry]()
    template = next(iter(raced.values())).float32
    for place, base in places.errors.items():
        ledger, float_time = raced.get(place), places.times.get(place)
        if ledger is not None:
            scale = 1.0 if float_time is None else float_time.median_s / ledger.float32.measured_s
            entries |= {
                key: entry if entry.wall is None else replace(entry, wall=entry.wall.times(scale))
                for key, entry in ledger.entries.items()
            }
        elif float_time is not None:
            entries[FLOAT_RUN, place] = float_in(place, template, base, float_time)
    return Ledger(entries, first, max([places.others, *(ledger.others for ledger in raced.values())]))


def float_in(place: str, float_plan: Entry, base: float, wall: WallTime) -> Entry:
    """The float model in another place, where it has the error `base` and took the time `wall`: no table predicts
    it."""
    seconds = wall.median_s
    plan = replace(
        float_plan.plan,
        runtime=place,
        status="measured",
        gap=0.0,
        measured_error=base,
        predicted_latency_s=Interval(seconds, seconds, seconds),
        predicted_error=Interval(base, base, base),
    )
    holds = not plan.limits.int8_blocks and base <= plan.limits.allowed_error
    return Entry(plan, base, holds, FLOAT_RUN, loss=float_plan.loss, wall=wall)


def as_profiled(profile: Profile, tried: Sequence[Entry]) -> list[Entry]:
    """The plans with the times that float and all int8 had in the profile."""
    walls = {run.name: run.wall for run in profile.runs}
    return [replace(entry, wall=walls[entry.name]) if entry.name in PLAIN else entry for entry in tried]


def as_predicted(entry: Entry) -> Entry:
    """A plan with its predicted time as if it were measured, for a search that was stopped before plans were raced."""
    seconds = entry.predicted_s
    wall = WallTime(seconds, 0.0, seconds, seconds, 1, seconds)
    return replace(entry, wall=wall if seconds > 0.0 else entry.wall)


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """The finalists as judged: the `winner` (None: none keeps the limit), and those that were `rejected` on unseen
    inputs, in this order."""

    ledger: Ledger
    winner: Entry | None
    rejected: tuple[Rejected, ...] = ()

    @property
    def candidates(self) -> int:
        """How many plans were measured on unseen inputs."""
        answers = None if self.winner is None or self.winner.key == self.ledger.float32.key else self.winner.answers
        return len(self.rejected) + (answers is not None and answers.unseen is not None)


# What plans again, given the place, the share of the limit to keep within, and whether no finalist holds. Returns all
# plans then; None if it has nothing new.
SearchAgain = Callable[[str, float, bool], Ledger | None]


def judge(work: Work, ledger: Ledger, limits: Limits, search_again: SearchAgain = lambda *_: None) -> Verdict:
    """The fastest finalist that is accepted as deployed, on all held-out inputs: see unseen.py.

    A finalist that breaks the limit on the inputs of the search cannot win, and does not count among the `CANDIDATES`
    for the unseen ones. It, and each candidate that is rejected there, leaves less room for the next, and finalists are
    searched for again within it; for those that break the limit on the inputs of the search, once in a place. When all
    candidates were rejected, only float is left.
    """
    ledger = ledger.having(_keeping(ledger.float32, answers(work, None, limits), limits))
    while ledger.int8.answers is None:  # one that does not run is refused, and another place's follows
        ledger = ledger.having(_answered(work, ledger.int8, limits))
    rejected: list[Rejected] = []
    room, searched_again = 1.0, set[str]()

    def find_more(place: str) -> None:
        nonlocal ledger
        searched_again.add(place)
        ledger = _within_room(ledger, room, len(rejected), limits)
        extended = search_again(place, room, not ledger.holding) if len(rejected) < CANDIDATES else None
        if extended is not None:
            ledger = _within_room(extended.having(*ledger.raced), room, len(rejected), limits)

    while (winner := ledger.winner) is not None:
        # Only the fastest is judged on unseen inputs: another that fails there would be out without being counted.
        expected = winner.error
        winner = _answered(work, winner, limits)
        keeps = winner.holds
        if winner.answers is not None:
            winner = replace(winner, holds=keeps and winner.answers.accepted(limits))
        ledger = ledger.having(winner)
        if winner.holds:
            break
        if keeps and winner.key != ledger.float32.key:
            rejected.append(_rejected(winner, ledger.float32, limits, room))
            room = rejected[-1].room
            find_more(winner.runtime)
        elif not keeps and winner.runtime not in searched_again and (share := _share(winner, expected)) < 1.0:
            room *= share
            find_more(winner.runtime)
    return Verdict(ledger, winner, tuple(rejected))


def _within_room(ledger: Ledger, room: float, rejected: int, limits: Limits) -> Ledger:
    """The ledger without finalists beyond the share `room` of the limit, which so many `rejected` ones leave: without
    all but float after the last candidate."""
    if room == 1.0 or limits.max_error is None:
        return ledger
    most = room * limits.max_error
    why = "expected to break the limit, as a faster plan did"
    if rejected:
        why = f"not measured on unseen inputs: {plural(rejected, 'faster plan')} failed there"
    out = [
        replace(entry, holds=False, refused=entry.refused or why)
        for entry in ledger.holding
        if entry.key != ledger.float32.key and (rejected >= CANDIDATES or entry.error > most)
    ]
    return ledger.having(*out)


def _share(plan: Entry, expected: float) -> float:
    """The share of the limit to stay within after a plan erred more than `expected` of it: files of other plans are
    assumed to err more than the switchable graph by the same factor. 1 where nothing can be said of other plans."""
    searched = inf if plan.answers is None else plan.answers.searched
    return expected / searched if plan.name not in PLAIN and 0.0 < expected < searched < inf else 1.0


def _rejected(plan: Entry, float32: Entry, limits: Limits, room: float) -> Rejected:
    answer = plan.answers
    assert limits.max_error is not None, "only a limit rejects"
    assert answer is not None, "only answers reject"
    assert answer.unseen is not None, "only unseen inputs reject"
    unseen = answer.unseen if answer.unseen_error is None else max(answer.unseen_error, limits.max_error)
    unseen_or_none = unseen if answer.unseen > limits.max_error else None
    return rejection(float32.measured_s / plan.measured_s, answer.error, unseen_or_none, answer.likely_end, room)


def _answered(work: Work, entry: Entry, limits: Limits) -> Entry:
    """A finalist with its answers; one that cannot run outside the first place is refused."""
    if entry.answers is not None or entry.refused:
        return entry
    try:
        return _keeping(entry, answers(work, entry.plan, limits), limits)
    except (BadData, BadModel) as error:
        if entry.runtime == work.setup.options().runtime:
            raise
        return replace(entry, holds=False, refused=one_line(error))


def _keeping(entry: Entry, answer: Answers, limits: Limits) -> Entry:
    """A finalist with these answers. It holds if it keeps the limit on the inputs of the search."""
    return replace(entry, answers=answer).with_error(answer.judged, holds=entry.holds and answer.keeps(limits))
