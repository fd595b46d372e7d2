"""The finals: which plans are timed beside float and all-int8, in which places, in one run; the fastest that keeps the
limit wins.

A finalist is a plan in a place, its `Plan.runtime`, and is judged by its error as deployed there. Solves nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf, isfinite

import onnx

from taglio.error.runtime_part import together
from taglio.errors import BadData, BadModel, one_line, plural
from taglio.flow.answers import SOURCE_RUN, Answers, answers, judging
from taglio.flow.as_built import shifted, unsure
from taglio.flow.build import quantized
from taglio.flow.ledger import Measurement
from taglio.flow.outcome import InPlace
from taglio.flow.search import Tried, best, key_of
from taglio.flow.unseen import CANDIDATES, Rejected, rejection
from taglio.flow.work import Work
from taglio.plan.result import Interval, Limits
from taglio.profile.busy import faster
from taglio.profile.measure import FLOAT_RUN
from taglio.profile.stopwatch import Effort, Timed
from taglio.runtimes import cuda
from taglio.runtimes.onnxruntime import NAME

# The most solved plans that are timed beside float, all-int8 and the plans by simple rules.
FINALISTS = 3
# Medians closer than this factor do not show which is faster, even on an idle machine.
NOISE = 1.015
PLAIN = (FLOAT_RUN, "int8")
# At a smaller effort, only those finalists are timed that may win.
_ALL_EFFORT = 0.2
# Finalists beside float everywhere and all-int8 in the first place that are timed of any model, however large.
_OTHERS = 2


def same_assignment(one: Tried, other: Tried) -> bool:
    """Whether two plans are the same model in the same place."""
    same_place = one.plan.runtime == other.plan.runtime
    return same_place and key_of(one.plan.assignment()) == key_of(other.plan.assignment())


def finalists(tried: Sequence[Tried], leader: Tried | None) -> dict[str, Tried]:
    """The finalists of one place, by name: float, all-int8 and the fastest solved plans that keep the limit; and the
    `leader`, or all plans by simple rules if there is none."""
    kept = (*PLAIN, leader.name if leader else "")
    chosen = {each.name: each for each in tried if each.name and (leader is None or each.name in kept)}
    seen = {key_of(each.plan.assignment()) for each in chosen.values()}
    solved: dict[str, Tried] = {}
    first = [each for each in tried if leader and not leader.name and same_assignment(each, leader)][:1]
    for each in first + best([each for each in tried if not each.name], len(tried)):
        key = key_of(each.plan.assignment())
        if key not in seen and key and len(solved) < FINALISTS + len(first):
            seen.add(key)
            solved[f"plan {len(solved) + 1}"] = each
    return solved | chosen


@dataclass(frozen=True, slots=True, eq=False)
class Finals:
    """The finalists as judged, their times, the `winner` (None: none keeps the limit), the `answers` of those whose
    built models were run on all held-out inputs, and those that were `rejected` there, fastest first. `measured` is how
    many candidates were measured on unseen inputs."""

    finalists: dict[str, Tried]
    timed: dict[str, Timed]
    winner: str | None
    answers: dict[str, Answers]
    rejected: tuple[Rejected, ...] = ()
    measured: int = 0


def finals(
    work: Work,
    by_place: Mapping[str, Mapping[str, Tried]],
    bases: Mapping[str, float],
    limits: Limits,
    inputs: int,
    most: int,
    candidates: int = CANDIDATES,
) -> Finals:
    """The finals of all places (see `everywhere`). Errors that are not known yet are measured on the first `inputs`
    held-out inputs, and at most so many `candidates` on the unseen ones."""
    final = everywhere(by_place, bases, work.effort, most)
    timed = _timed(work, final, limits, inputs)
    return _proven(work, final, timed, limits, candidates)


def everywhere(
    by_place: Mapping[str, Mapping[str, Tried]], bases: Mapping[str, float], effort: float = 1.0, most: int = 100
) -> dict[str, Tried]:
    """The finalists of all places: for places that were planned in, their own; for the others float, all-int8 and the
    best plan of the first. Only float is tried with faster products on a GPU, where int8 has none. `bases` is the error
    of the float model in each place; finalists of the first place keep their names. At a small `effort` those that are
    not expected to keep the limit are left out, but for float and all-int8 in the first place; of more than
    `most` in all, those are left out that are expected to be the slowest, but for float, all-int8 and two others."""
    home = next(iter(by_place.values()))
    first = next(iter(bases))
    found: dict[str, Tried] = {}
    for place, base in bases.items():
        known = by_place.get(place)
        if known is None:
            plan = [name for name in home if name not in PLAIN][:1]
            # Where no plan is made because none can gain, all int8 gains nothing either: it only stands beside float.
            only_float = place in cuda.PLACES[1:] or (not plan and place != first)
            visiting = [FLOAT_RUN] if only_float else [*PLAIN, *plan]
            known = {name: moved(home[name], place, base) for name in visiting if name in home}
        suffix = "" if place == first else f", {place}"
        found |= {name + suffix: each for name, each in known.items()}
    found = {name: each for name, each in found.items() if each.holds or name in PLAIN or effort >= _ALL_EFFORT}
    kept = {name for name, each in found.items() if name in PLAIN or each.name == FLOAT_RUN}
    others = sorted(found.keys() - kept, key=lambda name: (found[name].plan.predicted_latency_s.value, name))
    kept |= {*others[: max(_OTHERS, most - len(kept))]}
    return {name: each for name, each in found.items() if name in kept}


def moved(each: Tried, place: str, base: float) -> Tried:
    """The same model in another place, where no table predicts its time and the float model has the error `base`. It
    holds if it is expected to keep the limit there, from its error in float32 arithmetic: what it has where it was
    planned may hardly be its own."""
    known = each.searched or each
    error = together(known.error, base)
    predicted = shifted(known.plan.predicted_error, base)
    plan = replace(
        each.plan, runtime=place, status="measured", gap=0.0, measured_error=error, predicted_error=predicted
    )
    limit = plan.limits.max_error
    holds = each.holds and (limit is None or error <= limit)
    return replace(each, error=error, holds=holds, plan=plan, built=False, searched=known)


def as_built(each: Tried, error: float, limits: Limits) -> Tried:
    """A plan with the `error` that was measured as built for its place, which is then the predicted one."""
    predicted = each.plan.predicted_error
    if 0.0 < error < inf and predicted.value > 0.0:
        predicted = predicted.times(error / predicted.value)
    loss = each.loss if error == inf else None
    plan = replace(each.plan, predicted_error=predicted)
    holds = each.holds and (limits.max_error is None or error <= limits.max_error)
    return _with_error(replace(each, plan=plan, built=True, loss=loss), error, holds=holds)


def _timed(work: Work, final: dict[str, Tried], limits: Limits, inputs: int) -> dict[str, Timed]:
    """The times of every finalist in its place, all in one interleaved run, with the float model in the first place as
    FLOAT_RUN, and a source that is not planned itself as SOURCE_RUN. A finalist that does not run there is marked in
    `final` as not holding; one whose error there is not known yet has that on the first `inputs` held-out inputs."""
    home = next(iter(final.values())).plan
    places = {FLOAT_RUN: home.runtime} | {name: each.plan.runtime for name, each in final.items()}
    refused, losses = dict[str, str](), dict[str, float]()
    asked = [name for name, each in final.items() if each.holds and unsure(each, limits)]
    models: dict[str, Callable[[], onnx.ModelProto]] = {FLOAT_RUN: partial(work.builder(home.scheme).build, {})}
    models |= {name: partial(quantized, work, each.plan) for name, each in final.items()}
    if (source := work.replaced) is not None:
        models[SOURCE_RUN], places[SOURCE_RUN] = lambda: source.proto, NAME
    timed = work.time(
        models,
        Effort(budget_s=work.budget.finals_s),
        places=places,
        refused=refused if len({*places.values()}) > 1 else None,
        opened=judging(work, limits, inputs, asked, losses),
    )
    for name, error in losses.items():
        final[name] = as_built(final[name], error, limits)
    for name in refused.keys() & final.keys():
        final[name] = replace(final[name], holds=False, refused=refused[name])
    return timed


def fastest_of(final: Mapping[str, Tried], timed: Mapping[str, Timed]) -> str:
    """The fastest by the clock among those that keep the limit."""
    holding = [name for name, each in final.items() if each.holds and name in timed]
    return min(holding, key=lambda name: timed[name].wall.median_s)


def winner_of(final: Mapping[str, Tried], timed: Mapping[str, Timed]) -> str:
    """The fastest that beat the float model of the first place in the rounds that ran both; that float model if none
    did. Float or all-int8 is preferred to a plan that gains only noise. A finalist that lost a round by chance does not
    rule out the next."""
    holding = {name: each for name, each in final.items() if each.holds and name in timed}
    while FLOAT_RUN in holding:
        chosen = _fastest_or_plain(holding, timed)
        is_plain = final[chosen].name in PLAIN
        # All-int8 of a model without candidates is the float model.
        if chosen == FLOAT_RUN or (is_plain and same_assignment(final[chosen], final[FLOAT_RUN])):
            return FLOAT_RUN
        if faster(timed[chosen].samples_s, timed[chosen].reference_s, 1.0 if is_plain else NOISE):
            return chosen
        del holding[chosen]
    return _fastest_or_plain(holding, timed)


def _fastest_or_plain(holding: Mapping[str, Tried], timed: Mapping[str, Timed]) -> str:
    """The fastest by the clock; float or all-int8 if it gains only noise on them."""
    most_s = NOISE * timed[fastest_of(holding, timed)].wall.median_s
    plain = {name: each for name, each in holding.items() if each.name in PLAIN and timed[name].wall.median_s <= most_s}
    return fastest_of(plain or holding, timed)


def _proven(work: Work, final: dict[str, Tried], timed: Mapping[str, Timed], limits: Limits, candidates: int) -> Finals:
    """The fastest finalist that is accepted as deployed, on all held-out inputs: see unseen.py.

    Finalists are taken fastest first. A finalist that breaks the limit on the inputs of the search is out, and does not
    count among the `candidates` for the unseen ones. When so many were rejected, only float is left.
    """
    answered: dict[str, Answers] = {}
    rejected: list[Rejected] = []
    measured = 0
    while True:
        holding = [name for name, each in final.items() if each.holds and name in timed]
        winner = winner_of(final, timed) if holding else None
        asked = [name for name in dict.fromkeys(("int8", winner)) if name in final and name not in answered]
        _answer(work, final, asked, answered, limits)
        for name in {*asked, FLOAT_RUN} & set(final) & set(answered):
            # Only the fastest is judged on unseen inputs: another that fails there would be out without being counted.
            holds = final[name].holds and answered[name].keeps(limits)
            final[name] = _with_error(final[name], answered[name].judged, holds=holds)
        if winner in answered:
            holds = final[winner].holds and answered[winner].accepted(limits)
            final[winner] = replace(final[winner], holds=holds)
        if winner is None:
            return Finals(final, dict(timed), winner, answered, tuple(rejected), measured)
        seen = winner in answered and answered[winner].unseen is not None and winner != FLOAT_RUN
        measured += seen and answered[winner].keeps(limits)
        if final[winner].holds:
            return Finals(final, dict(timed), winner, answered, tuple(rejected), measured)
        if seen and answered[winner].keeps(limits):
            speed_up = timed[FLOAT_RUN].wall.median_s / timed[winner].wall.median_s
            rejected.append(_rejected(answered[winner], speed_up, limits))
            if measured >= candidates:
                for name in final.keys() - {FLOAT_RUN}:
                    left_out = f"not measured on unseen inputs: {plural(measured, 'faster plan')} failed there"
                    final[name] = replace(final[name], holds=False, refused=final[name].refused or left_out)


def _rejected(answer: Answers, speed_up: float, limits: Limits) -> Rejected:
    assert limits.max_error is not None, "only a limit rejects"
    assert answer.unseen is not None, "only unseen inputs reject"
    unseen = answer.unseen if answer.unseen_error is None else max(answer.unseen_error, limits.max_error)
    unseen_or_none = unseen if answer.unseen > limits.max_error else None
    return rejection(speed_up, answer.error, unseen_or_none, answer.likely_end)


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
        elif final[asked[0]].plan.runtime == work.setup.options().runtime:
            raise
        else:
            final[asked[0]] = replace(final[asked[0]], holds=False, refused=one_line(error))


def by_the_clock(each: Tried, timed: Timed) -> Tried:
    """A finalist whose time no table predicts, with its measured time in place of the prediction."""
    seconds, coverage = timed.wall.median_s, each.plan.predicted_latency_s.coverage
    interval = Interval(seconds, seconds, seconds, coverage)
    return replace(each, plan=replace(each.plan, predicted_latency_s=interval))


def in_places(
    final: Mapping[str, Tried],
    timed: Mapping[str, Timed],
    answered: Mapping[str, Answers],
    results: Sequence[Measurement],
) -> tuple[InPlace, ...]:
    """The result of every finalist, and of every place that has none."""
    rows = []
    for name, each in final.items():
        judged = name in answered
        error = answered[name].error if judged else each.error if isfinite(each.error) else None
        reason = each.refused or ("an output would lose its information" if error is None else "")
        label = name.removesuffix(f", {each.plan.runtime}")
        took = timed[name].wall.median_s if name in timed else None
        rows.append(InPlace(label, each.plan.runtime, took, error, judged, each.holds, reason))
    rows.sort(key=lambda row: inf if row.latency_s is None else row.latency_s)
    entered = {row.runtime for row in rows}
    rows += [
        InPlace(FLOAT_RUN, place.variant.runtime, place.seconds, place.error, False, False, place.refused)
        for place in results
        if place.variant.runtime not in entered
    ]
    return tuple(rows)


def judged(each: Tried, answer: Answers, limits: Limits) -> Tried:
    """A finalist with its error as deployed, and whether it is accepted."""
    holds = each.holds and answer.accepted(limits)
    return _with_error(each, answer.judged, holds=holds)


def _with_error(each: Tried, error: float, *, holds: bool) -> Tried:
    return replace(each, error=error, holds=holds, plan=replace(each.plan, measured_error=error))
