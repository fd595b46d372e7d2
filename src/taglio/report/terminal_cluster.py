"""Terminal tables of plans on several devices. Rounds and aligns; computes nothing."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from taglio.flow.pareto import Front
from taglio.plan.explain import Alternative, amount
from taglio.plan.place import Answer
from taglio.plan.result import Plan
from taglio.plan.workload import Objective
from taglio.report.terminal import error_line

_MEGA = 1e6
# Smaller shares of the time are not printed.
_LEAST_LOAD = 1e-3


def plans(answer: Answer, names: Sequence[str], objective: Objective, told: Sequence[Alternative]) -> None:
    """Print what runs where, what is sent, predictions, and the alternatives that were requested."""
    for name, plan in zip(names, answer.plans, strict=True):
        if len(names) > 1:
            _say(f"{name}:")
        one(plan, alone=len(names) > 1)
    loads = sorted(answer.loads().items(), key=lambda each: -each[1])
    if loads:
        loads = [each for each in loads if each[1] >= _LEAST_LOAD] or loads[:1]
        rates = " + ".join(f"{each.rate_per_s:.4g}" for each in answer.assembled.workloads if each.rate_per_s)
        busy = ", ".join(f"{on} busy {share:.1%} of the time" for on, share in loads)
        _say(f"{rates} requests/s: {busy}")
    alone = "" if objective.last.simulated else " (sum of blocks and messages)"
    moved, cost = answer.moves()
    if moved and objective.last.kind != "throughput":
        alone += f", including {amount(objective, cost)} to move {moved} block{'s' * (moved > 1)}"
    _say(f"{objective}: {amount(objective, answer.value)}{alone}, proven within {answer.gap:.2%} of the optimum")
    for each in told:
        _say(each.words)


def one(plan: Plan, *, alone: bool = False) -> None:
    """Print one plan's devices, crossings and totals; `alone` if other models share the devices."""
    _devices(plan)
    _crossings(plan)
    _totals(plan, alone=alone)


def front(result: Front, path: Path) -> None:
    """Print the points of a front."""
    unit = {"error": "error", "energy": "energy", "throughput": "requests/s"}[result.axis]
    table = _table("latency", unit, "gap", "int8 blocks", "devices")
    for point in result.points:
        other = {
            "error": point.plan.limits.metric.text(point.other),
            "energy": f"{point.other:.4g} J",
            "throughput": f"{point.other:.4g}",
        }[result.axis]
        devices = ", ".join(dict.fromkeys(each.device for each in point.plan.placements))
        table.add_row(_ms(point.latency_s), other, f"{point.gap:.2%}", str(len(point.plan.assignment())), devices)
    Console(highlight=False).print(table)
    without = f"; no plan under {result.infeasible} of the limits tried" if result.infeasible else ""
    _say(f"{result.tried} plans made, {len(result.points)} on the front{without}")
    _say(f"wrote {path}")


def _devices(plan: Plan) -> None:
    table = _table("device", "blocks", "in int8", "busy", "energy", "memory", "of", "times")
    int8 = set(plan.assignment())
    for use in plan.usage:
        blocks = [each.block for each in plan.placements if each.device == use.device]
        table.add_row(
            ", ".join(use.machines),
            str(len(blocks)),
            str(sum(name in int8 for name in blocks)),
            _ms(use.predicted_busy_s),
            f"{use.predicted_joules:.3g} J",
            f"{use.peak_bytes / _MEGA:.1f} MB" if use.peak_bytes else f"{use.weight_bytes / _MEGA:.1f} MB",
            "" if use.memory_bytes is None else f"{use.memory_bytes / _MEGA:.1f} MB",
            "assumed" if use.assumed else "measured",
        )
    Console(highlight=False).print(table)


def _crossings(plan: Plan) -> None:
    if not plan.crossings:
        return
    table = _table("tensor", "from", "to", "form", "bytes", "time")
    for each in plan.crossings:
        table.add_row(
            escape(each.tensor), each.source, each.target, each.precision, f"{each.bytes:.0f}", _ms(each.predicted_s)
        )
    Console(highlight=False).print(table)


def _totals(plan: Plan, *, alone: bool) -> None:
    latency = plan.predicted_latency_s
    summed = "" if plan.summed_s is None else f"; sum of all parts {_ms(plan.summed_s)}"
    between = f"{_ms(latency.low)} … {_ms(latency.high)}"
    _say(f"{plan.status}, gap {plan.gap:.2%}; latency {_ms(latency.value)} ({between}){summed}")
    if plan.predicted_rate_per_s is not None:
        others = " if alone on its devices" if alone else ""
        _say(f"capacity {plan.predicted_rate_per_s.value:.4g} requests/s{others}")
    if plan.predicted_joules is not None:
        _say(f"energy {plan.predicted_joules.value:.4g} J per request")
    _say(error_line(plan))
    for line in (*plan.binding, *plan.notes):
        _say(line)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, name in enumerate(columns):
        left = index == 0 or name in ("from", "to", "form", "devices", "times")
        table.add_column(name, justify="left" if left else "right", overflow="fold")
    return table


def _say(text: str) -> None:
    Console(highlight=False, soft_wrap=True).print(escape(text))


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-4 else f"{seconds * 1e6:.1f} us"
