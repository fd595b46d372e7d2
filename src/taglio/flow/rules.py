"""Plans by simple rules, which need no solver: candidates where the tables are wrong. Times nothing."""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence

from taglio.error.measure import ErrorMeter
from taglio.error.model import ErrorModel
from taglio.flow.search import key_of
from taglio.model.graph import ANCHORS, Graph
from taglio.plan.result import Limits
from taglio.profile.measure import FLOAT_RUN, pure_assignments
from taglio.profile.result import Profile
from taglio.quantize.effective import effective
from taglio.quantize.precision import FLOAT32, Assignment, Precision


def by_rules(
    graph: Graph, measured: Profile, model: ErrorModel, limits: Limits, meter: ErrorMeter, *, excluding: bool
) -> dict[str, Assignment]:
    """Distinct assignments that need no solver: float, all int8, only blocks with weights in int8; the blocks that have
    a form without calibration, in it. If `excluding`, also these without the most damaging blocks, as few as the limit
    requires; and the blocks with the most FLOPs, as many as it allows."""
    whole = next(precision for precision in measured.precisions if precision.form == "whole")
    everything = pure_assignments(graph, measured.precisions)["int8"]
    pinned = {name: precision for name, precision in everything.items() if name not in limits.float_blocks}
    # Weightless blocks gain little in int8, and the tables are least sure of the cost of their boundaries.
    weighted = {
        name: precision
        for name, precision in pinned.items()
        if graph.block(name).anchor in ANCHORS or name in limits.int8_blocks
    }
    result: dict[str, Assignment] = {} if limits.int8_blocks else {FLOAT_RUN: {}}
    result["int8"] = effective(graph, pinned, whole)

    def holding(order: Sequence[str], start: Assignment) -> dict[str, Precision]:
        return exclude(order, limits, start, lambda assignment: meter.error(effective(graph, assignment, whole)))

    choices: dict[str, Mapping[str, Precision]] = {"int8": pinned, "weights": weighted}
    for form in (precision for precision in measured.precisions if precision.uncalibrated and not limits.int8_blocks):
        fitting = [block.name for block in graph.choices() if form.fits(block)]
        choices[form.name] = dict.fromkeys([name for name in fitting if name not in limits.float_blocks], form)
    if excluding:
        for name, start in [*choices.items()]:
            choices[f"{name}, worst excluded"] = holding(damage_first(model, start), start)
        few_flops_first = sorted(
            (block for block in graph.candidates() if block.name in weighted), key=lambda b: b.flops
        )
        choices["most FLOPs"] = holding([block.name for block in few_flops_first], weighted)
    for rule, blocks in choices.items():
        assignment = effective(graph, blocks, whole)
        if all(key_of(assignment) != key_of(other) for other in result.values()):
            result[rule] = assignment
    return result


def damage_first(error: ErrorModel, everything: Assignment) -> list[str]:
    """The blocks of `everything` that were measured alone, most harmful first."""
    alone = {
        alone.block: alone.error
        for alone in error.alone
        if everything.get(alone.block, FLOAT32).name == alone.precision
    }
    return sorted(alone, key=lambda name: -alone[name])


def exclude(
    order: Sequence[str], limits: Limits, everything: Assignment, measure: Callable[[Assignment], float]
) -> dict[str, Precision]:
    """`everything` without the first blocks of `order`, as few of them as the bound requires.

    This is how tools exclude blocks by a rule: by damage, as accuracy control does, or by FLOPs. It ignores times, so
    the solver's plans beat it if times differ between blocks; if they hardly do, it is a candidate that does not depend
    on the latency model. Bisection assumes that excluding more blocks lowers the error.
    """
    assert limits.max_error is not None
    free = [name for name in order if name in everything and name not in limits.int8_blocks]

    def without(count: int) -> dict[str, Precision]:
        left_out = set(free[:count])
        return {name: precision for name, precision in everything.items() if name not in left_out}

    most = limits.max_error
    return without(bisect_left(range(len(free)), True, key=lambda count: measure(without(count)) <= most))
