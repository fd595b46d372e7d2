"""What is decided before anything is profiled: the places to plan in, the scheme and the forms. Plans nothing.

The float model is raced in every place. In one place of each runtime it is then raced beside the forms of its blocks,
each on all blocks that have it; their errors are measured in the same sessions. A place is planned in only if its
kernels show that a mix of forms may be faster than float anywhere. Other schemes of int8 are raced in the best place.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf

import onnx

from taglio.error.loss import Metric
from taglio.error.runtime_part import left_for_int8
from taglio.errors import BadOption, TaglioError
from taglio.flow.bound import least_share, most_saved, saved_by_block
from taglio.flow.instead import EXACT_SUMS, planned_instead, with_instead
from taglio.flow.joined_rows import row_errors
from taglio.flow.lab import Judging, Raced, race, reason
from taglio.flow.ledger import NOT_RACED, Floats, Measurement, Variant, expected_s
from taglio.flow.places import REACH, float_everywhere, one_of_each_runtime, usable
from taglio.flow.work import Work
from taglio.model.exact import saturating_products
from taglio.model.graph import Graph
from taglio.profile.attribution import Attribution, Attributor
from taglio.profile.measure import FLOAT_RUN, MIXES, of_pure_forms, pure_assignments
from taglio.profile.result import Profile
from taglio.profile.sessions import sessions_within
from taglio.profile.stopwatch import Timed
from taglio.progress import reported
from taglio.quantize.precision import UNCALIBRATED, Assignment, Precision, precisions, uncalibrated_forms
from taglio.quantize.scheme import DEFAULT_SCHEME, Scheme, Uncalibrated
from taglio.runtimes.onnxruntime import NAME
from taglio.runtimes.processor import instructions, sums_saturate

INT8, FLOAT_AGAIN = "int8", "float32 again"
# What a race consists of at least: a model of which there is no time for so much is planned without one.
_RACED = (FLOAT_RUN, FLOAT_AGAIN, INT8)
# Schemes that are raced beside the default one. ONNX Runtime has no fast kernels of s8 activations on x86.
_OTHERS = (Scheme(activation_symmetry="symmetric"), Scheme(activation="s8", activation_symmetry="symmetric"))
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
_RUNS, _PATIENCE = 4, 6.0


@dataclass(frozen=True, slots=True, eq=False)
class Room:
    """What forms could save in one place: by block the form and its seconds, and by all else `other_s`. To be faster
    than the fastest float model by the least gain, a plan there must save `needed_s`."""

    place: str
    saved: Mapping[str, tuple[str, float]]
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
    note = ""
    own = saturating_products(work.model.proto) if work.setup.portable else ""
    if own:
        work = with_instead(work, EXACT_SUMS)
        note = f"the source's own u8×s8 products ({own}) saturate on some processors: it is planned with exact sums"
    everywhere = float_everywhere(work, max_loss, metric)
    if all(place.refused for place in everywhere.rows):
        work, note = planned_instead(work, max_loss, metric)
        everywhere = float_everywhere(work, max_loss, metric)
    places, floats = everywhere.rows, everywhere.floats
    if everywhere.bfloat16 is not None:
        work = work.but(setup=replace(work.setup, bfloat16=everywhere.bfloat16))
    first = one_of_each_runtime(places, max_loss)
    is_narrow = is_narrow or work.setup.portable or sums_saturate(instructions())
    screening = _Screening(work, wanted, max_loss, metric, is_narrow=is_narrow)
    scheme = screening.scheme
    work = screening.work
    if not screening.is_affordable(len(_RACED)):
        # OpenVINO compiles 5,000 operators in int8 for 25 s.
        home = NAME if NAME in usable(places) else first[0].variant.runtime
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
        : work.affordable(_PLANNED_S, _PLANNED)
    ]
    planned = tuple(result.place for result in near)
    screened = Screened(work, scheme, planned, best.place, places, floats, forms, profile=profile, note=note)
    whys = [] if is_forced else [screening.why_errors_forbid(result.room(most_s)) for result in near]
    if whys and all(whys):
        return replace(screened, scheme=profile.scheme, planned=(), why=whys[0])
    schemes: tuple[Measurement, ...] = ()
    if wanted is None:
        scheme, schemes = screening.schemes(best)
        if scheme != screening.scheme:
            work.kept.forget("builder", but=scheme)  # each holds a copy of the weights
            work = work.settled(scheme)
        forms, kept = _kept(forms, planned, screening.uncalibrated)
        scheme = replace(scheme, uncalibrated=kept)
    mixes = int(work.budget.opening_s / max(result.opening_s for result in near))
    return replace(screened, work=work, scheme=scheme, forms=forms, schemes=schemes, mixes=min(MIXES, mixes))


def refuse_unportable(work: Work, scheme: Scheme | None) -> None:
    """Raise BadOption for a requested scheme whose sums may saturate, where only portable forms are allowed."""
    if work.setup.portable and scheme is not None and scheme.may_saturate:
        raise BadOption(
            f"`portable` excludes `scheme` {scheme}, whose sums saturate on some processors: use {scheme.narrow}"
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Result:
    """The race in one `place`, where the float model took `float_s`: its `rows`, the latency to expect of a plan there
    (`score_s`), and the least that the kernels allow of any mix (`least_s`)."""

    place: str
    base: float
    float_s: float
    score_s: float
    least_s: float
    rows: tuple[Measurement, ...]
    timed: Mapping[str, tuple[Assignment, Timed]]
    profiles: Mapping[str, Attribution]
    opening_s: float

    def room(self, most_s: float) -> Room:
        """What forms could save here, and what they must for a plan to take `most_s`."""
        floats = self.profiles[FLOAT_RUN]
        kernels_s = sum(floats.blocks_s.values()) + sum(floats.tensors_s.values()) + floats.orphans_s
        scale = self.float_s / kernels_s if kernels_s > 0.0 else 1.0
        forms = {row.variant.form: self.profiles[row.variant.form] for row in self.rows if row.seconds is not None}
        saved = {block: (form, scale * seconds) for block, (form, seconds) in saved_by_block(floats, forms).items()}
        other_s = scale * sum(
            max(0.0, seconds - min((profile.tensors_s.get(tensor, 0.0) for profile in forms.values()), default=seconds))
            for tensor, seconds in floats.tensors_s.items()
        )
        return Room(self.place, saved, other_s, self.float_s - most_s)

    @property
    def int8(self) -> Measurement | None:
        """All candidate blocks in int8; None if that was not raced or does not run."""
        return next((row for row in self.rows if row.variant.form == INT8 and row.seconds is not None), None)


class _Screening:
    """Races in one place after another, under one limit."""

    def __init__(self, work: Work, wanted: Scheme | None, max_loss: float, metric: Metric, *, is_narrow: bool) -> None:
        self.scheme = scheme = wanted or (DEFAULT_SCHEME.narrow if is_narrow else DEFAULT_SCHEME)
        self._metric, self._max_loss = (metric, max_loss) if metric.smooth else (metric.basis, _STEPS_ERROR)
        try:
            self.work = work.settled(scheme) if work.graph.candidates() else work
        except TaglioError as error:
            blocks = {block.name: reason(error) for block in work.graph.candidates()}
            self.work = work.but(graph=work.graph.without_int8(blocks))
        self.uncalibrated = uncalibrated_forms(is_narrow)
        if wanted is not None:
            self.uncalibrated = {name: UNCALIBRATED[name] for name in wanted.uncalibrated}
        self._judging: Judging | None = None

    def judging(self) -> Judging:
        """The inputs that errors are measured on."""
        if self._judging is None:
            run_s = max(self.work.setup.run_s, 1e-5)
            self._judging = Judging(self.work.quick_reference(run_s, self.work.effort), self._metric)
        return self._judging

    def race(self, float_there: Measurement) -> _Result:
        """Float beside all blocks in each form, in the place of `float_there`."""
        place, base = float_there.variant.runtime, float_there.error or 0.0
        work = self.work.in_place(place)
        forms = self._forms()
        build = work.builder(self.scheme).build
        models = {name: partial(build, assignment) for name, assignment in forms.items()}
        all_models = {FLOAT_RUN: partial(build, {}), FLOAT_AGAIN: partial(build, {}), **models}
        judging, start = self.judging(), time.perf_counter()
        raced = race(work, all_models, work.budget.race_s, judging=judging)
        # Kernels are timed in half as many rounds as whole models.
        opening_s = max(1e-3, (time.perf_counter() - start - 1.5 * work.budget.race_s) / len(all_models))
        float_s = _seconds(raced[FLOAT_RUN])
        left = left_for_int8(self._max_loss, base)
        coupled = self._coupled(forms)
        rows = []
        for name, assignment in forms.items():
            variant = Variant(place, name, str(self.scheme) if name == INT8 else "", len(assignment))
            result = raced[name]
            if result.timed is None or result.error is None or name in coupled:
                rows.append(Measurement(variant, refused=coupled.get(name, result.refused)))
                continue
            seconds = result.timed.wall.median_s
            score_s = expected_s(float_s, seconds, result.error, left)
            rows.append(Measurement(variant, seconds, float_s, result.error, score_s))
        rows = [_judged(row, rows, self.work.budget.gain) for row in rows]
        best_s = min([float_s, *self._scores(rows, float_s)])
        profiles = self._profiles(raced)
        known_forms = [profiles[row.variant.form] for row in rows if not row.refused and row.variant.form in profiles]
        least_s = 0.0
        if FLOAT_RUN in profiles and FLOAT_AGAIN in profiles:
            least_s = float_s * least_share(profiles[FLOAT_RUN], profiles[FLOAT_AGAIN], known_forms)
        least_s = min([least_s, *(row.seconds for row in rows if row.seconds is not None)])
        timed = {
            name: (assignment, result.timed)
            for name, assignment in {FLOAT_RUN: {}, **forms}.items()
            if (result := raced[name]).timed is not None
        }
        # Places are compared by the race of all, since the machine's speed changes from race to race.
        drift = 1.0 if float_there.seconds is None else float_there.seconds / float_s
        return _Result(
            place=place,
            base=base,
            float_s=drift * float_s,
            score_s=drift * best_s,
            least_s=drift * least_s,
            rows=tuple(rows),
            timed=timed,
            profiles=profiles,
            opening_s=opening_s,
        )

    def why_errors_forbid(self, room: Room) -> str:
        """Why no plan can be faster than float within the limit; "" if one may be. Blocks are measured alone on a few
        inputs, those first that save most, until the rest cannot matter or enough is within the limit."""
        if not self._metric.smooth or self._max_loss <= 0.0:
            return ""
        work = self.work.in_place(NAME)
        scheme = replace(self.scheme, uncalibrated=tuple(self.uncalibrated))
        forms = {form.name: form for form in precisions(scheme)}
        meter = work.meter(work.switchable(scheme), _BOUND_INPUTS)
        # A block may also be faster because of its neighbours' forms: such a saving costs no error of its own.
        able = {block: form for block, (form, _) in room.saved.items() if forms[form].fits(work.graph.block(block))}
        saved_s = {block: room.saved[block][1] for block in able}
        free_s = room.other_s + sum(seconds for block, (_, seconds) in room.saved.items() if block not in able)
        errors: dict[str, float] = {}
        by_saving = sorted(saved_s, key=saved_s.__getitem__, reverse=True)
        for block in reported(by_saving, "each block alone", work.progress):
            errors[block] = meter.error({block: forms[able[block]]})
            if most_saved({name: saved_s[name] for name in errors}, errors, self._max_loss) >= room.needed_s:
                return ""
            if free_s + most_saved(saved_s, errors, _LENIENT * self._max_loss) < room.needed_s:
                return (
                    f"within {self._metric.limit(self._max_loss, 2)} no plan can be faster than float32 here: "
                    "the blocks that save time change the answers too much"
                )
        return ""

    def profile(self, result: _Result) -> Profile:
        """The profile of float and every form alone, from the race in a place."""
        work = self.work.in_place(result.place)
        forms = tuple(short for short, form in self.uncalibrated.items() if form.name in result.timed)
        scheme = replace(self.scheme, uncalibrated=forms)
        return of_pure_forms(work.model, work.graph, scheme, work.setup.options(), result.timed, work.timed)

    def schemes(self, result: _Result) -> tuple[Scheme, tuple[Measurement, ...]]:
        """The best scheme of int8 in a place, and all that were raced there."""
        if result.int8 is None or result.int8.seconds is None:
            return self.scheme, ()
        work, first = self.work.in_place(result.place), replace(result.int8, kept=False)
        by_scheme = {self.scheme: first}
        has_signed_kernels = result.place != NAME or "asimd" in instructions()
        others = [other for other in _OTHERS if other.activation == "u8" or has_signed_kernels]
        if others and self.is_affordable(1 + len(others)):
            # The first one is timed again: beside a time from another race, noise would choose the scheme.
            again = [self.scheme, *(_as_narrow(other, self.scheme) for other in others)]
            raced = self._schemes_beside_float(work, again, result)
            by_scheme |= {scheme: row for scheme, row in raced.items() if scheme != self.scheme or not row.refused}
        best = _pick(by_scheme.values())
        scheme = next(scheme for scheme, row in by_scheme.items() if row is best)
        return scheme, tuple(replace(row, kept=row is best) for row in by_scheme.values())

    def _forms(self) -> dict[str, Assignment]:
        """The assignments to race: all candidates in int8, and all blocks that have another form in it."""
        graph, forms = self.work.graph, dict[str, Assignment]()
        if graph.candidates():
            forms[INT8] = pure_assignments(graph, precisions(replace(self.scheme, uncalibrated=())))[INT8]
        others = {
            form.name: {block.name: form for block in blocks}
            for form in self.uncalibrated.values()
            if (blocks := [block for block in graph.blocks if form.fits(block)])
        }
        if self.is_affordable(len(_RACED) + len(others)):
            forms |= others
        return forms

    def is_affordable(self, variants: int) -> bool:
        """Whether there is time to race so many variants of the model."""
        work = self.work
        slow = work.setup.run_s * _RUNS * variants > _PATIENCE * work.budget.race_s
        return not slow and sessions_within(_PATIENCE * work.budget.race_s, work.model.proto) >= variants

    def _profiles(self, raced: Mapping[str, Raced]) -> dict[str, Attribution]:
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
        found = [*scores.values()]
        if int8_s is not None and dynamic.name in scores:
            fitting = [block for block in self.work.graph.blocks if dynamic.fits(block)]
            recurrent = sum(block.flops for block in fitting if block.recurrent)
            share = recurrent / max(1, sum(block.flops for block in fitting))
            found.append(int8_s - share * (float_s - scores[dynamic.name]))
        return found

    def _schemes_beside_float(
        self, work: Work, schemes: Sequence[Scheme], result: _Result
    ) -> dict[Scheme, Measurement]:
        """All candidate blocks in int8 under each scheme, beside float."""
        rows = dict[Scheme, Measurement]()
        left = left_for_int8(self._max_loss, result.base)

        def build(scheme: Scheme) -> onnx.ModelProto:
            calibrated = replace(scheme, uncalibrated=())
            return work.builder(calibrated).build(pure_assignments(work.graph, precisions(calibrated))[INT8])

        models: dict[str, Callable[[], onnx.ModelProto]] = {FLOAT_RUN: lambda: work.model.proto}
        models |= {str(scheme): partial(build, scheme) for scheme in schemes}
        try:
            raced = race(
                work, models, work.budget.schemes_s, places=dict.fromkeys(models, result.place), judging=self.judging()
            )
        except TaglioError as error:  # a model that cannot even be built
            return {scheme: Measurement(_int8(result, scheme), refused=reason(error)) for scheme in schemes}
        float_s = _seconds(raced[FLOAT_RUN])
        for scheme in schemes:
            found = raced[str(scheme)]
            if found.timed is None or found.error is None:
                rows[scheme] = Measurement(_int8(result, scheme), refused=found.refused)
                continue
            # As a share of float's time: the machine's speed may have changed since the first race.
            seconds = result.float_s * found.timed.wall.median_s / float_s
            score_s = expected_s(result.float_s, seconds, found.error, left)
            rows[scheme] = Measurement(_int8(result, scheme), seconds, result.float_s, found.error, score_s)
        return rows


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


def _pick(rows: Iterable[Measurement]) -> Measurement:
    """The row with the best score; among scores within noise of it, the one with the smallest error."""
    scored = [(row, row.score_s, row.error or 0.0) for row in rows if row.score_s is not None]
    least_s = min(score_s for _, score_s, _ in scored)
    return min((each for each in scored if each[1] <= _NOISE * least_s), key=lambda each: each[2])[0]


def _int8(result: _Result, scheme: Scheme) -> Variant:
    blocks = 0 if result.int8 is None else result.int8.variant.blocks
    return Variant(result.place, INT8, str(scheme), blocks)


def _is_int8(row: Measurement) -> bool:
    return row.variant.form == INT8


def _as_narrow(scheme: Scheme, other: Scheme) -> Scheme:
    """`scheme` with as many bits as `other`."""
    return scheme.narrow if other.reduced_range else scheme


def _seconds(raced: Raced) -> float:
    assert raced.timed is not None, "the first model of a race is never refused"
    return raced.timed.wall.median_s


def _hopeless(result: _Result, graph: Graph) -> str:
    """Why no plan is made, from the best place that was raced."""
    if not graph.choices():
        return f"no block has another form than float32{graph.refusal()}"
    int8 = result.int8
    if int8 is None or int8.seconds is None:
        return "no form that was raced can be faster than float32"
    float_ms, int8_ms = result.float_s * 1e3, int8.seconds * 1e3
    if int8_ms > float_ms:
        return f"int8 is slower here: about {int8_ms:.3g} ms for {float_ms:.3g}, and no mix of forms can be faster"
    return (
        f"no mix of forms can be faster than float32 here: all int8 takes about {int8_ms:.3g} ms, float {float_ms:.3g}"
    )
