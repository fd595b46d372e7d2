"""The top of the page: the result in one sentence, and float, all-int8 and the plan side by side."""

from dataclasses import dataclass

from taglio.error.loss import Metric
from taglio.errors import plural
from taglio.flow.outcome import STEADY, Outcome, Variant
from taglio.flow.workspace import OUTCOME
from taglio.profile.measure import FLOAT_RUN
from taglio.profile.result import predict
from taglio.profile.wall_time import WallTime
from taglio.report import answer, remarks, ways
from taglio.report.material import Material
from taglio.report.parts import Cell, Facts, Heading, Items, Part, Table, Text, Tiles
from taglio.report.placement import measured_at
from taglio.report.units import MISSING, about, allowed, ms, ms_decimals, shown, size

# If the plan has less than this share of the candidates in int8, the costliest blocks are named.
_FEW = 0.5


@dataclass(frozen=True, slots=True)
class _Column:
    """One form of the model; None for what was not measured."""

    name: str
    latency: WallTime | None = None
    predicted_s: float | None = None
    error: float | None = None
    predicted_error: float | None = None
    int8_blocks: int | None = None

    @property
    def measured_s(self) -> float | None:
        return None if self.latency is None else self.latency.median_s


def headline(material: Material) -> list[Part]:
    """The result in one sentence."""
    return [Heading(_headline(material), 1)]


def _headline(material: Material) -> str:
    if material.outcome is not None:
        return answer.sentence(material.outcome, material.built_in)
    columns = {column.name: column for column in _columns(material)}
    base, plan, metric = columns["float"], columns.get("plan"), material.metric
    if plan is not None and plan.predicted_s and base.predicted_s:
        bound = material.max_error
        ceiling = "" if bound is None else f" ({allowed(metric, bound)})"
        error = plan.error if plan.error is not None else plan.predicted_error
        how = metric.title if plan.error is not None else f"predicted {metric.title}"
        gain = about(base.predicted_s / plan.predicted_s)
        return f"Predicted to be {gain} as fast as float, not confirmed; {how} {shown(metric, error)}{ceiling}"
    int8 = columns["all int8"]
    if base.measured_s and int8.measured_s:
        gain = about(base.measured_s / int8.measured_s)
        return f"All int8 is {gain} as fast as float, not confirmed, before any limit on its error"
    return f"{material.model} was profiled"


def lede(material: Material) -> list[Part]:
    """The result of all-int8 instead, how sure the plan is, and every note, the most important first."""
    outcome = material.outcome
    if outcome is None:
        return []
    notes = (*remarks.ranked(outcome), *remarks.facts(outcome))
    return [*verdict(material), *(Text(f"Note: {note}", "note") for note in notes)]


def verdict(material: Material) -> list[Part]:
    """The result of all-int8 instead, and how sure the plan is."""
    outcome, metric = material.outcome, material.metric
    if outcome is None:
        return []
    gain = about(answer.measured_ratio(outcome, outcome.int8))
    holds = outcome.int8.holds(outcome.max_error)
    limit = "within the limit" if holds else "beyond the limit"
    if outcome.int8.lost:
        limit = "rejected because an output loses its information"
    place = f" in {outcome.int8.runtime}" if outcome.int8.runtime != outcome.plan.runtime else ""
    text = (
        f"All int8 ({plural(outcome.int8.int8_blocks, 'block')}){place}: {gain} as fast as float, not confirmed; "
        f"{metric.title} {shown(metric, outcome.int8.error)}, {limit}. The plan has "
        f"{outcome.plan.int8_blocks} of {plural(outcome.blocks, 'block')} in int8; {_status(outcome)}."
    )
    if not outcome.int8.int8_blocks:
        text = f"No block computes in int8{material.graph.refusal()}."
    if line := answer.larger_limit(outcome):
        text += f" {line[0].upper()}{line[1:]}."
    if outcome.costly and outcome.plan.int8_blocks < _FEW * outcome.candidates:
        listed = ", ".join(
            f"{block_error.block} ({shown(metric.basis, block_error.error)})" for block_error in outcome.costly
        )
        errors = "errors" if metric.smooth else f"{metric.basis.name} errors"
        text += f" Largest {errors}, one block in int8: {listed}."
    return [Text(text, "lede")]


def tiles(material: Material) -> list[Part]:
    """The plan's rate, if it was chosen for one, and its latency, error, size and accuracy at a glance."""
    outcome, metric = material.outcome, material.metric
    if outcome is None:
        return []
    base, plan = outcome.float32, outcome.plan
    share = plan.error / outcome.max_error if outcome.max_error else 0.0
    items: list[tuple[str, str, float | None]] = [
        *([] if outcome.rate is None else [ways.tile(outcome.rate)]),
        (ms(answer.latency_s(outcome, plan)), f"per inference; float {ms(answer.latency_s(outcome, base))}", None),
        (shown(metric, plan.error), f"{metric.title}; {allowed(metric, outcome.max_error)}", share),
        (size(plan.size_bytes), f"on disk; float {size(base.size_bytes)}", None),
    ]
    if plan.accuracy is not None and base.accuracy is not None:
        accuracy, before = outcome.accuracy_text(plan.accuracy), outcome.accuracy_text(base.accuracy)
        items.append((accuracy, f"{_accuracy_title(outcome)}; float {before}", None))
    return [Tiles(items)]


def side_by_side(material: Material) -> list[Part]:
    """Float, all int8 and the plan in columns, predicted beside measured."""
    columns = _columns(material)
    decimals = ms_decimals(max((column.measured_s or column.predicted_s or 0.0 for column in columns), default=0.0))
    drift, bound, metric, outcome = material.drift(), material.max_error, material.metric, material.outcome

    def ratio(column: _Column, factor: float = 1.0) -> str:
        if column.measured_s is None or column.predicted_s is None:
            return MISSING
        return f"{column.predicted_s * factor / column.measured_s:.3f}"

    rows: list[list[object]] = [
        ["latency measured", *(ms(column.measured_s, decimals) for column in columns)],
        ["latency predicted", *(ms(column.predicted_s, decimals) for column in columns)],
        ["predicted ÷ measured", *(ratio(column) for column in columns)],
    ]
    if outcome is not None:
        rows += _speed_ups(outcome)
    if abs(drift - 1.0) > STEADY:
        rows.append(["… corrected for drift", *(ratio(column, drift) for column in columns)])
    rows += [
        ["p95 measured", *(ms(column.latency.p95_s if column.latency else None, decimals) for column in columns)],
        [f"{metric.title} measured", *(_judged(metric, column.error, bound) for column in columns)],
        *([] if outcome is None else _by_input(outcome)),
        [
            f"{metric.title} predicted{_of_fewer(outcome)}",
            *(shown(metric, column.predicted_error) for column in columns),
        ],
        *([] if outcome is None else _scores(outcome)),
        ["int8 blocks", *(MISSING if column.int8_blocks is None else column.int8_blocks for column in columns)],
    ]
    rows = [row for row in rows if any(cell != MISSING for cell in row[1:])]
    return [Table(["", *(column.name for column in columns)], rows, look="compare"), *_newer_plan(material)]


def parts(material: Material) -> list[Part]:
    """The error of every part of the outputs, if any has one and there are several, or one lost its information."""
    outcome, metric = material.outcome, material.metric
    if outcome is None:
        return []
    variants = _variants(outcome).values()
    names = list(dict.fromkeys(part.name for variant in variants for part in variant.parts))
    changed = any(part.loss > 0.0 for variant in variants for part in variant.parts)
    if (len(names) < 2 or not metric.smooth or not changed) and not any(variant.lost for variant in variants):
        return []
    rows: list[list[object]] = []
    for name in names:
        rows.append([name])
        for variant in variants:
            part = next((part for part in variant.parts if part.name == name), None)
            if part is None:
                rows[-1].append(MISSING)
            else:
                look = "bad" if part.loss > outcome.max_error or part.lost else ""
                rows[-1].append(Cell(shown(metric, part.loss), look, part.lost))
    return [Table(["", *_variants(outcome)], rows, f"{metric.title} by part of the outputs", "compare")]


def places(material: Material, most: int | None = None) -> list[Part]:
    """The timings in each place of this machine (at most `most`), fastest first, and why other places are out."""
    outcome, metric = material.outcome, material.metric
    if outcome is None:
        return material.lacks(OUTCOME)
    rows: list[list[object]] = []
    places_by_reason: dict[str, list[str]] = {}
    for point in outcome.places:
        if point.latency is None:
            place = point.runtime if point.name == FLOAT_RUN else f"{point.name} in {point.runtime}"
            places_by_reason.setdefault(point.reason, []).append(place)
        elif outcome.int8.int8_blocks or point.name != "int8":  # else the float model once more
            error = _judged(metric, point.error, outcome.max_error)
            how = "measured" if point.judged else "expected" if point.error is not None else ""
            verdict = point.reason or ("" if point.holds else "exceeds the limit")
            rows.append([point.name, point.runtime, ms(point.measured_s), error, how, verdict])
    head = ["model", "runtime", "latency", metric.title, "", ""]
    table = Table(head, rows[:most], "Places of this machine, timed side by side", words=frozenset({1, 4, 5}))
    left_out = Items([(", ".join(names), reason) for reason, names in places_by_reason.items()])
    several = len({row[1] for row in rows}) > 1
    return [*([table] if several else []), *([left_out] if places_by_reason else [])]


def conditions(material: Material) -> list[Part]:
    """Where and how the figures were measured."""
    profile_conditions, outcome = material.profile.conditions, material.outcome
    moved = outcome is not None and outcome.plan.runtime != profile_conditions.runtime
    runtime = f"{profile_conditions.runtime} {profile_conditions.runtime_version}"
    spinning = "spinning" if profile_conditions.spinning else "not spinning"
    facts = [
        ("machine", str(profile_conditions.machine)),
        ("threads", f"{profile_conditions.threads}, {spinning} between kernels"),
        ("profiled in" if moved else "runtime", f"{runtime}, optimisation {profile_conditions.optimization}"),
        *([("plan runs in", outcome.plan.runtime)] if outcome and moved else []),
        ("scheme", str(material.profile.scheme)),
        *([("shapes", measured_at(profile_conditions.shapes))] if profile_conditions.shapes else []),
    ]
    if outcome is not None:
        held_out = f"{outcome.held_out_samples} held out to measure error and accuracy"
        facts.append(("samples", f"{outcome.calibration_samples} for calibration, {held_out}"))
    return [Facts(facts)]


def _speed_ups(outcome: Outcome) -> list[list[object]]:
    """How many times as fast as float each form is, and was predicted to be."""
    variants, title = _variants(outcome), answer.speed_up_title(outcome)
    beside_float = [variant for name, variant in variants.items() if name != "float"]
    if answer.float_stays(outcome):
        beside_float = beside_float[:-1]
    missing = [MISSING] * (len(variants) - len(beside_float) - 1)
    return [
        [title, MISSING, *(answer.speed_up(outcome, variant) for variant in beside_float), *missing],
        [
            f"{title} predicted",
            MISSING,
            *(answer.predicted_speed_up(outcome, variant) for variant in beside_float),
            *missing,
        ],
    ]


def _judged(metric: Metric, loss: float | None, limit: float | None) -> object:
    """A loss, marked if it exceeds the limit."""
    broken = loss is not None and limit is not None and loss > limit
    return Cell(shown(metric, loss), "bad") if broken else shown(metric, loss)


def _accuracy_title(outcome: Outcome) -> str:
    return f"{outcome.metric.name} on labels" if outcome.metric.labelled else "top-1 accuracy"


def _variants(outcome: Outcome) -> dict[str, Variant]:
    """All int8 only where a block computes in it: otherwise it is the float model once more."""
    int8 = {"all int8": outcome.int8} if outcome.int8.int8_blocks else {}
    return {"float": outcome.float32, **int8, "plan": outcome.plan}


def _by_input(outcome: Outcome) -> list[list[object]]:
    """The upper end of the error, and the worst input."""
    metric, variants = outcome.metric, _variants(outcome).values()
    return [
        [f"{metric.title}, upper end (95\u00a0%)", *(shown(metric, variant.error_upper) for variant in variants)],
        [f"{metric.title}, worst input", *(shown(metric, variant.worst_input) for variant in variants)],
    ]


def _scores(outcome: Outcome) -> list[list[object]]:
    """Accuracy, other limited metrics (their values against labels, too) and size."""
    variants = _variants(outcome).values()
    accuracies = [
        MISSING if variant.accuracy is None else outcome.accuracy_text(variant.accuracy) for variant in variants
    ]
    rows: list[list[object]] = [[_accuracy_title(outcome), *accuracies]]
    for index, bound in enumerate(outcome.also):
        losses = [variant.others[index] if index < len(variant.others) else None for variant in variants]
        cells = [_judged(bound.metric, other.loss if other else None, bound.max_error) for other in losses]
        rows.append([f"{bound.metric.title} measured ({allowed(bound.metric, bound.max_error)})", *cells])
        if bound.metric.labelled:
            values = [MISSING if other is None else bound.metric.score_text(other.value) for other in losses]
            rows.append([f"{bound.metric.name} on labels", *values])
    return [*rows, ["size", *(size(variant.size_bytes) for variant in variants)]]


def _of_fewer(outcome: Outcome | None) -> str:
    """The number of inputs behind the predictions, if it is smaller than that behind the measurements."""
    if outcome is None or not 0 < outcome.search_samples < outcome.held_out_samples:
        return ""
    return f" from {outcome.search_samples} of {plural(outcome.held_out_samples, 'input')}"


def _columns(material: Material) -> list[_Column]:
    outcome, plan = material.outcome, material.plan
    if outcome is not None:
        columns = []
        for name, variant in _variants(outcome).items():
            predicted_s = variant.predicted_latency_s if outcome.predicted(variant) else None
            columns.append(
                _Column(name, variant.latency, predicted_s, variant.error, variant.predicted_error, variant.int8_blocks)
            )
        return columns
    columns = [_profiled(material, "float", FLOAT_RUN), _profiled(material, "all int8", "int8")]
    if plan is not None:
        latency_s, error, count = plan.predicted_latency_s.value, plan.predicted_error.value, len(plan.assignment())
        columns.append(_Column("plan", None, latency_s, plan.measured_error, error, count))
    return columns


def _profiled(material: Material, label: str, name: str) -> _Column:
    """A whole-model run of the profile, predicted by the profile's own tables, which were fitted to it."""
    run = material.profiled(name)
    if run is None:
        return _Column(label)
    assignment = {block: material.profile.precision(precision) for block, precision in run.assignment.items()}
    predicted = predict(material.profile, material.graph, assignment).total_s
    return _Column(label, run.wall, predicted, int8_blocks=len(run.assignment))


def _status(outcome: Outcome) -> str:
    status, gap = outcome.status, outcome.gap
    by = f"{gap * 100:.2g} %"  # more digits of a bound are meaningless
    if status == "optimal":
        margin = f" by more than {by}" if gap > 1e-6 else ""
        return f"according to the measured times, no plan within the limit is faster{margin}"
    if status == "measured":
        though = f", though the tables predicted it {by} slower than the solver's own plan" if gap > 1e-6 else ""
        return f"of the plans that were timed, none within the limit is clearly faster{though}"
    return f"solver status {status!r}, at most {by} slower than the optimum"


def _newer_plan(material: Material) -> list[Part]:
    """A note if the plan is newer than the timings."""
    plan, outcome = material.plan, material.outcome
    if plan is None or outcome is None or plan.predicted_latency_s.value == outcome.plan.predicted_latency_s:
        return []
    return [Text("plan.json is newer than these timings: the sections below show the newer plan.", "small")]
