"""What each command prints, and the JSON objects that differ from the artifact. Arranges; computes nothing."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from taglio.cluster.planning.place import Answer
from taglio.cluster.planning.workload import Objective
from taglio.components.build import Manifest
from taglio.components.prove import Proof
from taglio.deploy.export import Export
from taglio.error.loss import RELATIVE, Metric, source_of
from taglio.error.model import ErrorModel
from taglio.errors import plural
from taglio.flow import workspace
from taglio.flow.outcome import Figures, Outcome, Quantized
from taglio.flow.promise import Checked, Verdict
from taglio.flow.result import Delivered
from taglio.notes import Note
from taglio.plan.result import Plan
from taglio.profile.busy import doubt
from taglio.report import answer, blocks, built, page, placement, predicted_error, predicted_time, remarks, ways
from taglio.report.console import say, show
from taglio.report.material import Material
from taglio.report.parts import Table
from taglio.report.units import ms, percent, shown, size
from taglio.run.in_process import StepsReport
from taglio.runtimes.way import Way
from taglio.search.front import Point
from taglio.ways.result import Figure, Rate


def outcome_object(folder: Path, outcome: Outcome) -> dict[str, Any]:
    """The JSON object of `taglio optimize --json`."""
    plan, metric = outcome.plan, outcome.metric
    return {
        "float32": _variant(outcome, outcome.float32, metric),
        "int8": _variant(outcome, outcome.int8, metric),
        "metric": {"name": metric.name, "bound": metric.value(outcome.max_error)},
        "also": [
            {"name": bound.metric.name, "bound": bound.metric.value(bound.max_error), "max_error": bound.max_error}
            for bound in outcome.also
        ],
        "plan": {
            **_variant(outcome, plan, metric),
            **_fields(plan, "predicted_latency_s", "predicted_error", "runtime", "int8_blocks", "bfloat16_blocks"),
            **_fields(outcome, "max_error", "status", "gap", "blocks"),
            "ratio": outcome.ratio(plan),
            "predicted_ratio_to_float": outcome.predicted_ratio(plan),
        },
        **_speedup(outcome),
        "rate": None if outcome.rate is None else _rate(outcome.rate),
        **_fields(outcome, "doubt", "scheme", "forms", "stage_seconds"),
        "places": [_point(point) for point in outcome.places],
        "front": [_on_front(outcome, point) for point in outcome.front],
        **_notes(outcome.notes),
        **_fields(outcome, "search_samples", "interrupted", "simplified"),
        "unseen": None if outcome.unseen is None else msgspec.to_builtins(outcome.unseen),
        "peak_memory_bytes": outcome.peak_memory_bytes,
        "artifacts": {
            "model": str(folder / workspace.COMPONENTS / "model.onnx"),
            "deploy": str(folder / workspace.DEPLOY),
            "plan": str(folder / f"{workspace.PLAN}.json"),
            "profile": str(folder / f"{workspace.PROFILE}.json"),
            "error_model": str(folder / f"{workspace.ERROR}.json"),
            "report": str(folder / workspace.REPORT),
        },
    }


def error_object(model: ErrorModel) -> dict[str, Any]:
    """The JSON object of `taglio error --json`."""
    return {**msgspec.to_builtins(model), **_notes(model.notes)}


def _notes(notes: Sequence[Note]) -> dict[str, list[str]]:
    """The texts of notes, and their kinds in the same order."""
    return {"notes": [note.text for note in notes], "note_kinds": [note.kind.value for note in notes]}


def _speedup(outcome: Outcome) -> dict[str, float | None]:
    """The confirmed speed-up; all null where float stays."""
    race = outcome.speedup
    if race is None:
        return {"speedup": None, "speedup_low": None, "speedup_high": None}
    return {"speedup": race.ratio, "speedup_low": race.low, "speedup_high": race.high}


def _rate(rate: Rate) -> dict[str, Any]:
    """The rate, each confirmed figure beside the ends of its interval."""
    confirmed = ("capacity_per_s", "over_one", "over_many", "rate_per_s")
    return {
        **{name: end for figure in confirmed for name, end in _ends(figure, getattr(rate, figure)).items()},
        **_fields(rate, "callers", "openings", "max_latency_s", "p95_s", "base_rate_per_s"),
        "way": _way(rate.way),
        **_fields(rate, "runtime", "model", "memory_bytes"),
        "loads": msgspec.to_builtins(rate.loads),
        "tried": [{**msgspec.to_builtins(tried), "way": _way(tried.way)} for tried in rate.tried],
        **_fields(rate, "alone", "left_out"),
    }


def _ends(name: str, figure: Figure | None) -> dict[str, float | None]:
    low, value, high = (None, None, None) if figure is None else (figure.low, figure.value, figure.high)
    return {name: value, f"{name}_low": low, f"{name}_high": high}


def _way(way: Way) -> dict[str, Any]:
    return _fields(way, "threads", "at_once", "joined", "spinning")


def _variant(outcome: Outcome, variant: Figures, metric: Metric) -> dict[str, Any]:
    """The JSON object of a variant. If it was in the race, its latency comes from there, to agree with the speed-up."""
    return {
        "value": metric.value(variant.error),
        "latency_s": answer.latency_s(outcome, variant) or variant.latency.median_s,
        "latency_p95_s": variant.latency.p95_s,
        **_fields(variant, "error", "error_upper", "worst_input", "size_bytes", "accuracy"),
        "parts": msgspec.to_builtins(variant.parts),
        "also": {other.metric.name: {"value": other.value, "error": other.loss} for other in variant.others},
    }


def _point(point: Point) -> dict[str, Any]:
    fields = _fields(point, "name", "runtime", "error", "judged", "holds", "reason")
    return {**fields, "latency_s": point.measured_s}


def _on_front(outcome: Outcome, point: Point) -> dict[str, Any]:
    """A point that another limit would bring; its speed-up is not confirmed."""
    return {
        **_point(point),
        "value": None if point.error is None else outcome.metric.value(point.error),
        "about_speedup": answer.about_speedup(outcome, point),
        "int8_blocks": point.int8_blocks,
        "limit": answer.limit_option(outcome.metric, point.error or 0.0),
    }


def _fields(value: object, *names: str) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}


def plan_object(plan: Plan) -> dict[str, Any]:
    """The JSON object of `taglio plan --json`: the plan, and its losses in the metric's own unit."""
    limits, guess = plan.limits, plan.predicted_error
    losses = {
        "predicted": guess.value,
        "at_worst": guess.high,
        "measured": plan.measured_error,
        "bound": limits.max_error,
    }
    values = {name: None if loss is None else limits.metric.value(loss) for name, loss in losses.items()}
    return {**msgspec.to_builtins(plan), "in_unit": {"metric": limits.metric.name, **values}}


def outcome(folder: Path, material: Material, *, verbose: bool = False) -> None:
    """Print the answer in one sentence, a small table, the most important remarks, and what was written; if `verbose`
    everything that the page has in words and tables."""
    result = material.outcome
    assert result is not None
    say(answer.sentence(result, str(folder / material.built_in)))
    if result.rate is not None:
        say(ways.line(result.rate))
    if verbose:
        page.show(material)
        if result.reused_errors:
            say(f"reused {plural(result.reused_errors, 'error')} of blocks from the previous run")
        say(f"took {sum(result.stage_seconds.values()):.0f} s, peak memory {size(result.peak_memory_bytes)}")
    else:
        show([*answer.tables(result), *ways.tried(material), *answer.front(result, shlex.quote(str(folder)))])
        for line in remarks.shortened(remarks.ranked(result), str(folder / workspace.REPORT)):
            say(f"- {line}")
    _say_source(result.metric)
    say(f"wrote {folder / workspace.COMPONENTS / 'model.onnx'} and {folder / workspace.REPORT}")


def _say_source(metric: Metric) -> None:
    if metric.own:
        say(f"{metric.name} was imported from {source_of(metric.name)}")


def profile(material: Material) -> None:
    """Print the blocks, and how well unseen runs were predicted."""
    result = material.profile
    show([*blocks.ranked(material), *predicted_time.unseen_runs(result)])
    say(f"scheme {result.scheme}; 9 of 10 times are expected within {percent(result.interval_ratio)} of the prediction")
    if line := doubt(result.conditions.others):
        say(f"Note: {line}")


def error(error_model: ErrorModel) -> None:
    """Print how well unseen subsets were predicted."""
    show([*predicted_error.prediction_quality(error_model), predicted_error.facts(error_model)])
    if error_model.metric.own:
        _say_source(error_model.metric)
        say(f"the float model has {error_model.metric.name} = {error_model.metric.text(0.0)}")


def plans(answer: Answer, names: Sequence[str], objective: Objective) -> None:
    """Print what runs where, what is sent, and predictions."""
    for name, plan in zip(names, answer.plans, strict=True):
        if len(names) > 1:
            say(f"{name}:")
        show(placement.decisions(plan, shared=len(names) > 1))
    loads = sorted(answer.loads().items(), key=lambda load: -load[1])
    if loads:
        loads = [load for load in loads if load[1] >= 1e-3] or loads[:1]
        rates = " + ".join(
            f"{workload.rate_per_s:.4g}" for workload in answer.assembled.workloads if workload.rate_per_s
        )
        say(f"{rates} requests/s: {', '.join(f'{on} busy {share:.1%} of the time' for on, share in loads)}")
    alone = "" if objective.simulated else " (sum of blocks and messages)"
    say(f"{objective}: {objective.amount(answer.value)}{alone}, proven within {answer.gap:.2%} of the optimum")


def build(folder: Path, manifest: Manifest, proof: Proof) -> None:
    """Print the component files and the proof."""
    show(built.components(manifest))
    how = "bit for bit" if proof.identical else f"within {proof.distance:.1e} (limit {proof.tolerance:.0e})"
    say(f"run one after another, components equal the whole quantised model {how} on {proof.samples} held-out samples")
    say(f"wrote {folder / workspace.COMPONENTS}")


def delivered(folder: Path, delivery: Delivered) -> None:
    """Print what runs without taglio and how far its answers are off, or why there is nothing."""
    proof = delivery.proof
    if proof is None:
        say(f"{folder / workspace.DEPLOY} was not written: {delivery.refusal}")
        return
    same = "identical to" if proof.distance == 0.0 else f"within {proof.distance:.0e} of"
    say(
        f"to deploy without taglio: {folder / workspace.DEPLOY}; run without taglio, its answers to "
        f"{plural(proof.samples, 'held-out input')} are {same} those measured here"
    )


def checked(result: Checked) -> None:
    """Print a row for each promise, and the verdict on all."""
    rows = [[row.name, row.then, row.now, row.verdict, row.detail] for row in result.promises]
    show([Table(["promise", "then", "now", "verdict", ""], rows, words=frozenset({1, 2, 3, 4}))])
    say(
        {
            Verdict.HOLDS: "every promise that could be judged holds",
            Verdict.BROKEN: "a promise is broken (exit code 5)",
            Verdict.UNKNOWN: "not every promise could be judged (exit code 6)",
        }[result.verdict]
    )


def exported(export: Export) -> None:
    """Print what was exported, what proves it, and what the server does otherwise."""
    if not export.models:
        say(f"wrote {export.folder}: a copy of {workspace.DEPLOY}/, every file checked by its hash")
        return
    say(
        f"wrote {export.folder}, {plural(len(export.models), 'model')} for {export.layout}; opened as the server opens "
        f"it, its answers to {plural(export.samples, 'input')} are {export.agreement} those delivered"
    )
    for model in export.models:
        for remark in model.remarks:
            say(f"{model.name}: {remark}")


def steps(session: StepsReport) -> None:
    """Print a session's steps beside the float model's."""
    show([built.timed({"float": session.float32, "plan": session.plan})])
    say(
        f"{session.rate_per_s:.4g} steps per second in {session.runtime}; per step: predicted "
        f"{ms(session.predicted_s)}, measured {ms(session.plan.steady_s)}"
    )
    say(
        f"relative L2 over all steps {percent(session.error)}, over the last tenth {percent(session.late_error)}; "
        f"states take {size(session.state_bytes)} at the end"
    )


def quantized(result: Quantized) -> None:
    """Print what was quantised and written."""
    how = f"{result.method} ({result.scheme})" if result.scheme else result.method
    say(
        f"{how}: {result.blocks} of {result.candidates} candidate blocks; {size(result.float_size_bytes)} "
        f"became {size(result.size_bytes)}; error {shown(RELATIVE, result.error)} on held-out inputs"
    )
    if len(result.parts) > 1 or any(part.lost for part in result.parts):
        say(f"error by part of the outputs: {predicted_error.by_part(result.parts, RELATIVE)}")
    for note in result.notes:
        say(f"Note: {note}")
    say(f"wrote {result.path}")
