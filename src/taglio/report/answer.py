"""The answer of an optimisation: one sentence, and a small table of float, all int8 and the plan. Decides nothing."""

from collections.abc import Sequence
from math import ceil, floor, inf, isfinite, log10

from taglio.error.loss import RELATIVE_L2, SQNR, Bound, Metric
from taglio.error.tally import OtherLoss
from taglio.flow.outcome import Figures, Outcome
from taglio.notes import Kind
from taglio.report.parts import Cell, Part, Table
from taglio.report.units import MISSING, about, allowed, limit, ms, shown, size
from taglio.search.front import Point

FLOAT = "float32"
# No limit tells a smaller relative L2 error from rounding in float32.
_ROUNDING = 1e-5
_TITLES = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}


def sentence(outcome: Outcome, folder: str) -> str:
    """The answer in one line; `folder` holds what is to be deployed.

    If the plan was chosen for a rate, that takes the place of the speed-up. A speed-up without an interval was not
    confirmed by a race of its own, and says so.
    """
    where = f"{folder}/ for {runtime_title(outcome.plan.runtime)}"
    if outcome.rate is not None:
        return f"{outcome.rate}, {_errors(outcome)}: {where}"
    kinds = {note.kind for note in outcome.notes}
    if float_stays(outcome) and Kind.STOPPED in kinds:
        return f"float32 so far: the search was stopped before a faster form was found: {where}"
    if float_stays(outcome):
        verdict = "was shown to be faster" if Kind.UNPROVEN_GAIN in kinds else "is faster"
        return f"float32 stays: no form that keeps {_limits(outcome)} {verdict}: {where}"
    if outcome.speedup is not None:
        return f"{outcome.speedup} as fast as float32, {_errors(outcome)}: {where}"
    return (
        f"{about(measured_ratio(outcome, outcome.plan))} as fast as float32, not confirmed; {_errors(outcome)}: {where}"
    )


def tables(outcome: Outcome) -> list[Part]:
    """Float, all int8 and the plan in rows, with the figures that any of them has."""
    rows = {title: cells for title, cells in figures(outcome).items() if any(cell != MISSING for cell in cells)}
    cells = [list(row) for row in zip(variants(outcome), *rows.values(), strict=True)]
    return [Table(["", *rows], cells, words=frozenset({1}))]


def figures(outcome: Outcome) -> dict[str, list[object]]:
    """By title, the figures of `variants`, with their values of every further limited metric. Only the plan's speed-up
    can be confirmed."""
    metric, named = outcome.metric, variants(outcome)
    score = f"{metric.name} on labels" if metric.labelled else "top-1 accuracy"
    beside_float = [variant for name, variant in named.items() if name != FLOAT]
    gain = speed_up_title(outcome)
    rows: dict[str, list[object]] = {
        "runs in": [runtime_title(variant.runtime) for variant in named.values()],
        "latency": [ms(latency_s(outcome, variant)) for variant in named.values()],
        gain: [MISSING, *(speed_up(outcome, variant) for variant in beside_float)],
        "predicted": [MISSING, *(predicted_speed_up(outcome, variant) for variant in beside_float)],
        metric.title: [_error(outcome, variant) for variant in named.values()],
    }
    for index, bound in enumerate(outcome.also):
        title = f"{bound.metric.title} ({allowed(bound.metric, bound.max_error)})"
        rows[title] = [_further(bound, variant.others, index) for variant in named.values()]
    rows[score] = [
        MISSING if variant.accuracy is None else outcome.accuracy_text(variant.accuracy) for variant in named.values()
    ]
    rows["size"] = [size(variant.size_bytes) for variant in named.values()]
    rows["int8 blocks"] = [str(variant.int8_blocks) for variant in named.values()]
    if outcome.plan.bfloat16_blocks:
        rows["bfloat16 blocks"] = [str(variant.bfloat16_blocks) for variant in named.values()]
    return rows


def variants(outcome: Outcome) -> dict[str, Figures]:
    """Float, all int8 unless no block computes in it, and the plan unless it is float."""
    named = {FLOAT: outcome.float32}
    if outcome.int8.int8_blocks:
        named["all int8"] = outcome.int8
    if not float_stays(outcome):
        named["plan"] = outcome.plan
    return named


def _further(bound: Bound, losses: Sequence[OtherLoss], index: int) -> object:
    return _marked(bound.metric, losses[index].loss, bound.max_error) if losses else MISSING


def latency_s(outcome: Outcome, variant: Figures) -> float | None:
    """Median seconds of a run. If there was a race they come from it, so that they agree with the speed-up. The result
    is then None for all int8, which is not in the race: its earlier time is not comparable."""
    race = outcome.speedup
    if race is None:
        return variant.latency.median_s
    return race.plan_s if variant is outcome.plan else race.float_s if variant is outcome.float32 else None


def speed_up_title(outcome: Outcome) -> str:
    """The title of a speed-up; it names latency if the plan was chosen for a rate."""
    return "speed-up" if outcome.rate is None else "latency speed-up"


def speed_up(outcome: Outcome, variant: Figures) -> str:
    """How many times as fast as float a variant is: with its interval if it is the plan and was confirmed."""
    if variant is outcome.plan and outcome.speedup is not None:
        return str(outcome.speedup)
    return f"{about(measured_ratio(outcome, variant))}, not confirmed"


def predicted_speed_up(outcome: Outcome, variant: Figures) -> str:
    """The predicted ratio of float's time to a variant's. A change of the machine's speed cancels out."""
    ratio = outcome.predicted_ratio(variant)
    return MISSING if ratio is None or not isfinite(ratio) else f"{ratio:.2f} ×"


def measured_ratio(outcome: Outcome, variant: Figures) -> float:
    """Float's time over a variant's, from the runs that selected the plan."""
    return outcome.float_s / variant.latency.median_s


def float_stays(outcome: Outcome) -> bool:
    """Whether the plan is the float model in the runtime that it is compared with, and not faster than the source,
    either."""
    plan = outcome.plan
    same = not plan.int8_blocks and not plan.bfloat16_blocks and plan.runtime == outcome.float32.runtime
    return same and outcome.speedup is None and outcome.float32.error <= outcome.max_error  # else see search/instead.py


def front(outcome: Outcome, folder: str) -> list[Part]:
    """The plans that other limits would bring, with the option of `taglio build` that takes each one."""
    rows: list[list[object]] = [
        [
            limit_option(outcome.metric, point.error or 0.0),
            runtime_title(point.runtime),
            f"{about(about_speedup(outcome, point))}, not confirmed",
            shown(outcome.metric, point.error),
            str(point.int8_blocks),
        ]
        for point in outcome.front
    ]
    if not rows:
        return []
    head = ["limit", "runs in", speed_up_title(outcome), outcome.metric.title, "int8 blocks"]
    caption = f"Other limits; taglio build {folder} LIMIT builds and confirms the plan for one:"
    return [Table(head, rows, caption, words=frozenset({1}))]


def about_speedup(outcome: Outcome, point: Point) -> float:
    """Float's time over that of a point, from the runs that selected the plan, on the scale of the race that confirmed
    it; 0 if it was not timed."""
    return outcome.float_s / point.measured_s if point.measured_s else 0.0


def limit_option(metric: Metric, loss: float) -> str:
    """The option that allows 5 % more than `loss`, in two digits: the error differs on the inputs of the race."""
    argument = metric.argument
    lenient = max(1.05 * loss, _ROUNDING if metric.name == RELATIVE_L2 else 0.0)
    value = lenient if argument == "max_drop" else metric.value(lenient)
    flag = f"--{argument.replace('_', '-')}"
    if not isfinite(value):
        return f"{flag} {value}"
    in_percent = metric.name == RELATIVE_L2 or not (metric.smooth or metric.own)
    scale, sized = 100.0 if in_percent else 1.0, value if metric.smooth else lenient
    decimals = 1 if metric.name == SQNR else max(0, 1 - floor(log10(scale * sized))) if sized > 0.0 else 0
    step = 10.0**decimals
    rounded = (floor if argument == "min_score" else ceil)(round(scale * value * step, 6)) / step
    return f"{flag} {rounded:g}{'%' if in_percent else ''}"


def runtime_title(runtime: str) -> str:
    """A runtime's own name, whatever it computes in."""
    names = [name for name in _TITLES if runtime == name or runtime.startswith(f"{name}-")]
    return _TITLES[max(names, key=len)] if names else runtime


def _error(outcome: Outcome, variant: Figures) -> object:
    if variant.lost:
        return Cell(shown(outcome.metric, variant.error), "bad", "an output loses its information")
    judged = outcome.max_error if variant.holds(outcome.max_error) else -inf
    return _marked(outcome.metric, variant.error, judged)


def _marked(metric: Metric, loss: float, most: float) -> object:
    """A loss, marked if it exceeds its limit."""
    text = shown(metric, loss)
    return text if loss <= most else Cell(text, "bad", "beyond the limit")


def _errors(outcome: Outcome) -> str:
    texts = [_of_limit(outcome.metric, outcome.plan.error, outcome.max_error)]
    for bound, other in zip(outcome.also, outcome.plan.others, strict=False):
        texts.append(_of_limit(bound.metric, other.loss, bound.max_error))
    return ", ".join(texts)


def _of_limit(metric: Metric, loss: float, most: float) -> str:
    return f"{metric.title} {shown(metric, loss)} ({allowed(metric, most)})"


def _limits(outcome: Outcome) -> str:
    pairs = [(outcome.metric, outcome.max_error), *((bound.metric, bound.max_error) for bound in outcome.also)]
    return ", ".join(
        _limit(metric, most) if metric.name == RELATIVE_L2 else f"{metric.title} {_limit(metric, most)}"
        for metric, most in pairs
    )


def _limit(metric: Metric, most: float) -> str:
    return limit(most) if metric.name == RELATIVE_L2 else shown(metric, most)
