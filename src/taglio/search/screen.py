"""Choose the places to plan in, the scheme and the forms, before anything is profiled. Plans nothing.

The float model is raced in every place, and in one place of each runtime beside the forms of its blocks
(form_race.py). Plans are made in a place only if two bounds allow it: its kernels show that a mix of forms may be
faster than the fastest float model (bound.py), and the blocks that save time may keep the limit (error_bound.py).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from taglio.error.loss import Metric
from taglio.errors import BadOption
from taglio.lab.work import Work
from taglio.model.exact import saturating_products
from taglio.model.graph import Graph
from taglio.notes import Kind, Note
from taglio.profile.effort import MOST_MIXES
from taglio.profile.result import Profile
from taglio.quantize.scheme import Scheme, Uncalibrated, parse_scheme
from taglio.runtimes.processor import instructions, sums_saturate
from taglio.search.error_bound import why_errors_forbid
from taglio.search.form_race import RACED, FormRaces, PlaceRace
from taglio.search.instead import EXACT_SUMS, planned_instead, with_instead
from taglio.search.ledger import INT8_RUN, Measurement, Places
from taglio.search.places import REACH, float_everywhere, profiled

# At most so many places are planned in, fewer if so many runs take longer than _PLANNED_S. With one place alone, two
# threads of the quick start ended at 1.13 × instead of 1.54: float was as fast in both, and the short race chose.
_PLANNED, _PLANNED_S = 2, 2.0
# A short race cannot separate schemes whose scores differ by less than this factor.
_NOISE = 1.02


@dataclass(frozen=True, slots=True, eq=False)
class Screened:
    """What the screen chose. In `work`, every block that cannot be int8 is kept in float. `scheme` names the forms that
    plans may use. Plans are made in the places `planned`; if no mix of forms can be faster than float, there are none,
    and `why` says so.

    `places` are the results of the float model, `forms` those of all blocks in one form, int8 under each scheme. `home`
    is the best place that was raced. `profile` is made from the race there (None: there was no time for a race), and
    a full profile may have `mixes` random mixes. `note` says why another model than the source is planned."""

    work: Work
    scheme: Scheme
    planned: tuple[str, ...]
    home: str
    places: Places
    forms: tuple[Measurement, ...] = ()
    profile: Profile | None = None
    mixes: int = MOST_MIXES
    why: Note | None = None
    note: Note | None = None


def screen(
    work: Work,
    wanted: Scheme | None,
    max_loss: float,
    metric: Metric,
    *,
    is_forced: bool = False,
    is_narrow: bool = False,
) -> Screened:
    """The places, scheme and forms to plan with. A scheme that is `wanted` is taken as it is, with the forms that it
    names. If blocks are forced into int8 (`is_forced`), plans are made even where no mix is faster. `is_narrow` demands
    weights of 7 bits, because sums of 8-bit products saturate on some other device: the error of that saturation cannot
    be measured here."""
    refuse_unportable(work, wanted)
    work, places, note = _float_somewhere(work, max_loss, metric)
    first = profiled(places.rows)
    is_narrow = is_narrow or work.setup.portable or sums_saturate(instructions())
    races = FormRaces(work, wanted, max_loss, metric, is_narrow=is_narrow)
    scheme = races.scheme
    work = races.work
    if not races.is_affordable(len(RACED)):
        home, scheme = races.unraced(places.errors)
        return Screened(work, scheme, (home,), home, places, note=note)
    raced = [races.race(place) for place in first]
    floats_s = [place.seconds for place in places.rows if place.seconds is not None and not place.refused]
    fastest_s = min(floats_s, default=raced[0].float_s)
    ranked = sorted(raced, key=lambda result: result.score_s)
    able = [result for result in ranked if is_forced or result.least_s <= (1.0 - work.budget.gain) * fastest_s]
    forms = tuple(row for result in raced for row in result.rows)
    profile = races.profile(ranked[0])
    if not able:
        home, why = ranked[0].place, _hopeless(ranked[0], work.graph)
        return Screened(work, profile.scheme, (), home, places, forms, profile=profile, why=why, note=note)
    best, most_s = able[0], (1.0 - work.budget.gain) * fastest_s
    near = [result for result in able if result.score_s <= REACH * best.score_s][
        : work.within(_PLANNED_S).runs(_PLANNED)
    ]
    planned = tuple(result.place for result in near)
    forms, kept = _kept(forms, planned, races.uncalibrated)
    screened = Screened(work, scheme, planned, best.place, places, forms, profile=profile, note=note)
    if not is_forced:
        alone = replace(scheme, uncalibrated=kept)
        whys = [why_errors_forbid(work, alone, result.room(most_s), races.max_loss, races.metric) for result in near]
        if all(whys):
            return replace(screened, scheme=profile.scheme, planned=(), why=whys[0])
    mixes = int(work.budget.opening_s / max(result.opening_s for result in near))
    screened = replace(screened, mixes=min(MOST_MIXES, mixes))
    return screened if wanted is not None else _with_scheme(screened, kept)


def _float_somewhere(work: Work, max_loss: float, metric: Metric) -> tuple[Work, Places, Note | None]:
    """The float model in every place. If it keeps the limit nowhere, or sums of its own would saturate elsewhere,
    another model is planned instead, and the note says why."""
    note = None
    own = saturating_products(work.model.proto) if work.setup.portable else ""
    if own:
        work = with_instead(work, EXACT_SUMS)
        text = f"the source's own u8×s8 products ({own}) saturate on some processors: it is planned with exact sums"
        note = Note(Kind.PLANNED_INSTEAD, text)
    everywhere = float_everywhere(work, max_loss, metric)
    if all(place.refused for place in everywhere.rows):
        work, note = planned_instead(work, max_loss, metric)
        everywhere = float_everywhere(work, max_loss, metric)
    return work, everywhere, note


def _with_scheme(screened: Screened, kept: tuple[Uncalibrated, ...]) -> Screened:
    """`screened` with the best scheme of those that were raced in its best place, and the forms that are `kept`."""
    work, before = screened.work, screened.scheme
    chosen = _pick([row for row in screened.forms if row.runtime == screened.home and row.form == INT8_RUN])
    scheme = before if chosen is None else parse_scheme(chosen.scheme)
    work.kept.forget("builder", but=scheme)  # each holds a copy of the weights
    if scheme != before:
        work = work.settled(scheme)
    forms = tuple(replace(row, kept=row.kept and row.scheme in ("", str(scheme))) for row in screened.forms)
    return replace(screened, work=work, scheme=replace(scheme, uncalibrated=kept), forms=forms)


def refuse_unportable(work: Work, scheme: Scheme | None) -> None:
    """Raise BadOption for a requested scheme whose answers differ between processors, where only portable forms are
    allowed."""
    if not work.setup.portable or scheme is None:
        return
    if scheme.may_saturate:
        raise BadOption(
            f"`portable` excludes `scheme` {scheme}, whose sums saturate on some processors: use {scheme.narrow}"
        )
    if "bfloat16" in scheme.uncalibrated:
        raise BadOption(f"`portable` excludes bfloat16, which `scheme` {scheme} names: leave one of the two out")


def _kept(
    rows: Sequence[Measurement], planned: Sequence[str], forms: Iterable[Uncalibrated]
) -> tuple[tuple[Measurement, ...], tuple[Uncalibrated, ...]]:
    """The rows, where a form stays kept only in the places `planned`; and the names of the kept forms without
    calibration."""
    judged = tuple(replace(row, kept=row.kept and row.runtime in planned) for row in rows)
    names = {row.form for row in judged if row.kept}
    return judged, tuple(form for form in forms if form in names)


def _pick(schemes: Sequence[Measurement]) -> Measurement | None:
    """The scheme with the best score; among scores within noise of it, the one with the smallest error."""
    scored = [(row, row.score_s) for row in schemes if row.score_s is not None]
    near = [row for row, score_s in scored if score_s <= _NOISE * min(least_s for _, least_s in scored)]
    return min(near, key=lambda row: row.error or 0.0, default=None)


def _hopeless(result: PlaceRace, graph: Graph) -> Note:
    """Why no plan is made, from the best place that was raced."""
    if not graph.choices():
        return Note(Kind.FACT, f"no block has another form than float32{graph.refusal()}")
    int8 = result.int8
    if int8 is None or int8.seconds is None or int8.float_s is None:
        return Note(Kind.NO_GAIN, "no form that was raced can be faster than float32")
    float_ms, int8_ms = int8.float_s * 1e3, int8.seconds * 1e3  # of one race: the machine's speed changes between races
    if int8_ms > float_ms:
        why = f"int8 is slower here: about {int8_ms:.3g} ms for {float_ms:.3g}, and no mix of forms can be faster"
    else:
        times = f"all int8 takes about {int8_ms:.3g} ms, float {float_ms:.3g}"
        why = f"no mix of forms can be faster than float32 here: {times}"
    return Note(Kind.NO_GAIN, why)
