"""Build a finished workspace for another limit: plan again from its tables, and end as `optimize` does.

The tables are those of one place. A plan that was faster in the runs before, in any place, takes part in the race.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from pathlib import Path

from taglio.error.loss import Bound, parse_metric
from taglio.errors import BadArtifact, BadOption
from taglio.flow import notes, workspace
from taglio.flow.clock import Clock
from taglio.flow.confirm import confirmed
from taglio.flow.error import error_of_workspace
from taglio.flow.outcome import Outcome
from taglio.flow.outcome_of import outcome_of
from taglio.flow.result import Result, result_of
from taglio.flow.workspace import OUTCOME
from taglio.lab.build import assemble
from taglio.plan.result import Interval, Limits, Plan, placements
from taglio.plan.tables import Tables
from taglio.profile.measure import FLOAT_RUN
from taglio.progress import Progress
from taglio.quantize.precision import precisions
from taglio.search.decide import Decision, decide, float_stays
from taglio.search.ledger import Entry, Measurement, Places
from taglio.search.limits import UserLimit
from taglio.search.search import keeps_pins

# A user waits for half a minute in all.
_EFFORT = 0.5


def for_another_limit(folder: Path, wanted: Sequence[UserLimit], progress: Progress | None = None) -> Result:
    """The result for the limits that are `wanted`, from the workspace `folder`; other limits of its run stay.

    Raises BadArtifact for a workspace that `optimize` did not write, BadOption for a limit that it has no measurements
    for, and Infeasible if no plan keeps the limits.
    """
    clock = Clock(_EFFORT, inf)
    before = _outcome_in(folder)
    work, profile = workspace.reopen_profiled(folder)
    scheme, place, places = work.setup.scheme, profile.conditions.runtime, _places(before)
    limits = _relimited(workspace.read_plan(folder, work, profile).limits, wanted)
    assert limits.max_error is not None, "a plan of an outcome keeps a limit"
    work = work.telling(progress).at(_EFFORT)
    clock.lap("load")
    if places.errors[place] >= limits.max_error:
        decision = float_stays(work, profile, before.int8.error, limits, places)
    else:
        error = error_of_workspace(folder, work, profile)
        clock.lap("error")
        decision = decide(work, {place: profile}, error, limits, places=places)
    work, tables = work.in_place(before.float32.runtime), decision.tables(work)
    clock.lap("plan")
    ended = confirmed(work, decision, clock.patience(), _faster_before(tables, before, decision))
    decision = ended.decision
    clock.lap("confirm")
    built = assemble(work, decision.plan)
    clock.lap("build")
    outcome = replace(
        _with_search(outcome_of(ended, built), before),
        stage_seconds=dict(clock.laps),
        notes=(*ended.notes, *notes.of_plan(work, decision), *before.search_notes),
    )
    return result_of(work, scheme, tables, decision.plan, built, outcome)


def _outcome_in(folder: Path) -> Outcome:
    outcome = workspace.load_if_present(folder, OUTCOME, Outcome)
    if outcome is None:
        raise BadArtifact(
            f"{folder / OUTCOME}.json: is missing, and a new limit needs what taglio optimize measured: run optimize, "
            "or taglio plan with this limit and then taglio build without one"
        )
    if outcome.rate is not None:
        raise BadOption("this plan was chosen for a rate, not for latency: run taglio optimize with the new limit")
    return outcome


def _relimited(limits: Limits, wanted: Sequence[UserLimit]) -> Limits:
    """`limits` with the values that are `wanted`, as losses. Raises BadOption for a metric that was not limited."""
    for limit in wanted:
        name = parse_metric(limit.metric).name if limit.metric else limits.metric.name
        metrics = {metric.name: metric for metric in (limits.metric, *(bound.metric for bound in limits.also))}
        if name not in metrics:
            raise BadOption(
                f"`{limit.argument}` limits {name}, which was not measured: limit {' or '.join(metrics)}, or run "
                "taglio optimize again"
            )
        most = metrics[name].bound(limit.argument, limit.value)
        if name == limits.metric.name:
            limits = replace(limits, max_error=most)
        also = tuple(Bound(bound.metric, most) if bound.metric.name == name else bound for bound in limits.also)
        limits = replace(limits, also=also)
    return limits


def _places(before: Outcome) -> Places:
    """The float model in the places of a run, the one in which plans were compared with it first."""
    points = [point for point in before.points if point.name == FLOAT_RUN and not point.reason]
    points.sort(key=lambda point: point.runtime != before.float32.runtime)
    rows = tuple(Measurement(point.runtime, FLOAT_RUN, error=point.error) for point in points)
    return Places(rows, {point.runtime: point.latency for point in points if point.latency is not None})


def _faster_before(tables: Tables, before: Outcome, decision: Decision) -> list[Entry]:
    """The fastest plan that was timed before and keeps the limits, if it was faster than the decision."""
    limits, scheme = decision.plan.limits, tables.profile.scheme
    # Those of all places: a plan of another place may have forms without kernels in this one.
    forms = {form.name: form for form in precisions(scheme)}
    timed = {(entry.runtime, entry.forms) for entry in decision.ledger.raced}
    entries = list[Entry]()
    for point in before.points:
        seconds, error = point.measured_s, point.error
        if not point.forms or seconds is None or error is None:
            continue
        error_then, assignment = (
            Interval(0.0, error, error),
            {block: forms[form] for block, form in point.forms.items()},
        )
        if point.runtime == tables.profile.conditions.runtime:
            plan = replace(tables.describe(limits, assignment), predicted_error=error_then)
        else:  # no table predicts it
            plan = Plan(
                model_sha256=tables.profile.model_sha256,
                scheme=scheme,
                precisions=precisions(scheme, point.runtime),
                limits=limits,
                placements=placements(tables.graph, assignment),
                status="measured",
                gap=0.0,
                predicted_latency_s=Interval(seconds, seconds, seconds),
                predicted_error=error_then,
                runtime=point.runtime,
            )
        plan = replace(plan, measured_error=error)
        holds = error <= limits.allowed_error and keeps_pins(tables.graph, limits, plan)
        name = f"earlier {point.name.removeprefix('earlier ')}"
        entries.append(Entry(plan, error, holds, name, loss=error, wall=point.latency))
    new = [entry for entry in entries if (entry.runtime, entry.forms) not in timed]
    faster = [entry for entry in new if entry.holds and entry.measured_s < decision.winner.measured_s]
    return sorted(faster, key=lambda entry: entry.measured_s)[:1]


def _with_search(outcome: Outcome, before: Outcome) -> Outcome:
    """An outcome with what the search found that `before` is from: the places that are out, notes, forms."""
    names = {(point.name, point.runtime) for point in outcome.points}
    others = tuple(point for point in before.points if (point.name, point.runtime) not in names)
    return replace(
        outcome,
        points=outcome.points + others,
        search_notes=before.search_notes,
        forms=before.forms,
        doubt=outcome.doubt or before.doubt,
    )
