"""Choose the plans to race, and the winner among them. Solves and times nothing.

A finalist is a plan that is raced in its place beside float (explore.py). Here the races of all places are put on one
scale, and the fastest finalist that is accepted as deployed wins. Its reported speed-up is measured again, by
flow/confirm.py.
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

# The most solved plans that are raced beside float, all int8 and the plans by simple rules.
FINALISTS = 3


def finalists(tried: Iterable[Entry], but: Sequence[Entry] = (), most: int = 100) -> list[Entry]:
    """The plans of one place to race, with names: float, all int8, the fastest solved plans that keep the limit, and
    the plans by simple rules. Plans in `but`, which were raced already, are left out; so are float, all int8 and rules
    if there are any. If more than `most` remain, the ones with the slowest predictions are left out, but never float
    and all int8."""
    entries, seen = list(tried), {entry.forms for entry in but}
    plain = [entry for entry in entries if entry.name in PLAIN and not but]
    ruled = [entry for entry in entries if entry.name and entry.name not in PLAIN and not but]
    solved = [entry for entry in best(entries, len(entries)) if not entry.name and entry.forms not in seen]
    named = [replace(entry, name=f"plan {number + len(but)}") for number, entry in enumerate(solved[:FINALISTS], 1)]
    others = [*named, *ruled]
    fastest = sorted(others, key=lambda entry: entry.predicted_s)[: max(0, most - len(plain))]
    return [entry for entry in others if entry in fastest] + plain


def on_one_scale(raced: Mapping[str, Ledger], places: Places) -> Ledger:
    """One ledger from those of all places. The times of each place are scaled so that its float model takes as long as
    in the race of float in every place. Float takes part in places where no plans were raced, too. In the first place
    it stands for the source."""
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
    """The entry of the float model in another place, where it has the error `base` and took the time `wall`. No table
    predicts it, so its prediction is what was measured."""
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


# A function that plans again. Its arguments are the place, the share of the limit to keep within, and whether no
# finalist keeps the limit. It returns the ledger with the new plans; None if there are none.
SearchAgain = Callable[[str, float, bool], Ledger | None]


def judge(work: Work, ledger: Ledger, limits: Limits, search_again: SearchAgain = lambda *_: None) -> Verdict:
    """The fastest finalist that is accepted as deployed, on all held-out inputs (unseen.py).

    1. A finalist that breaks the limit on the inputs of the search cannot win. It does not count among the
       `CANDIDATES`. Others are searched for within a smaller share of the limit (`room`), once in each place.
    2. A finalist that keeps the limit there is a candidate for the unseen inputs. If it is rejected on them, the room
       shrinks too, and others are searched for again.
    3. After `CANDIDATES` rejected candidates, only float is left.
    """
    ledger = ledger.having(_keeping(ledger.float32, answers(work, None, limits), limits))
    while ledger.int8.answers is None:  # if it does not run, it is refused, and that of another place is tried
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
        # Only the fastest is judged on unseen inputs: each plan that is judged there is a chance to pass by luck.
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
    """The ledger after `rejected` candidates, in which finalists that are expected to use more than the share `room` of
    the limit are refused; all but float after the last candidate."""
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
    """The share of the limit to stay within after the file of a plan erred more than `expected` from the switchable
    graph: the files of other plans are assumed to err more by the same factor. 1 where that says nothing about other
    plans."""
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
    """A finalist with its answers. If it cannot run outside the first place, it is refused."""
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
