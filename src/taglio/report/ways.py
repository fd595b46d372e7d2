"""How to run the result: every way that was tried, and the latency of the chosen one under load. Measures nothing."""

from taglio.report.answer import runtime_title
from taglio.report.material import Material
from taglio.report.parts import NamedValues, Part, Table
from taglio.report.units import MISSING, figures, ms, size
from taglio.runtimes.way import Way
from taglio.ways.result import Rate, TriedWay

# Rows of the table of tried ways until the reader expands it.
_FIRST = 6


def chosen(material: Material) -> list[Part]:
    """The chosen way and its confirmed figures; empty, like all parts below, if the plan was not chosen for a rate."""
    rate = _rate(material)
    if rate is None:
        return []
    facts = [
        ("way", str(rate.way)),
        ("model", f"{rate.model} in {runtime_title(rate.runtime)}"),
        ("capacity", rate.capacity_per_s.as_rate("items")),
        ("beside float32, one caller", str(rate.over_one)),
    ]
    if rate.callers > 1:
        facts.append((f"beside float32, {rate.callers} callers", str(rate.over_many)))
    if rate.limit:
        facts.append(("limit on latency", f"{rate.limit} for 19 of 20 requests"))
    if rate.rate_per_s is not None:
        confirmed = "not confirmed" if rate.p95_s is None else f"p95 {ms(rate.p95_s)}"
        facts.append(("rate within it", f"{rate.rate_per_s.as_rate('requests')}, {confirmed}"))
    if rate.base_rate_per_s is not None:
        facts.append(("float32's rate within it", f"{figures(rate.base_rate_per_s)} requests/s"))
    if rate.memory_bytes:
        facts.append(("memory of the open model", size(rate.memory_bytes)))
    return [NamedValues([*facts, ("openings", f"{rate.openings} of both")])]


def loads(material: Material) -> list[Part]:
    """The latency of the chosen way by load, in figures."""
    rate = _rate(material)
    if rate is None or not rate.loads:
        return []
    rows = [
        [
            f"{load.share * 100:.0f}\u00a0%",
            f"{figures(load.per_s)}/s",
            load.requests,
            *map(ms, (load.p50_s, load.p95_s, load.p99_s)),
        ]
        for load in rate.loads
    ]
    head = ["load, of the capacity", "rate", "requests", "p50", "p95", "p99"]
    return [Table(head, rows, "Latency of requests that arrive at random", "dense")]


def line(rate: Rate) -> str:
    """The chosen way, and the memory that the open model takes, where that is known."""
    memory = f"; the open model takes {size(rate.memory_bytes)}" if rate.memory_bytes else ""
    return f"run it as: {rate.way}{memory}"


def tried(material: Material) -> list[Part]:
    """The ways that were tried, the best first. The default way is among those that are always shown."""
    rate = _rate(material)
    if rate is None or not rate.tried:
        return []
    default, ways = _default(material, rate), _best_first(rate)
    if default is not None and default not in ways[:_FIRST]:
        ways.remove(default)
        ways.insert(_FIRST - 1, default)
    rows = [
        [
            f"{way.model} in {runtime_title(way.runtime)}",
            way.way,
            f"{figures(way.capacity_per_s)}/s",
            *([f"{figures(_goal(way))}/s"] if rate.limit else []),
            ms(way.latency_s),
            size(way.memory_bytes) if way.memory_bytes else MISSING,
            _role(rate, way, default),
        ]
        for way in ways
    ]
    latency = ["rate", "p95 at that rate"] if rate.limit else ["p95 of runs"]
    head = ["model", "way", "capacity", *latency, "memory", "role"]
    caption = "Ways that were tried, best first; figures of the search, not confirmed"
    return [Table(head, rows, caption, "dense", frozenset({1, len(head) - 1}), first=_FIRST)]


def _rate(material: Material) -> Rate | None:
    return None if material.outcome is None else material.outcome.rate


def _best_first(rate: Rate) -> list[TriedWay]:
    return sorted(rate.tried, key=lambda way: -_goal(way))


def _goal(way: TriedWay) -> float:
    """The figure that the search maximised: the rate within the limit, or the capacity if there is no limit."""
    return way.capacity_per_s if way.rate_per_s is None else way.rate_per_s


def _default(material: Material, rate: Rate) -> TriedWay | None:
    """The chosen model as the profile was measured, one run at a time; the best model in that way if that was not
    tried."""
    conditions = material.profile.conditions
    default = Way(conditions.threads, spinning=conditions.spinning)
    ways = [way for way in _best_first(rate) if way.way == default]
    return min(ways, key=lambda way: (way.model, way.runtime) != (rate.model, rate.runtime), default=None)


def _is_chosen(rate: Rate, way: TriedWay) -> bool:
    return (way.model, way.runtime, way.way) == (rate.model, rate.runtime, rate.way)


def _role(rate: Rate, way: TriedWay, default: TriedWay | None) -> str:
    names = ["chosen"] if _is_chosen(rate, way) else []
    return ", ".join([*names, *(["default way"] if way is default else [])])
