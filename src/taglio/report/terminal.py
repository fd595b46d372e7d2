"""Terminal tables. Rounds and aligns; computes nothing."""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import exp
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from taglio.components.build import Manifest
from taglio.components.prove import Proof
from taglio.error.loss import RELATIVE, Metric, source_of
from taglio.error.model import ErrorModel
from taglio.error.tally import OtherLoss, PartLoss
from taglio.flow import workspace
from taglio.flow.outcome import InPlace, Outcome, Quantized, Variant
from taglio.flow.sensitivity import Sensitivity, ranks
from taglio.model.graph import Graph
from taglio.model.load import Model
from taglio.model.quantized import quantized_operators
from taglio.plan.result import Plan
from taglio.profile.layerwise import LayerTimes, predict_sum
from taglio.profile.measure import FLOAT_RUN
from taglio.profile.result import Profile
from taglio.run.in_process import RunReport
from taglio.run.steps import StepsReport

_SHOWN = 20
_PLACES = 12
# If the plan has less than this share of the candidates in int8, the costliest blocks are listed.
_FEW = 0.5
# Rows of `inspect`: rich takes 2 ms for each.
_ROWS = 1_000
# An interval is printed if it ends further above the error than this share of it.
_WIDE = 0.15


def say(text: str) -> None:
    """Print one line without formatting."""
    Console(highlight=False, soft_wrap=True).print(escape(text))


def summary(folder: Path, outcome: Outcome) -> dict[str, Any]:
    """The JSON object of `taglio optimize --json`."""
    plan, metric = outcome.plan, outcome.metric
    return {
        "float32": _variant(outcome.float32, metric),
        "int8": _variant(outcome.int8, metric),
        "metric": {"name": metric.name, "bound": metric.value(outcome.max_error)},
        "also": [
            {"name": each.metric.name, "bound": each.metric.value(each.max_error), "max_error": each.max_error}
            for each in outcome.also
        ],
        "plan": {
            **_variant(plan, metric),
            "predicted_latency_s": plan.predicted_latency_s,
            "predicted_error": plan.predicted_error,
            "max_error": outcome.max_error,
            "status": outcome.status,
            "gap": outcome.gap,
            "runtime": plan.runtime,
            "int8_blocks": plan.int8_blocks,
            "blocks": outcome.blocks,
        },
        "doubt": outcome.doubt,
        "scheme": outcome.scheme,
        "repairs": outcome.repairs,
        "forms": outcome.forms,
        "places": outcome.places,
        "curve": outcome.curve,
        "notes": outcome.notes,
        "stage_seconds": outcome.stage_seconds,
        "peak_memory_bytes": outcome.peak_memory_bytes,
        "artifacts": {
            "model": str(folder / workspace.COMPONENTS / "model.onnx"),
            "plan": str(folder / f"{workspace.PLAN}.json"),
            "profile": str(folder / f"{workspace.PROFILE}.json"),
            "error_model": str(folder / f"{workspace.ERROR}.json"),
            "report": str(folder / workspace.REPORT),
        },
    }


def outcome(folder: Path, result: Outcome) -> None:
    """Print float, all-int8 and the plan side by side, and the result in one sentence."""
    say(f"{result.model}: {result.blocks} blocks, {result.candidates} can be int8; scheme {result.scheme}")
    where = result.conditions
    say(f"on {where.machine}, {where.threads} threads, {where.runtime} {where.runtime_version}")
    if result.plan.runtime != where.runtime:
        say(f"the plan runs in {result.plan.runtime}")
    say(f"{result.calibration_samples} samples for calibration, {result.held_out_samples} held out for the error")
    for repair in result.repairs:
        before, after = (result.metric.basis.text(error, 3) for error in (repair.before, repair.error))
        told = f"all-int8 error {before} -> {after}, over subsets x {repair.factor:.2f}"
        say(f"repair {repair.repair}: {told}: {'kept' if repair.kept else 'left out'}")
    for form in result.forms:
        alone = f"{form.blocks} blocks in {form.precision}, {form.runtime}"
        if form.dropped:
            say(f"{alone}: {form.dropped}")
            continue
        error = result.metric.basis.text(form.error, 3)
        verdict = "planned with" if form.kept else "left out"
        say(f"{alone}: {form.float_s * 1e3:.2f} -> {form.latency_s * 1e3:.2f} ms, error {error}: {verdict}")
    if result.conditions.shapes:
        say(measured_at(result.conditions.shapes))
    metric = result.metric
    worst = {each.name: _worst(each, metric) for each in (result.float32, result.int8, result.plan)}
    parts = ("worst part",) if any(worst.values()) else ()
    scored = [result.accuracy_title] if result.float32.accuracy is not None else []
    also = [each.metric for each in result.also]
    columns = [metric.title, *parts, "predicted", *scored, *(each.name for each in also), "size", "int8 blocks"]
    table = _table("", "latency", "predicted", *columns)
    for each in (result.float32, result.int8, result.plan):
        table.add_row(
            each.name,
            _ms(each.latency.median_s),
            _ms(each.predicted_latency_s) if result.predicted(each) else "",
            metric.text(each.error, 3),
            *(escape(worst[each.name]) for _ in parts),
            metric.text(each.predicted_error, 3),
            *([] if each.accuracy is None else [result.accuracy_text(each.accuracy)]),
            *(_other(other) for other in each.others),
            _bytes(each.size_bytes),
            str(each.int8_blocks),
        )
    _print(table)
    places(result)
    if metric.own:
        say(f"{metric.name} was imported from {source_of(metric.name)}")
    gain = result.float32.latency.median_s / result.plan.latency.median_s
    against = result.int8.latency.median_s / result.plan.latency.median_s
    held = "is within the limit" if result.int8.holds(result.max_error) else "exceeds the limit"
    beside = f" in {result.float32.runtime}" if result.places else ""
    if result.candidates:
        say(
            f"The plan is {gain:.2f} x as fast as float{beside} and {against:.2f} x as fast as all-int8, which {held}; "
            f"its {metric.title} is {metric.text(result.plan.error, 3)}{_interval(result.plan, metric)}, "
            f"limit {metric.text(result.max_error, 3)} ({result.status}, gap {result.gap:.2%})."
        )
    else:
        say(
            f"None of the {result.blocks} blocks can be int8 (taglio inspect says why): "
            f"the result is the float model in {result.plan.runtime}, {gain:.2f} x as fast as float{beside}; "
            f"its {metric.title} is {metric.text(result.plan.error, 3)}, limit {metric.text(result.max_error, 3)}."
        )
    for bound, other in zip(result.also, result.plan.others, strict=False):
        title = bound.metric.title
        say(f"its {title} is {other.metric.text(other.loss, 3)}, limit {bound.metric.text(bound.max_error, 3)}")
    if parts and result.plan.int8_blocks:
        _say_parts("the plan", result.plan.parts, metric)
    curve(result)
    for note in (*([result.doubt] if result.doubt else []), *result.notes):
        say(f"note: {note}")
    say(f"took {sum(result.stage_seconds.values()):.0f} s, peak memory {_bytes(result.peak_memory_bytes)}")
    say(f"wrote {folder / workspace.COMPONENTS / 'model.onnx'} and {folder / workspace.REPORT}")


def places(result: Outcome) -> None:
    """Print the timings in each place of this machine, fastest first, and which places are out and why."""
    if not result.places:
        return
    metric = result.metric
    same = () if result.candidates else ("int8",)  # the float model once more
    rows = [each for each in result.places if each.latency_s is not None and each.name not in same]
    if len({each.runtime for each in rows}) > 1:
        table = _table("model", "runtime", "latency", metric.title, "")
        for each in rows[:_PLACES]:
            about = "" if each.judged or each.error is None else "about "
            error = "" if each.error is None else about + metric.text(each.error, 2)
            table.add_row(each.name, each.runtime, _ms(each.latency_s or 0.0), error, escape(_verdict(each)))
        _print(table)
    out: dict[str, list[str]] = {}
    for each in result.places:
        if each.latency_s is None:
            where = each.runtime if each.name == FLOAT_RUN else f"{each.name} in {each.runtime}"
            out.setdefault(each.reason, []).append(where)
    for reason, wheres in out.items():
        say(f"{', '.join(wheres)}: {reason}")


def curve(result: Outcome) -> None:
    """Print what larger limits are predicted to give, and, if few blocks are in int8, which cost the most error."""
    metric = result.metric
    if result.curve:
        told = ", ".join(f"{each.speed_up:.2f} x at {metric.text(each.max_error, 1)}" for each in result.curve)
        say(f"A larger limit is predicted to give {told}.")
    if result.costly and result.plan.int8_blocks < _FEW * result.candidates:
        basis = metric.basis
        told = ", ".join(f"{each.block} {basis.text(each.error, 2)}" for each in result.costly)
        say(f"Most error comes from {told} (each alone in int8).")


def _verdict(each: InPlace) -> str:
    return each.reason or ("" if each.holds else "exceeds the limit")


def measured_at(shapes: Sequence[Mapping[str, Sequence[int]]]) -> str:
    """The line naming the shapes of the timings, if a model has dynamic dimensions."""
    told = Counter(
        ", ".join(f"{name} {'x'.join(map(str, shape)) or 'scalar'}" for name, shape in each.items()) for each in shapes
    )
    if len(told) == 1:
        return f"times are for {next(iter(told))}; dimensions stay dynamic in the built model"
    each = "; ".join(f"{count} of {len(shapes)}: {text}" for text, count in told.items())
    return f"times are means over shapes as they occur ({each}); dimensions stay dynamic in the built model"


def _worst(variant: Variant, metric: Metric) -> str:
    """The part with the largest error; "" if there is only one, no error, or one metric for all parts together."""
    if len(variant.parts) < 2 or variant.error == 0.0 or not metric.smooth:
        return ""
    return max(variant.parts, key=lambda each: each.loss).name


def _interval(variant: Variant, metric: Metric) -> str:
    """The interval of the error on other inputs, if it is wide."""
    if variant.interval is None or variant.interval[1] <= variant.error * (1.0 + _WIDE):
        return ""
    low, high = (metric.text(each, 2) for each in variant.interval)
    return f" (90 % interval {low} to {high})"


def _say_parts(what: str, parts: Sequence[PartLoss], metric: Metric) -> None:
    """Print the error of every part, worst first."""
    ordered = sorted(parts, key=lambda each: -each.loss)
    told = ", ".join(f"{each.name} {metric.text(each.loss, 2)}{each.lost and f' ({each.lost})'}" for each in ordered)
    say(f"{what} by part of the outputs: {told}")


def inspect(model: Model, graph: Graph, shown: set[str] | None, assumed: str = "") -> None:
    """Print one row per block, and the sizes `assumed` for dynamic dimensions."""
    tensors = graph.tensor_map()
    table = _table("block", "operators", "MFLOPs", "weights", "in int8", "output", "in int8", "int8?")
    chosen = [block for block in graph.blocks if shown is None or block.name in shown]
    for block in chosen[:_ROWS]:
        outputs = [tensors[name] for name in block.outputs]
        table.add_row(
            escape(block.name),
            block.kind,
            f"{block.flops / 1e6:.2f}",
            _bytes(block.weight_float_bytes),
            _bytes(block.weight_int8_bytes),
            _bytes(sum(tensor.float_bytes for tensor in outputs)),
            _bytes(sum(tensor.int8_bytes for tensor in outputs)),
            "yes" if block.quantizable else f"no: {block.refusal}",
        )
    _print(table)
    if len(chosen) > _ROWS:
        say(f"and {len(chosen) - _ROWS:,} more blocks: select with --blocks, or list all with --json")
    flops = sum(block.flops for block in graph.blocks)
    weights = sum(block.weight_float_bytes for block in graph.blocks)
    say(
        f"{model.name}: {len(graph.blocks)} blocks, {len(graph.candidates())} can be int8, {flops / 1e9:.3f} GFLOPs, "
        f"{_bytes(weights)} of weights, opset {model.opset}"
    )
    if counts := quantized_operators(model.proto):
        told = ", ".join(f"{count} {kind}" for kind, count in counts.items())
        say(f"already quantised: {told}; kept as they are (--requantize converts them to float)")
    for spec in model.inputs:
        known = spec.shape is not None
        dims = "x".join("?" if dim is None else str(dim) for dim in spec.shape or ()) if known else "of any shape"
        say(f"input  {spec.name} {dims} {spec.dtype}")
    for name in model.outputs:
        shape = tensors[name].shape
        say(f"output {name} {'?' if shape is None else 'x'.join(map(str, shape))} {tensors[name].dtype}")
    if assumed:
        say(assumed)


def profile(graph: Graph, result: Profile, layers: LayerTimes | None = None) -> None:
    """Print the slowest blocks, how well unseen runs were predicted, and the sum of layers timed alone."""
    times = result.block_times()
    kinds = {block.name: block.kind for block in graph.blocks}
    table = _table("block", "operators", "float32", "int8", "speed-up")
    ordered = sorted({block for block, _ in times}, key=lambda name: -times.get((name, "float32"), 0.0))
    for name in ordered[:_SHOWN]:
        float_s, int8_s = times.get((name, "float32"), 0.0), times.get((name, "int8"))
        ratio = "" if not int8_s else f"{float_s / int8_s:.2f}"
        table.add_row(escape(name), kinds[name], _ms(float_s), "" if int8_s is None else _ms(int8_s), ratio)
    _print(table)
    runs = _table("whole model", "measured", "cross-validated", "ratio")
    for run in result.runs:
        unseen = run.predicted_s / run.wall.median_s
        runs.add_row(
            run.name,
            _ms(run.wall.median_s),
            _ms(run.predicted_s) if run.mixed else "",
            f"{unseen:.3f}" if run.mixed else "",
        )
    _print(runs)
    if layers is not None:
        sums = _table("sum of single layers", "measured whole", "sum", "ratio")
        for run in result.runs:
            assignment = {block: result.precision(name) for block, name in run.assignment.items()}
            total = predict_sum(layers, graph, assignment)
            sums.add_row(run.name, _ms(run.wall.median_s), _ms(total), f"{total / run.wall.median_s:.3f}")
        _print(sums)
        say(f"layers cut {layers.cut} of QuantizeLinear, {layers.runs} runs each, {layers.wall_s:.1f} s in total")
    say(f"scheme {result.scheme}; 9 of 10 times are expected within {result.interval_ratio:.1%} of the prediction")
    doubt = result.conditions.doubt()
    if doubt:
        say(f"note: {doubt}")


def error(graph: Graph, result: ErrorModel) -> None:
    """Print the blocks with the largest error alone, and how well unseen subsets were predicted."""
    kinds = {block.name: block.kind for block in graph.blocks}
    metric, alone = result.metric, result.metric.basis
    table = _table("block alone in int8", "operators", _alone_title(metric))
    worst = sorted((each for each in result.alone if each.precision == "int8"), key=lambda each: -each.error)
    for each in worst[:_SHOWN]:
        table.add_row(escape(each.block), kinds[each.block], alone.text(each.error))
    _print(table)
    if metric.smooth:
        middle = f"{result.typical_miss():.1%}"
        sure = f"errors are at most {exp(result.upper_log):.2f} x the prediction"
    else:
        middle = metric.difference(result.typical_miss())
        sure = f"losses are at most {metric.difference(result.upper_add)} worse than predicted"
    say(
        f"{metric.name}: {result.evaluations} evaluations on {result.samples} samples; unseen subsets predicted "
        f"within {middle} (median); {result.confidence:.0%} of {sure}"
    )
    if metric.own:
        say(f"{metric.name} was imported from {source_of(metric.name)}")
        say(f"the float model has {metric.name} = {metric.text(0.0)}")
    if (len(result.parts) > 1 and metric.smooth) or any(each.lost for each in result.parts):
        _say_parts("all in int8", result.parts, metric)
    for note in result.notes:
        say(f"note: {note}")


def sensitivity(rows: Sequence[Sensitivity], result: ErrorModel, by: str) -> None:
    """Print blocks by damage, time saved or time saved per damage, and which to leave out."""
    alone = result.metric.basis
    scale = alone.axis[1]
    order, per = ranks(rows), "us per 1 %" if scale == 100.0 else "us per unit"
    table = _table("block", _alone_title(result.metric), "rank", "saved us", "rank", per, "rank", "in int8")
    for row in sorted(rows, key=lambda each: order[by][each.block]):
        worth = row.saved_per_damage_s
        table.add_row(
            escape(row.block),
            "" if row.damage is None else alone.text(row.damage),
            str(order["damage"][row.block]),
            f"{row.saved_s * 1e6:.1f}",
            str(order["saved"][row.block]),
            "" if worth is None else f"{worth * 1e6 / scale:.1f}",
            str(order["worth"][row.block]),
            "leave out" if row.leave_out else "yes",
        )
    _print(table)
    out = sorted((row for row in rows if row.leave_out), key=lambda each: -each.noise_share)
    say(f"leave out {len(out)} of {len(rows)} blocks" + (":" if out else "; none is out of proportion"))
    for row in out:
        say(f"  {row.block}: {row.leave_out}")


def _alone_title(metric: Metric) -> str:
    return metric.title if metric.smooth else "relative L2"


def plan(result: Plan) -> None:
    """Print the plan's decisions and its predicted latency and error."""
    counts: dict[tuple[str, str], int] = {}
    for each in result.placements:
        counts[each.device, each.precision] = counts.get((each.device, each.precision), 0) + 1
    table = _table("device", "precision", "blocks")
    for (device, precision), count in sorted(counts.items()):
        table.add_row(device, precision, str(count))
    _print(table)
    latency = result.predicted_latency_s
    between = f"{_ms(latency.low)} … {_ms(latency.high)}"
    say(f"{result.status}, gap {result.gap:.2%}; latency {_ms(latency.value)} ({between})")
    say(error_line(result))
    if result.shapes:
        say(measured_at(result.shapes))


def error_line(result: Plan) -> str:
    """A plan's error in the metric's unit: predicted, measured, limit."""
    metric, guess = result.limits.metric, result.predicted_error
    measured = "" if result.measured_error is None else f", measured {metric.text(result.measured_error)}"
    bound = "" if result.limits.max_error is None else f", limit {metric.text(result.limits.max_error)}"
    for each in result.limits.also:
        bound += f"; {each.metric.title} within the limit {each.metric.text(each.max_error)}"
    return f"{metric.title} predicted {metric.text(guess.value)} (upper end {metric.text(guess.high)}){measured}{bound}"


def plan_object(result: Plan) -> dict[str, Any]:
    """The JSON object of `taglio plan --json`: the plan, and its losses in the metric's own unit."""
    limits, guess = result.limits, result.predicted_error
    losses = {"predicted": guess.value, "at_worst": guess.high, "measured": result.measured_error}
    known = {**losses, "bound": limits.max_error}
    values = {name: None if loss is None else limits.metric.value(loss) for name, loss in known.items()}
    return {**msgspec.to_builtins(result), "in_unit": {"metric": limits.metric.name, **values}}


def sensitivity_object(rows: Sequence[Sensitivity], result: ErrorModel) -> dict[str, Any]:
    """The JSON object of `taglio sensitivity --json`; `damage` is a loss, `value` the same in its metric's unit."""
    basis = result.metric.basis
    listed = [
        {**msgspec.to_builtins(row), "value": None if row.damage is None else basis.value(row.damage)} for row in rows
    ]
    return {"metric": basis.name, "sensitivity": listed}


def build(folder: Path, manifest: Manifest, proof: Proof) -> None:
    """Print the component files and the tensors between them."""
    table = _table("component", "device", "file", "size", "blocks", "reads", "bytes")
    for piece in manifest.pieces:
        reads = ", ".join(f"{port.name} ({port.dtype})" for port in piece.inputs)
        moved = sum(port.bytes for port in piece.inputs)
        table.add_row(
            piece.name,
            piece.device,
            piece.file,
            _bytes(piece.size_bytes),
            str(len(piece.blocks)),
            escape(reads),
            _bytes(moved),
        )
    _print(table)
    how = "bit for bit" if proof.identical else f"within {proof.distance:.1e} (limit {proof.tolerance:.0e})"
    say(f"run one after another, components equal the whole quantised model {how} on {proof.samples} held-out samples")
    say(f"wrote {folder / workspace.COMPONENTS}")


def run(result: RunReport) -> None:
    """Print predicted beside measured."""
    table = _table("", "median", "mean", "p95", "runs")
    for name, wall in (
        ("float32", result.float32),
        ("plan", result.plan),
        *((f"  {c.component}", c.wall) for c in result.components),
    ):
        table.add_row(name, _ms(wall.median_s), _ms(wall.mean_s), _ms(wall.p95_s), str(wall.runs))
    _print(table)
    elsewhere = "" if result.runtime == result.profiled_in else f" for {result.profiled_in}, run by {result.runtime}"
    if result.here:
        elsewhere = " for one process on this machine, without the cluster's devices and links"
    say(
        f"predicted {_ms(result.predicted_s)}{elsewhere}, "
        f"measured {_ms(result.plan.steady_s)}, ratio {result.ratio:.3f}; "
        f"{result.steady_ratio:.3f} corrected for the machine's drift of {result.drift - 1.0:+.1%}"
    )


def steps(result: StepsReport) -> None:
    """Print a session's steps beside the float model's."""
    table = _table("", "median", "mean", "p95", "steps")
    for name, wall in (("float32", result.float32), ("plan", result.plan)):
        table.add_row(name, _ms(wall.median_s), _ms(wall.mean_s), _ms(wall.p95_s), str(wall.runs))
    _print(table)
    say(
        f"{result.rate_per_s:.4g} steps per second in {result.runtime}; per step: predicted {_ms(result.predicted_s)}, "
        f"measured {_ms(result.plan.steady_s)}"
    )
    say(
        f"relative L2 over all steps {result.error:.3%}, over the last tenth {result.late_error:.3%}; "
        f"states take {_bytes(result.state_bytes)} at the end"
    )


def quantized(result: Quantized) -> None:
    """Print what was quantised and written."""
    say(
        f"{result.method}: {result.blocks} of {result.candidates} candidate blocks; {_bytes(result.float_size_bytes)} "
        f"became {_bytes(result.size_bytes)}; error {result.error:.4%} on held-out inputs"
    )
    if len(result.parts) > 1 or any(each.lost for each in result.parts):
        _say_parts("error", result.parts, RELATIVE)
    for note in result.notes:
        say(f"note: {note}")
    say(f"wrote {result.path}")


def _variant(each: Variant, metric: Metric) -> dict[str, Any]:
    return {
        "value": metric.value(each.error),
        "latency_s": each.latency.median_s,
        "latency_p95_s": each.latency.p95_s,
        "error": each.error,
        "size_bytes": each.size_bytes,
        "accuracy": each.accuracy,
        "parts": msgspec.to_builtins(each.parts),
        "interval": each.interval,
        "also": {other.metric.name: {"value": other.value, "error": other.loss} for other in each.others},
    }


def _other(other: OtherLoss) -> str:
    """Another limited metric: its value if there are labels, else its loss."""
    return other.metric.told(other.value) if other.metric.labelled else other.metric.text(other.loss, 3)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, name in enumerate(columns):
        text = name in ("operators", "int8?", "file", "reads", "device", "precision")
        table.add_column(name, justify="left" if index == 0 or text else "right", overflow="fold")
    return table


def _print(table: Table) -> None:
    Console(highlight=False).print(table)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-4 else f"{seconds * 1e6:.1f} us"


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"
