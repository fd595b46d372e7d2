"""Race float beside all blocks in each form, in one place after another, and measure the errors and kernels of the same
sessions. Chooses nothing: screen.py chooses the places, the scheme and the forms.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import inf

from taglio.error.loss import Metric
from taglio.error.runtime_part import left_for_int8
from taglio.error.tally import Reference
from taglio.errors import TaglioError, one_line
from taglio.lab.side_by_side import loss_beside, race
from taglio.lab.work import Work
from taglio.profile.attribution import Attribution, Attributor
from taglio.profile.measure import FLOAT_RUN, of_pure_forms, pure_assignments
from taglio.profile.result import Profile
from taglio.profile.stopwatch import Timed
from taglio.quantize.precision import (
    BFLOAT16,
    Assignment,
    has_kernels,
    precisions,
    uncalibrated_forms,
)
from taglio.quantize.scheme import DEFAULT_SCHEME, Scheme
from taglio.runtimes.onnxruntime import NAME
from taglio.runtimes.openvino import NAME as OPENVINO
from taglio.runtimes.places import bfloat16_refusal
from taglio.runtimes.processor import instructions
from taglio.search.bound import least_share, saved_by_block
from taglio.search.error_bound import Room
from taglio.search.ledger import INT8_RUN, Measurement, expected_s

FLOAT_AGAIN = "float32 again"
# The least that a race consists of. A model that is too slow for it is planned without a race.
RACED = (FLOAT_RUN, FLOAT_AGAIN, INT8_RUN)
# Raced beside the default scheme. In OpenVINO, products of matrices then take two thirds of the time, and errors are
# larger. ONNX Runtime has no fast kernels of s8 activations on x86.
_SIGNED = Scheme(signed=True)
# Relative L2 limit for comparing schemes and forms if the limited metric moves in steps.
_STEPS_ERROR = 0.01
# Runs of a slow model that a variant takes: a warm-up, the timed one, which records kernels, and two for the error.
_RUNS = 4


@dataclass(frozen=True, slots=True, eq=False)
class PlaceRace:
    """The race in one `place`, where the float model took `float_s`. `rows` are its results, `score_s` the latency to
    expect of a plan there, and `least_s` a lower bound on the latency of any mix, from the kernels."""

    place: str
    float_s: float
    score_s: float
    least_s: float
    rows: tuple[Measurement, ...]
    timed: Mapping[str, tuple[Assignment, Timed]]
    profiles: Mapping[str, Attribution]
    opening_s: float

    def room(self, most_s: float) -> Room:
        """The seconds that forms could save here, and those that they must save for a plan to take `most_s`."""
        floats = self.profiles[FLOAT_RUN]
        kernels_s = sum(floats.blocks_s.values()) + sum(floats.tensors_s.values()) + floats.orphans_s
        scale = self.float_s / kernels_s if kernels_s > 0.0 else 1.0
        forms = {form: self.profiles[form] for form in self.timed if form != FLOAT_RUN}
        low = forms.pop(BFLOAT16.name, floats)
        saved_s = {
            block: {form: scale * seconds for form, seconds in by_form.items()}
            for block, by_form in saved_by_block(floats, forms).items()
        }
        other_s = scale * sum(
            max(0.0, seconds - min((profile.tensors_s.get(tensor, 0.0) for profile in forms.values()), default=seconds))
            for tensor, seconds in floats.tensors_s.items()
        )
        # bfloat16 changes answers so little that its errors are not measured here: all of its savings count.
        gains_s = (seconds - low.blocks_s.get(block, 0.0) for block, seconds in floats.blocks_s.items())
        other_s += scale * sum(gain_s for gain_s in gains_s if gain_s > 0.0)
        return Room(saved_s, other_s, self.float_s - most_s)

    @property
    def int8(self) -> Measurement | None:
        """All candidate blocks in int8; None if that was not raced or does not run."""
        return next((row for row in self.rows if row.form == INT8_RUN and row.seconds is not None), None)


class FormRaces:
    """Races in one place after another. All have the same limit on the error."""

    def __init__(self, work: Work, wanted: Scheme | None, max_loss: float, metric: Metric, *, is_narrow: bool) -> None:
        self.scheme = scheme = wanted or (DEFAULT_SCHEME.narrow if is_narrow else DEFAULT_SCHEME)
        self._is_wanted = wanted is not None
        self.metric, self.max_loss = (metric, max_loss) if metric.smooth else (metric.basis, _STEPS_ERROR)
        try:
            self.work = work.settled(scheme) if work.graph.candidates() else work
        except TaglioError as error:
            blocks = {block.name: one_line(error, 200) for block in work.graph.candidates()}
            self.work = work.but(graph=work.graph.without_int8(blocks))
        forms = uncalibrated_forms(scheme.reduced_range)
        self.uncalibrated = forms if wanted is None else {name: forms[name] for name in wanted.uncalibrated}
        if wanted is None and (work.setup.portable or bfloat16_refusal()):
            del self.uncalibrated["bfloat16"]

    @cached_property
    def _reference(self) -> Reference:
        """The inputs that errors are measured on."""
        return self.work.quick_reference(self.work.effort)

    def race(self, float_there: Measurement) -> PlaceRace:
        """Float beside all blocks in each form, in the place of `float_there`."""
        place, base = float_there.runtime, float_there.error or 0.0
        work = self.work.in_place(place)
        forms = self._forms(place)
        models = {name: partial(work.builder(self.scheme).build, assignment) for name, assignment in forms.items()}
        others = self._other_schemes(place, forms)
        for scheme in others:
            assignment = pure_assignments(work.graph, precisions(scheme))[INT8_RUN]
            models[str(scheme)] = partial(work.builder(scheme).build, assignment)
        models = dict.fromkeys((FLOAT_RUN, FLOAT_AGAIN), partial(work.builder(self.scheme).build, {})) | models
        loss, start = loss_beside(work, self._reference, self.metric), time.perf_counter()
        raced = race(work, models, work.budget.race_s, loss=loss)
        # Kernels are timed in half as many rounds as whole models.
        opening_s = max(1e-3, (time.perf_counter() - start - 1.5 * work.budget.race_s) / len(models))
        float_s = raced.timed[FLOAT_RUN].wall.median_s  # the first model of a race is never refused
        left = left_for_int8(self.max_loss, base)

        def measured(name: str, row: Measurement) -> Measurement:
            timed = raced.timed.get(name)
            if timed is None or timed.loss is None:
                return replace(row, refused=raced.refused.get(name, ""))
            seconds = timed.wall.median_s
            score_s = expected_s(float_s, seconds, timed.loss, left)
            return replace(row, seconds=seconds, float_s=float_s, error=timed.loss, score_s=score_s)

        entered = {name: Measurement(place, name, blocks=len(assignment)) for name, assignment in forms.items()}
        if INT8_RUN in entered:
            entered[INT8_RUN] = int8 = replace(entered[INT8_RUN], scheme=str(self.scheme))
            entered |= {str(scheme): replace(int8, scheme=str(scheme)) for scheme in others}
        rows = [measured(name, row) for name, row in entered.items()]
        rows = [_judged(row, rows, self.work.budget.gain) for row in rows]
        scores_s = [row.score_s for row in rows if row.kept and row.score_s is not None]
        attribute = Attributor(self.work.model, self.work.graph).attribute
        profiles = {name: attribute(timed.optimized, timed.kernels) for name, timed in raced.timed.items()}
        ran_s = {name: row.seconds for name, row in zip(entered, rows, strict=True) if row.seconds is not None}
        timed = {
            name: (assignment, raced.timed[name])
            for name, assignment in {FLOAT_RUN: {}, **forms}.items()
            if name in raced.timed
        }
        # Places are compared by the race of all, since the machine's speed changes from race to race.
        drift = 1.0 if float_there.seconds is None else float_there.seconds / float_s
        return PlaceRace(
            place=place,
            float_s=drift * float_s,
            score_s=drift * min([float_s, *scores_s]),
            least_s=drift * min([_least_s(float_s, profiles, ran_s), *ran_s.values()]),
            rows=tuple(rows),
            timed=timed,
            profiles=profiles,
            opening_s=opening_s,
        )

    def profile(self, result: PlaceRace) -> Profile:
        """The profile of float and every form alone, from the race in a place."""
        work = self.work.in_place(result.place)
        forms = tuple(name for name in self.uncalibrated if name in result.timed)
        scheme = replace(self.scheme, uncalibrated=forms)
        return of_pure_forms(work.model, work.graph, scheme, work.stopwatch, result.timed)

    def _forms(self, place: str) -> dict[str, Assignment]:
        """The assignments to race in a place: all candidates in int8, and all blocks that have another form in it."""
        graph, forms = self.work.graph, dict[str, Assignment]()
        if graph.candidates():
            forms[INT8_RUN] = pure_assignments(graph, precisions(replace(self.scheme, uncalibrated=())))[INT8_RUN]
        others = {
            form.name: {block.name: form for block in blocks}
            for form in self.uncalibrated.values()
            if has_kernels(place, form) and (blocks := [block for block in graph.blocks if form.fits(block)])
        }
        if self.is_affordable(len(RACED) + len(others)):
            forms |= others
        return forms

    def unraced(self, places: Collection[str]) -> tuple[str, Scheme]:
        """The place, one of the usable `places`, and the scheme of a plan that is made without a race, for lack of
        time."""
        # OpenVINO compiles 5,000 operators in int8 for 25 s.
        is_large = self.work.within(self.work.budget.race_s).sessions < len(RACED)
        if "bfloat16" in self.uncalibrated and OPENVINO in places and not is_large:
            return OPENVINO, self.scheme if self._is_wanted else replace(self.scheme, uncalibrated=("bfloat16",))
        return NAME if NAME in places else next(iter(places)), self.scheme

    def is_affordable(self, variants: int) -> bool:
        """Whether there is time to race so many variants of the model."""
        return self.work.within(self.work.budget.race_s).models(_RUNS) >= variants

    def _other_schemes(self, place: str, forms: Mapping[str, Assignment]) -> list[Scheme]:
        """The schemes that are raced beside the default one and the `forms`; none if one is wanted."""
        has_kernels = place != NAME or "asimd" in instructions()
        if self._is_wanted or INT8_RUN not in forms or not has_kernels:
            return []
        is_affordable = self.is_affordable(len(RACED) + len(forms))
        return [_SIGNED.narrow if self.scheme.reduced_range else _SIGNED] if is_affordable else []


def _least_s(float_s: float, profiles: Mapping[str, Attribution], forms: Collection[str]) -> float:
    """A lower bound on the seconds of any mix of `forms`, from their kernels, where float takes `float_s`; 0 where the
    noise between two profiles of float is unknown."""
    if not {FLOAT_RUN, FLOAT_AGAIN} <= profiles.keys():
        return 0.0
    measured = [profiles[form] for form in forms if form in profiles]
    return float_s * least_share(profiles[FLOAT_RUN], profiles[FLOAT_AGAIN], measured)


def _judged(row: Measurement, rows: Sequence[Measurement], gain: float) -> Measurement:
    """A form, kept if it promises a faster plan, or in bfloat16 if it is faster, and no other form is both faster and
    more accurate; int8 is kept if it runs."""
    if row.seconds is None or row.error is None or row.score_s is None or row.float_s is None:
        return row
    if row.form == INT8_RUN:
        return replace(row, kept=True)
    others = [other for other in rows if other.seconds is not None and other.error is not None]
    is_beaten = any(
        (other.seconds or inf) < row.seconds and (other.error or 0.0) < row.error
        for other in others
        if other is not row
    )
    # A few blocks make most of the error of bfloat16, so the error of all says little of a mix.
    promised_s = row.seconds if row.form == BFLOAT16.name else row.score_s
    return replace(row, kept=promised_s <= (1.0 - gain) * row.float_s and not is_beaten)
