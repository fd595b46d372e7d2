"""What is decided before anything is profiled: the places to plan in, the scheme and the forms. Plans nothing.

The float model is raced in every place. In one place of each runtime it is then raced beside the forms of its blocks,
each on all blocks that have it, and int8 under each scheme; their errors are measured in the same sessions. A place is
planned in only if its kernels show that a mix of forms may be faster than float anywhere.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf

import onnx

from taglio.error.loss import Metric
from taglio.error.runtime_part import left_for_int8
from taglio.error.tally import Reference
from taglio.errors import BadOption, TaglioError
from taglio.lab.side_by_side import RaceResult, loss_beside, race, reason
from taglio.lab.work import Work
from taglio.model.exact import saturating_products
from taglio.model.graph import Graph
from taglio.profile.attribution import Attribution, Attributor
from taglio.profile.effort import MIXES
from taglio.profile.measure import FLOAT_RUN, of_pure_forms, pure_assignments
from taglio.profile.result import Profile
from taglio.profile.stopwatch import Timed
from taglio.progress import reported
from taglio.quantize.precision import (
    BFLOAT16,
    UNCALIBRATED,
    Assignment,
    Precision,
    has_kernels,
    precisions,
    uncalibrated_forms,
)
from taglio.quantize.scheme import DEFAULT_SCHEME, Scheme, Uncalibrated
from taglio.runtimes.onnxruntime import NAME
from taglio.runtimes.openvino import NAME as OPENVINO
from taglio.runtimes.places import bfloat16_refusal
from taglio.runtimes.processor import instructions, sums_saturate
from taglio.search.bound import least_share, most_saved, saved_by_block
from taglio.search.instead import EXACT_SUMS, planned_instead, with_instead
from taglio.search.joined_rows import row_errors
from taglio.search.ledger import NOT_RACED, Floats, Measurement, Variant, expected_s
from taglio.search.places import REACH, Places, float_everywhere, profiled, usable

INT8, FLOAT_AGAIN = "int8", "float32 again"
# What a race consists of at least: a model of which there is no time for so much is planned without one.
_RACED = (FLOAT_RUN, FLOAT_AGAIN, INT8)
# Raced beside the default scheme. In OpenVINO, products of matrices then take two thirds of the time, and errors are
# larger. ONNX Runtime has no fast kernels of s8 activations on x86.
_SIGNED = Scheme(activation="s8", activation_symmetry="symmetric")
# At most so many places are planned in, fewer if so many runs take longer than _PLANNED_S. With one place alone, two
# threads of the quick start ended at 1.13 × instead of 1.54: float was as fast in both, and the short race chose.
_PLANNED, _PLANNED_S = 2, 2.0
# A short race cannot separate schemes whose scores differ by less than this factor.
_NOISE = 1.02
# Inputs on which blocks alone are measured to bound what the limit allows, and the factor by which errors on others may
# be smaller.
_BOUND_INPUTS, _LENIENT = 2, 2.0
# Relative L2 limit for comparing schemes and forms if the limited metric moves in steps.
_STEPS_ERROR = 0.01
# Runs of a slow model that a variant takes: a warm-up and one in the race, two with kernels, and one for the error.
_RUNS = 4


@dataclass(frozen=True, slots=True, eq=False)
class Room:
    """What forms could save in one place: by block the seconds of each form, and by all else `other_s`. To be faster
    than the fastest float model by the least gain, a plan there must save `needed_s`."""

    place: str
    saved_s: Mapping[str, Mapping[str, float]]
    other_s: float
    needed_s: float


@dataclass(frozen=True, slots=True, eq=False)
class Screened:
    """`work` with every block that cannot be int8 kept in float, and the `scheme` of plans with the forms that it may
    use. Plans are made in the places `planned`; there are none if no mix of forms can be faster than float, and `why`
    says so. `places` are the float model's results and `floats` its times there, `forms` and `schemes` the results of
    all blocks in one form. `home` is the best place that was raced, and `profile` is made of that race (None: there was
    no time for one). So many `mixes` can be opened for a profile. `note` says why another model than the source is
    planned, or is ""."""

    work: Work
    scheme: Scheme
    planned: tuple[str, ...]
    home: str
    places: tuple[Measurement, ...]
    floats: Floats = NOT_RACED
    forms: tuple[Measurement, ...] = ()
    schemes: tuple[Measurement, ...] = ()
    profile: Profile | None = None
    mixes: int = MIXES
    why: str = ""
    note: str = ""

    @property
    def usable(self) -> dict[str, float]:
        """The float model's own error in each place where a model may be deployed, ONNX Runtime first."""
        return usable(self.places)


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
    weights of 7 bits because sums of 8-bit products saturate on some other device: what that costs cannot be measured
    here."""
    refuse_unportable(work, wanted)
    work, everywhere, note = _float_somewhere(work, max_loss, metric)
    places, floats = everywhere.rows, everywhere.floats
    first = profiled(places)
    is_narrow = is_narrow or work.setup.portable or sums_saturate(instructions())
    screening = _Screening(work, wanted, max_loss, metric, is_narrow=is_narrow)
    scheme = screening.scheme
    work = screening.work
    if not screening.is_affordable(len(_RACED)):
        home, scheme = screening.unraced(usable(places))
        return Screened(work, scheme, (home,), home, places, floats, note=note)
    raced = [screening.race(place) for place in first]
    floats_s = [place.seconds for place in places if place.seconds is not None and not place.refused]
    fastest_s = min(floats_s, default=raced[0].float_s)
    ranked = sorted(raced, key=lambda result: result.score_s)
    able = [result for result in ranked if is_forced or result.least_s <= (1.0 - work.budget.gain) * fastest_s]
    forms = tuple(row for result in raced for row in result.rows)
    profile = screening.profile(ranked[0])
    if not able:
        home, why = ranked[0].place, _hopeless(ranked[0], work.graph)
        return Screened(work, profile.scheme, (), home, places, floats, forms, profile=profile, why=why, note=note)
    best, most_s = able[0], (1.0 - work.budget.gain) * fastest_s
    near = [result for result in able if result.score_s <= REACH * best.score_s][
        : work.within(_PLANNED_S).runs(_PLANNED)
    ]
    planned = tuple(result.place for result in near)
    screened = Screened(work, scheme, planned, best.place, places, floats, forms, profile=profile, note=note)
    kept = _kept(forms, planned, screening.uncalibrated)[1]
    whys = [] if is_forced else [screening.why_errors_forbid(result.room(most_s), kept) for result in near]
    if whys and all(whys):
        return replace(screened, scheme=profile.scheme, planned=(), why=whys[0])
    mixes = int(work.budget.opening_s / max(result.opening_s for result in near))
    screened = replace(screened, mixes=min(MIXES, mixes))
    return screened if wanted is not None else _with_scheme(screened, best.schemes, screening.uncalibrated)


def _float_somewhere(work: Work, max_loss: float, metric: Metric) -> tuple[Work, Places, str]:
    """The float model in every place. If it keeps the limit nowhere, or sums of its own would saturate elsewhere,
    another model is planned instead, and the note says why."""
    note = ""
    own = saturating_products(work.model.proto) if work.setup.portable else ""
    if own:
        work = with_instead(work, EXACT_SUMS)
        note = f"the source's own u8×s8 products ({own}) saturate on some processors: it is planned with exact sums"
    everywhere = float_everywhere(work, max_loss, metric)
    if all(place.refused for place in everywhere.rows):
        work, note = planned_instead(work, max_loss, metric)
        everywhere = float_everywhere(work, max_loss, metric)
    return work, everywhere, note


def _with_scheme(
    screened: Screened, raced: Mapping[Scheme, Measurement], uncalibrated: Mapping[Uncalibrated, Precision]
) -> Screened:
    """`screened` with the best scheme of those that were `raced` in its best place, and with the forms to plan with."""
    work, before = screened.work, screened.scheme
    scheme = _pick(raced) or before
    work.kept.forget("builder", but=scheme)  # each holds a copy of the weights
    if scheme != before:
        work = work.settled(scheme)
    schemes = tuple(replace(row, kept=raced_scheme == scheme) for raced_scheme, row in raced.items())
    forms, kept = _kept(screened.forms, screened.planned, uncalibrated)
    return replace(screened, work=work, scheme=replace(scheme, uncalibrated=kept), forms=forms, schemes=schemes)


def refuse_unportable(work: Work, scheme: Scheme | None) -> None:
    """Raise BadOption for a requested scheme whose answers differ between processors, where only portable forms are
    allowed."""
    if not work.setup.portable or scheme is None:
        return
    if scheme.may_saturate:
        raise BadOption(
            f"`portable` excludes `scheme` {scheme}, whose sums saturate on some processors: use {scheme.narrow}"
        )
    if "bf16" in scheme.uncalibrated:
        raise BadOption(f"`portable` excludes bfloat16, which `scheme` {scheme} names: leave one of the two out")


@dataclass(frozen=True, slots=True, eq=False)
class _PlaceRace:
    """The race in one `place`, where the float model took `float_s`: its `rows`, the latency to expect of a plan there
    (`score_s`), and the least that the kernels allow of any mix (`least_s`). `schemes` are the results of int8 by
    scheme."""

    place: str
    base: float
    float_s: float
    score_s: float
    least_s: float
    rows: tuple[Measurement, ...]
    schemes: Mapping[Scheme, Measurement]
    timed: Mapping[str, tuple[Assignment, Timed]]
    profiles: Mapping[str, Attribution]
    opening_s: float

    def room(self, most_s: float) -> Room:
        """What forms could save here, and what they must for a plan to take `most_s`."""
        floats = self.profiles[FLOAT_RUN]
        kernels_s = sum(floats.blocks_s.values()) + sum(floats.tensors_s.values()) + floats.orphans_s
        scale = self.float_s / kernels_s if kernels_s > 0.0 else 1.0
        forms = {row.variant.form: self.profiles[row.variant.form] for row in self.rows if row.seconds is not None}
        low = forms.pop(BFLOAT16.name, floats)
        saved_s = {
            block: {form: scale * seconds for form, seconds in by_form.items()}
            for block, by_form in saved_by_block(floats, forms).items()
        }
        other_s = scale * sum(
            max(0.0, seconds - min((profile.tensors_s.get(tensor, 0.0) for profile in forms.values()), default=seconds))
            for tensor, seconds in floats.tensors_s.items()
        )
        # bfloat16 changes answers so little that its limit is not looked for here.
        gains_s = (seconds - low.blocks_s.get(block, 0.0) for block, seconds in floats.blocks_s.items())
        other_s += scale * sum(gain_s for gain_s in gains_s if gain_s > 0.0)
        return Room(self.place, saved_s, other_s, self.float_s - most_s)

    @property
    def int8(self) -> Measurement | None:
        """All candidate blocks in int8; None if that was not raced or does not run."""
        return next((row for row in self.rows if row.variant.form == INT8 and row.seconds is not None), None)


class _Screening:
    """Races in one place after another, under one limit."""

    def __init__(self, work: Work, wanted: Scheme | None, max_loss: float, metric: Metric, *, is_narrow: bool) -> None:
        self.scheme = scheme = wanted or (DEFAULT_SCHEME.narrow if is_narrow else DEFAULT_SCHEME)
        self._is_wanted = wanted is not None
        self._metric, self._max_loss = (metric, max_loss) if metric.smooth else (metric.basis, _STEPS_ERROR)
        try:
            self.work = work.settled(scheme) if work.graph.candidates() else work
        except TaglioError as error:
            blocks = {block.name: reason(error) for block in work.graph.candidates()}
            self.work = work.but(graph=work.graph.without_int8(blocks))
        self.uncalibrated = uncalibrated_forms(is_narrow)
        if work.setup.portable or bfloat16_refusal():
            del self.uncalibrated["bf16"]
        if wanted is not None:
            self.uncalibrated = {name: UNCALIBRATED[name] for name in wanted.uncalibrated}
        self._reference: Reference | None = None

    def reference(self) -> Reference:
        """The inputs that errors are measured on."""
        if self._reference is None:
            run_s = max(self.work.setup.run_s, 1e-5)
            self._reference = self.work.quick_reference(run_s, self.work.effort)
        return self._reference

    def race(self, float_there: Measurement) -> _PlaceRace:
        """Float beside all blocks in each form, in the place of `float_there`."""
        place, base = float_there.variant.runtime, float_there.error or 0.0
        work = self.work.in_place(place)
        forms = self._forms(place)
        models = {name: partial(work.builder(self.scheme).build, assignment) for name, assignment in forms.items()}
        others = {str(scheme): scheme for scheme in self._other_schemes(place, forms)}
        models |= {name: partial(self._all_int8, work, scheme) for name, scheme in others.items()}
        models = dict.fromkeys((FLOAT_RUN, FLOAT_AGAIN), partial(work.builder(self.scheme).build, {})) | models
        error_of, start = loss_beside(work, self.reference(), self._metric), time.perf_counter()
        raced = race(work, models, work.budget.race_s, error_of=error_of, judged=models)
        # Kernels are timed in half as many rounds as whole models.
        opening_s = max(1e-3, (time.perf_counter() - start - 1.5 * work.budget.race_s) / len(models))
        float_s = _seconds(raced[FLOAT_RUN])
        left = left_for_int8(self._max_loss, base)
        coupled = self._coupled(forms)

        def row(name: str, variant: Variant) -> Measurement:
            result = raced[name]
            if result.timed is None or result.error is None or name in coupled:
                return Measurement(variant, refused=coupled.get(name, result.refused))
            seconds = result.timed.wall.median_s
            score_s = expected_s(float_s, seconds, result.error, left)
            return Measurement(variant, seconds, float_s, result.error, score_s)

        rows = [
            row(name, Variant(place, name, str(self.scheme) if name == INT8 else "", len(assignment)))
            for name, assignment in forms.items()
        ]
        runs = {INT8: self.scheme, **others} if INT8 in forms else {}
        schemes = {
            scheme: row(name, Variant(place, INT8, str(scheme), len(forms[INT8]))) for name, scheme in runs.items()
        }
        rows = [_judged(form, rows, self.work.budget.gain) for form in rows]
        best_s = min([float_s, *self._scores(rows, float_s)])
        profiles = self._profiles(raced)
        ran = {form.variant.form: form.seconds for form in rows} | {
            str(each): row.seconds for each, row in schemes.items()
        }
        ran_s = {name: seconds for name, seconds in ran.items() if seconds is not None}
        timed = {
            name: (assignment, result.timed)
            for name, assignment in {FLOAT_RUN: {}, **forms}.items()
            if (result := raced[name]).timed is not None
        }
        # Places are compared by the race of all, since the machine's speed changes from race to race.
        drift = 1.0 if float_there.seconds is None else float_there.seconds / float_s
        return _PlaceRace(
            place=place,
            base=base,
            float_s=drift * float_s,
            score_s=drift * best_s,
            least_s=drift * min([_least_s(float_s, profiles, ran_s), *ran_s.values()]),
            rows=tuple(rows),
            schemes=schemes,
            timed=timed,
            profiles=profiles,
            opening_s=opening_s,
        )

    def why_errors_forbid(self, room: Room, kept: Sequence[Uncalibrated]) -> str:
        """Why no plan with the forms `kept` can be faster than float within the limit; "" if one may be. Blocks are
        measured alone on a few inputs, those first that save most, until the rest cannot matter or enough is within the
        limit."""
        if not self._metric.smooth or self._max_loss <= 0.0:
            return ""
        work = self.work.in_place(NAME)
        scheme = replace(self.scheme, uncalibrated=tuple(kept))
        forms = {form.name: form for form in precisions(scheme)}
        meter = work.meter(work.switchable(scheme), _BOUND_INPUTS)
        able, free_s = dict[str, dict[str, float]](), room.other_s
        for block, saved_s in room.saved_s.items():
            fits = {
                form: saved_s[form] for form in saved_s if form in forms and forms[form].fits(work.graph.block(block))
            }
            fastest = max(saved_s, key=saved_s.__getitem__)
            if fastest in fits:
                able[block] = fits
            else:  # it is faster because of its neighbours' forms: such a saving costs no error of its own
                free_s += saved_s[fastest]
        errors: dict[tuple[str, str], float] = {}
        pairs = [(block, form) for block, saved_s in able.items() for form in saved_s]
        by_saving = sorted(pairs, key=lambda pair: able[pair[0]][pair[1]], reverse=True)
        for block, form in reported(by_saving, "each block alone", work.progress):
            errors[block, form] = meter.error({block: forms[form]})
            known = {
                name: {form: saved for form, saved in able[name].items() if (name, form) in errors} for name in able
            }
            if most_saved(known, errors, self._max_loss) >= room.needed_s:
                return ""
            if free_s + most_saved(able, errors, _LENIENT * self._max_loss) < room.needed_s:
                limit = f"{self._metric.title} {self._metric.limit(self._max_loss, 2)}"
                return (
                    f"with the {limit} no plan can be faster than float32 here: the blocks that save time change the "
                    "answers too much"
                )
        return ""

    def profile(self, result: _PlaceRace) -> Profile:
        """The profile of float and every form alone, from the race in a place."""
        work = self.work.in_place(result.place)
        forms = tuple(short for short, form in self.uncalibrated.items() if form.name in result.timed)
        scheme = replace(self.scheme, uncalibrated=forms)
        return of_pure_forms(work.model, work.graph, scheme, work.stopwatch, result.timed)

    def _forms(self, place: str) -> dict[str, Assignment]:
        """The assignments to race in a place: all candidates in int8, and all blocks that have another form in it."""
        graph, forms = self.work.graph, dict[str, Assignment]()
        if graph.candidates():
            forms[INT8] = pure_assignments(graph, precisions(replace(self.scheme, uncalibrated=())))[INT8]
        others = {
            form.name: {block.name: form for block in blocks}
            for form in self.uncalibrated.values()
            if has_kernels(place, form) and (blocks := [block for block in graph.blocks if form.fits(block)])
        }
        if self.is_affordable(len(_RACED) + len(others)):
            forms |= others
        return forms

    def unraced(self, places: Collection[str]) -> tuple[str, Scheme]:
        """The one of the usable `places`, and the scheme of a plan, for which there is no time for a race."""
        is_large = not self._opens(len(_RACED))  # OpenVINO compiles 5,000 operators in int8 for 25 s
        if "bf16" in self.uncalibrated and OPENVINO in places and not is_large:
            return OPENVINO, self.scheme if self._is_wanted else replace(self.scheme, uncalibrated=("bf16",))
        return NAME if NAME in places else next(iter(places)), self.scheme

    def _opens(self, variants: int) -> bool:
        """Whether there is time to open so many variants of the model."""
        return self.work.within(self.work.budget.race_s).sessions >= variants

    def is_affordable(self, variants: int) -> bool:
        """Whether there is time to race so many variants of the model."""
        return self.work.within(self.work.budget.race_s).models(_RUNS) >= variants

    def _profiles(self, raced: Mapping[str, RaceResult]) -> dict[str, Attribution]:
        """The kernels of every model that ran, by block and tensor."""
        attributor = Attributor(self.work.model, self.work.graph)
        ran = {name: result.timed for name, result in raced.items() if result.timed is not None}
        return {name: attributor.attribute(timed.optimized, timed.kernels) for name, timed in ran.items()}

    def _coupled(self, forms: Mapping[str, Assignment]) -> dict[str, str]:
        """Why a form is left out because rows of a batch change each other's answers. Only int8-dynamic has a scale
        that rows share."""
        dynamic = UNCALIBRATED["dyn"].name
        if dynamic not in forms:
            return {}
        errors = row_errors(self.work, self.work.in_place(NAME).builder(self.scheme).build(forms[dynamic]))
        return {dynamic: str(errors)} if errors is not None and errors.coupled else {}

    def _scores(self, rows: Sequence[Measurement], float_s: float) -> list[float]:
        """The latencies to expect of plans with each form. An LSTM has no int8 form, so the share of what int8-dynamic
        gains there comes on top of what int8 gains."""
        scores = {
            row.variant.form: row.score_s for row in rows if row.score_s is not None and (row.kept or _is_int8(row))
        }
        dynamic, int8_s = UNCALIBRATED["dyn"], scores.get(INT8)
        latencies_s = [*scores.values()]
        if int8_s is not None and dynamic.name in scores:
            fitting = [block for block in self.work.graph.blocks if dynamic.fits(block)]
            recurrent = sum(block.flops for block in fitting if block.recurrent)
            share = recurrent / max(1, sum(block.flops for block in fitting))
            latencies_s.append(int8_s - share * (float_s - scores[dynamic.name]))
        return latencies_s

    def _other_schemes(self, place: str, forms: Mapping[str, Assignment]) -> list[Scheme]:
        """The schemes that are raced beside the default one and the `forms`; none if one is wanted."""
        has_kernels = place != NAME or "asimd" in instructions()
        if self._is_wanted or INT8 not in forms or not has_kernels:
            return []
        is_affordable = self.is_affordable(len(_RACED) + len(forms))
        return [_SIGNED.narrow if self.scheme.reduced_range else _SIGNED] if is_affordable else []

    def _all_int8(self, work: Work, scheme: Scheme) -> onnx.ModelProto:
        """All candidate blocks in int8 under a scheme."""
        assignment = pure_assignments(work.graph, precisions(scheme))[INT8]
        return work.builder(scheme).build(assignment)


def _least_s(float_s: float, profiles: Mapping[str, Attribution], forms: Collection[str]) -> float:
    """The least that any mix of `forms` may take by their kernels, where float takes `float_s`; 0 where the noise
    between two profiles of float is unknown."""
    if not {FLOAT_RUN, FLOAT_AGAIN} <= profiles.keys():
        return 0.0
    measured = [profiles[form] for form in forms if form in profiles]
    return float_s * least_share(profiles[FLOAT_RUN], profiles[FLOAT_AGAIN], measured)


def _judged(row: Measurement, rows: Sequence[Measurement], gain: float) -> Measurement:
    """A form, kept if it promises a faster plan and no other form is both faster and more accurate; int8 is kept if it
    runs."""
    if row.seconds is None or row.error is None or row.score_s is None or row.float_s is None:
        return row
    if _is_int8(row):
        return replace(row, kept=True)
    others = [other for other in rows if other.seconds is not None and other.error is not None]
    is_beaten = any(
        (other.seconds or inf) < row.seconds and (other.error or 0.0) < row.error
        for other in others
        if other is not row
    )
    return replace(row, kept=row.score_s <= (1.0 - gain) * row.float_s and not is_beaten)


def _kept(
    rows: Sequence[Measurement], planned: Sequence[str], forms: Mapping[Uncalibrated, Precision]
) -> tuple[tuple[Measurement, ...], tuple[Uncalibrated, ...]]:
    """The rows, of which those are kept that are so in a place where plans are made; and the names of the forms
    without calibration that are."""
    judged = tuple(replace(row, kept=row.kept and row.variant.runtime in planned) for row in rows)
    names = {row.variant.form for row in judged if row.kept}
    return judged, tuple(short for short, form in forms.items() if form.name in names)


def _pick(schemes: Mapping[Scheme, Measurement]) -> Scheme | None:
    """The scheme with the best score; among scores within noise of it, the one with the smallest error."""
    scores = {scheme: row.score_s for scheme, row in schemes.items() if row.score_s is not None}
    near = [scheme for scheme, score_s in scores.items() if score_s <= _NOISE * min(scores.values())]
    return min(near, key=lambda scheme: schemes[scheme].error or 0.0, default=None)


def _is_int8(row: Measurement) -> bool:
    return row.variant.form == INT8


def _seconds(raced: RaceResult) -> float:
    assert raced.timed is not None, "the first model of a race is never refused"
    return raced.timed.wall.median_s


def _hopeless(result: _PlaceRace, graph: Graph) -> str:
    """Why no plan is made, from the best place that was raced."""
    if not graph.choices():
        return f"no block has another form than float32{graph.refusal()}"
    int8 = result.int8
    if int8 is None or int8.seconds is None or int8.float_s is None:
        return "no form that was raced can be faster than float32"
    float_ms, int8_ms = int8.float_s * 1e3, int8.seconds * 1e3  # of one race: the machine's speed changes between races
    if int8_ms > float_ms:
        return f"int8 is slower here: about {int8_ms:.3g} ms for {float_ms:.3g}, and no mix of forms can be faster"
    return (
        f"no mix of forms can be faster than float32 here: all int8 takes about {int8_ms:.3g} ms, float {float_ms:.3g}"
    )
