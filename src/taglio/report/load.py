"""A delivered model under load, beside what was promised."""

from taglio.flow.load import LoadReport
from taglio.report.parts import Part, Table, Text
from taglio.report.units import figures, limit, ms, percent
from taglio.ways.replay import KEPT
from taglio.ways.result import Figure, Load, Rate


def load_report(report: LoadReport) -> list[Part]:
    """The way, the capacity, and the latencies, with those promised where optimize chose the way for a rate."""
    load = report.load
    promised = {} if report.promised is None else _promises(report.promised, load)
    latencies = {name: ms(value) for name, value in _latencies(load).items() if value is not None or name in promised}
    measured = {
        "capacity": _per_s(report.capacity_per_s),
        "requests at random": f"{load.requests:,} at {_per_s(load.per_s)} ({percent(load.share)} of the capacity)",
        **latencies,
    }
    head = ["", "measured", *(["promised"] if promised else [])]
    rows = [[name, text, *([promised.get(name, "")] if promised else [])] for name, text in measured.items()]
    notes = [Text(f"Note: {note}.", "note") for note in report.notes]
    return [Text(f"In {report.runtime}, {report.way}."), Table(head, rows, words=frozenset({1, 2})), *notes]


def _latencies(load: Load) -> dict[str, float | None]:
    return {"p50": load.p50_s, "p95": load.p95_s, "p99": load.p99_s}


def _promises(rate: Rate, load: Load) -> dict[str, str]:
    """The capacity, the highest rate, and latencies at the same share of the capacity, or the limit on that of 19 of 20
    requests up to the promised rate."""
    texts = {"capacity": _interval(rate.capacity_per_s)}
    if rate.max_latency_s is not None and rate.rate_per_s is not None:
        texts["requests at random"] = f"up to {_interval(rate.rate_per_s)}"
        if load.per_s <= rate.rate_per_s.value:
            texts["p95"] = f"at most {limit(KEPT)} of {ms(rate.max_latency_s)}"
    same_load = next((other for other in rate.loads if abs(other.share - load.share) <= 0.005), None)
    latency_of = {} if same_load is None else _latencies(same_load)
    return texts | {name: ms(value) for name, value in latency_of.items() if value is not None}


def _interval(figure: Figure) -> str:
    return f"{_per_s(figure.value)} ({figures(figure.low)} to {figures(figure.high)})"


def _per_s(value: float) -> str:
    return f"{figures(value)}/s"
