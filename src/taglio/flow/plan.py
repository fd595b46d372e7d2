"""The plan stage: solve, measure errors, time, refine the tables, solve again; the clock chooses. Writes nothing."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from math import inf

from taglio.error.judge import fewest_samples
from taglio.error.loss import parse_metric
from taglio.error.measure import ErrorMeter
from taglio.error.model import ErrorModel
from taglio.errors import BadModel, BadOption, Infeasible, MeasurementFailed, TaglioError
from taglio.flow.answers import Answers, judging
from taglio.flow.as_built import AsBuilt, unsure
from taglio.flow.build import quantized
from taglio.flow.by_hand import place_by_hand
from taglio.flow.choose_place import studied
from taglio.flow.finalists import PLAIN, by_the_clock, fastest_of, finalists, finals, same_assignment
from taglio.flow.limits import Bounds, infeasible, limits_for
from taglio.flow.rules import by_rules
from taglio.flow.search import Tried, best, corrected, keeps_pins, key_of, predicted_by, search, unsolved
from taglio.flow.work import Work, affordable, require_own
from taglio.plan.result import Limits, Plan, placements
from taglio.profile.busy import doubt
from taglio.profile.measure import FLOAT_RUN, refine
from taglio.profile.result import Profile
from taglio.profile.sessions import sessions_within
from taglio.profile.stopwatch import Effort, Timed
from taglio.progress import Progress

# How often timings of plans refine the tables, and how many plans are measured: solved ones, from _FEWEST to _SOLVED,
# and those of rules that exclude block after block. Each is cut where it would take longer than _PATIENCE_S, and one
# measurement at _VERIFY_S, at effort 1; a smaller effort counts as _LEAST.
_ROUNDS = 2
_PATIENCE_S = 60.0
_SOLVED, _FEWEST, _SOLVED_AGAIN, _EXCLUDED = 10, 3, 6, 30
_VERIFY_SAMPLES, _VERIFY_S = 32, 8.0
_LEAST = 0.1


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """The plan, the finalists by name, their timings side by side, the winner, everything tried, and the profile and
    error model refined by the results.

    `answers` are those of the float model, all-int8 and the winner as deployed; the errors of the others come from the
    search, which measured them on `inputs` held-out inputs.
    """

    plan: Plan
    winner: str
    finalists: dict[str, Tried]
    timed: dict[str, Timed]
    answers: dict[str, Answers]
    tried: tuple[Tried, ...]
    profile: Profile
    error: ErrorModel
    inputs: int

    def ahead(self) -> float:
        """How many times as fast the float model is in the place of the profile as in the place where float is
        compared."""
        place = self.profile.conditions.runtime
        there = [name for name, each in self.finalists.items() if each.name == FLOAT_RUN and each.plan.runtime == place]
        seconds = [self.timed[name].wall.median_s for name in there if name in self.timed]
        return self.timed[FLOAT_RUN].wall.median_s / seconds[0] if seconds else 1.0

    def doubt(self) -> str | None:
        """A warning if the machine was busy while the profile or the finalists were timed."""
        last = max(each.others for each in self.timed.values())
        conditions = self.profile.conditions
        return doubt(max(last, conditions.others), conditions.reference_half_s)


def plan(
    work: Work,
    profile: Profile,
    error: ErrorModel,
    *,
    max_error: Bounds,
    keep_float: Sequence[str] = (),
    force_int8: Sequence[str] = (),
    pins: Sequence[str] = (),
    cuts: Sequence[str] = (),
    devices: Sequence[str] = (),
    effort: float = 1.0,
    progress: Progress | None = None,
) -> Plan:
    """The fastest plan whose error, measured on held-out inputs, is at most `max_error` (in the metric's unit; several
    limits are a dict by metric, such as {"relative-l2": 0.03, "ctc": 0.01}).

    The finalists are timed beside float and all-int8, as in `taglio.optimize`. `keep_float` and `force_int8` are name
    patterns of blocks; `pins` ("DEVICE=PATTERN"), or `cuts` (tensors) and `devices`, place blocks by hand. Raises
    Infeasible if no plan keeps the limit.

    >>> plan = taglio.plan(model, profile, error, max_error=0.02, effort=0.02)
    >>> plan.measured_error <= 0.02
    True
    """
    require_own(work, profile=profile, error=error)
    work = work.telling(progress).at(effort).settled(profile.scheme)
    limits = limits_for(work, max_error, keep_float, force_int8)
    devices_of = place_by_hand(work.graph, pins, cuts, devices)
    measured = {profile.conditions.runtime: profile}
    return decide(work, measured, error, limits, devices=devices_of).plan


@dataclass(frozen=True, slots=True, eq=False)
class Explored:
    """The result of planning in one place: the plans tried, with their errors in that place, the fastest by the clock,
    the profile refined around it and the error model corrected by the measurements."""

    tried: list[Tried]
    leader: Tried | None
    profile: Profile
    error: ErrorModel


def decide(
    work: Work,
    measured: Mapping[str, Profile],
    model: ErrorModel,
    limits: Limits,
    *,
    bases: Mapping[str, float] | None = None,
    devices: Mapping[str, str] | None = None,
) -> Decision:
    """Plan in each place that was `measured`, and let the clock choose among the finalists of all places.

    `bases` gives the error of the float model in each place where a model may be deployed; the first is where float is
    compared. Default: the measured places. `devices` are those of blocks that are placed by hand.
    """
    if limits.max_error is None:
        raise BadOption("`max_error` is missing: give the worst that is allowed, such as 0.01 for 1 %")
    bases = bases or dict.fromkeys(measured, 0.0)
    first = next(iter(measured.values()))
    work = work.settled(first.scheme).in_place(next(iter(bases)))
    meter, full = meters(work.in_place(studied(measured)), first, limits, model.samples)
    found: dict[str, Explored] = {}
    refusals: list[TaglioError] = []
    for place, profile in measured.items():
        try:
            found[place] = _explored(work.in_place(place), profile, model, limits, (meter, full), bases[place])
        except (Infeasible, BadModel, MeasurementFailed) as error:
            refusals.append(error)
    if not found:
        raise refusals[0]
    tried = [each for explored in found.values() for each in explored.tried]
    by_place = {place: finalists(each.tried, each.leader) for place, each in found.items()}
    most = sessions_within(_patience_s(work), work.model.proto)
    final, timed, winner, answered = finals(work, by_place, bases, limits, meter.samples, most)
    again_s = _FEWEST * len(work.data.held_out.samples) * meter.evaluation_s / meter.samples
    patient = winner is None or again_s <= _PATIENCE_S
    if meter.samples < len(work.data.held_out.samples) and patient and _none_but_plain(final, winner):
        place, best_there = next(iter(found.items()))
        expected = AsBuilt(limits, bases[place])
        again = _searched(work, best_there.profile, best_there.error, expected.within(), full())
        again = predicted_by(best_there.profile, best_there.error, work.graph, again)
        again = [expected.deployed(each) for each in again]
        by_place = {place: finalists(again, None)}
        final, timed, winner, answered = finals(work, by_place, bases, limits, full().samples, most)
        tried += again
    if winner is None:
        losses = [f"{part.name} {part.lost}" for each in answered.values() for part in each.parts if part.lost]
        raise infeasible(limits, min(each.error for each in final.values()), next(iter(losses), ""))
    final = {
        name: each if each.plan.runtime in found or name not in timed else by_the_clock(each, timed[name])
        for name, each in final.items()
    }
    place = final[winner].plan.runtime
    known = found[place if place in found else next(iter(found))]
    chosen = _chosen(work, final[winner], tried)
    return Decision(
        plan=replace(chosen, placements=placements(work.graph, chosen.assignment(), devices)),
        winner=winner,
        finalists=final,
        timed=timed,
        answers=answered,
        tried=tuple(tried),
        profile=known.profile,
        error=known.error,
        inputs=meter.samples,
    )


def _explored(
    work: Work,
    measured: Profile,
    model: ErrorModel,
    limits: Limits,
    meters: tuple[ErrorMeter, Callable[[], ErrorMeter]],
    base: float,
) -> Explored:
    """Plan, time the plans' kernels, refine the profile around the fastest, plan again; in the place of the set-up,
    where the float model has the error `base`.

    A plan's prediction depends on the layouts that its kernels use, and the random mixes of the profile are far from
    it. Plans by simple rules are timed too: where the tables are wrong, the clock shows it.
    """
    place, (meter, full) = AsBuilt(limits, base), meters
    study = model
    tried = _searched(work, measured, model, place.within(), meter, full)
    model = corrected(study, work.graph, tried, place.bound)
    known, leader = measured, None
    seen = set[object]()
    start = time.monotonic()
    for index in range(_ROUNDS):
        chosen = {
            name if name == FLOAT_RUN else f"finalist {name}": each for name, each in finalists(tried, leader).items()
        }
        keys = {key_of(each.plan.assignment()) for each in chosen.values()}
        if keys <= seen or time.monotonic() - start + len(chosen) * work.setup.run_s > _patience_s(work):
            break
        if len(chosen) > sessions_within(_patience_s(work), work.model.proto):
            break
        seen |= keys
        losses = dict[str, float]()
        asked = [name for name, each in chosen.items() if unsure(place.deployed(each), limits)]
        judge = judging(work, limits, meter.samples, asked, losses)
        models = {FLOAT_RUN: partial(work.builder(measured.scheme).build, {})}
        models |= {name: partial(quantized, work, each.plan) for name, each in chosen.items()}
        refused = dict[str, str]()
        timed = work.time(models, Effort(budget_s=6.0), kernels=True, refused=refused, opened=judge)
        if FLOAT_RUN in refused:
            raise BadModel(refused[FLOAT_RUN])
        failed = [each for name, each in chosen.items() if name in refused]
        tried = [each for each in tried if not any(same_assignment(each, other) for other in failed)]
        chosen = {name: each for name, each in chosen.items() if name in timed}
        for name, each in chosen.items():
            place.note(each, losses.get(name, 0.0))
        chosen = dict(zip(chosen, place.judged(work.graph, [*chosen.values()]), strict=True))
        # That few runs do not show that it is faster than float leaves it in the finals, which do.
        leader = chosen[fastest_of(chosen, timed)]
        place.follow(leader)
        runs = {name: (each.plan.assignment(), timed[name]) for name, each in chosen.items()}
        runs |= {FLOAT_RUN: ({}, timed[FLOAT_RUN])}
        known = refine(work.model, work.graph, known, runs, f" {index + 1}", near=leader.plan.assignment())
        inner, rounds = place.within(), min(_SOLVED_AGAIN, _solved(work, meter))
        tried = place.judged(work.graph, tried)
        tried += search(
            work.graph, known, model, inner, meter.error, rounds=rounds, effort=work.effort, progress=work.progress
        )
        model = corrected(study, work.graph, tried, place.bound)
        tried = predicted_by(known, model, work.graph, tried)

    def deployed(some: Sequence[Tried]) -> list[Tried]:
        return [place.deployed(each) for each in predicted_by(known, model, work.graph, some)]

    return Explored(deployed(tried), deployed([leader])[0] if leader else None, known, model)


def _none_but_plain(final: Mapping[str, Tried], winner: str | None) -> bool:
    """Whether only float or all-int8 is left although some plans were expected to hold."""
    plain = winner is None or final[winner].name in PLAIN
    others = [each.holds for each in final.values() if each.name not in PLAIN]
    return plain and bool(others) and not any(others)


def _chosen(work: Work, winner: Tried, tried: Sequence[Tried]) -> Plan:
    """The winner's plan with its measured results."""
    chosen = replace(winner.plan, measured_error=winner.error, shapes=work.measured_shapes)
    if not winner.name:
        return chosen
    there = [each for each in tried if not each.name and each.plan.runtime == chosen.runtime]
    # On a busy machine the savings at boundaries may add up to the whole time: that predicts nothing.
    solved = best([each for each in there if each.plan.predicted_latency_s.value > 0.0], 1)
    ahead = solved[0].plan.predicted_latency_s.value if solved else chosen.predicted_latency_s.value
    return replace(chosen, gap=max(0.0, chosen.predicted_latency_s.value / ahead - 1.0))


def _searched(
    work: Work,
    measured: Profile,
    model: ErrorModel,
    limits: Limits,
    meter: ErrorMeter,
    full: Callable[[], ErrorMeter] | None = None,
) -> list[Tried]:
    """Float, all-int8, plans by simple rules and by the search, each with its measured error.

    If nothing holds on `meter`, `full` decides. Raises Infeasible if nothing holds there either.
    """
    rounds = _solved(work, meter)
    tried = search(
        work.graph, measured, model, limits, meter.error, rounds=rounds, effort=work.effort, progress=work.progress
    )
    patient = _EXCLUDED * meter.evaluation_s <= _patience_s(work)
    for name, assignment in by_rules(work.graph, measured, model, limits, meter, excluding=patient).items():
        errors = meter.errors(assignment) if assignment else (0.0, 0.0)
        candidate = unsolved(name, work.graph, measured, model, limits, assignment, errors)
        tried.append(replace(candidate, holds=candidate.holds and keeps_pins(work.graph, limits, candidate.plan)))
    if not any(each.holds for each in tried):
        if full is not None and full() is not meter:
            return _searched(work, measured, model, limits, full())
        best = min(tried, key=lambda each: each.error)
        raise infeasible(limits, best.error, "" if best.error < inf else meter.tally(best.plan.assignment()).lost())
    return tried


def meters(
    work: Work, profile: Profile, limits: Limits, inputs: int = 0
) -> tuple[ErrorMeter, Callable[[], ErrorMeter]]:
    """Two meters of a plan's error: one for searching, on the first _VERIFY_SAMPLES held-out inputs, or as many
    `inputs` as were studied, or fewer if those take longer than _VERIFY_S, but as many as the metrics need; and what
    makes the one on all inputs (the same meter if those are all)."""
    work = work.settled(profile.scheme)
    switchable = work.switchable(profile.scheme)
    limit = inf if limits.max_error is None else limits.max_error
    fewest = max(map(fewest_samples, [parse_metric(work.setup.metric), *(each.metric for each in limits.also)]))
    verify_s = max(_LEAST, work.effort) * _VERIFY_S
    count = work.affordable(verify_s, max(_VERIFY_SAMPLES, inputs), fewest)
    first = work.meter(switchable, count, limits.also, limit)
    if first.evaluation_s > 2.0 * verify_s:  # reading the outputs takes long
        each_s = first.evaluation_s / first.samples
        first = work.meter(switchable, affordable(each_s, verify_s, first.samples, fewest), limits.also, limit)
    if first.samples == len(work.data.held_out.samples):
        return first, lambda: first
    return first, cache(lambda: work.meter(switchable, None, limits.also, limit))


def _patience_s(work: Work) -> float:
    return max(_LEAST, work.effort) * _PATIENCE_S


def _solved(work: Work, meter: ErrorMeter) -> int:
    """How many solved plans to measure with `meter`."""
    return affordable(meter.evaluation_s, _patience_s(work), _SOLVED, _FEWEST)
