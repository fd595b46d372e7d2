"""Check a plan against the tables, with no solver and none of the formulation's code.

Recomputes, operator by operator, what the plan costs and how much noise it adds, and compares with what was claimed.
"""

from collections.abc import Mapping
from math import isclose

from taglio.error.model import ErrorModel
from taglio.errors import TaglioError
from taglio.model.graph import Graph
from taglio.plan.result import Plan
from taglio.profile.result import Profile


class PlanIsWrong(TaglioError):
    """A plan does not cost what its solver said, or breaks a limit. This is a fault of taglio, not of the user."""


def check(
    graph: Graph,
    profile: Profile,
    error: ErrorModel | None,
    plan: Plan,
    *,
    objective_s: float | None = None,
    noise_bounds: Mapping[str, float] | None = None,
) -> None:
    """Raise PlanIsWrong unless `plan` places every block once, keeps its pins, costs `objective_s` and keeps
    `noise_bounds` (noise sum per output)."""
    precision = {each.block: each.precision for each in plan.placements}
    if set(precision) != {block.name for block in graph.blocks} or len(plan.placements) != len(graph.blocks):
        raise PlanIsWrong(f"the plan places {len(plan.placements)} blocks of {len(graph.blocks)}")
    forms = {each.name: each for each in plan.precisions}
    for block in graph.blocks:
        form = forms.get(precision[block.name])
        if form is None or not form.fits(block):
            raise PlanIsWrong(
                f"block {block.name} has no {precision[block.name]} form: {block.refusal or 'no soft tail'}"
            )
    for name in plan.limits.float_blocks:
        if precision[name] != "float32" and not graph.block(name).movement:
            raise PlanIsWrong(f"block {name} was to stay float, the plan has it in {precision[name]}")
    for name in plan.limits.int8_blocks:
        if precision[name] == "float32":
            raise PlanIsWrong(f"block {name} was to be int8, the plan has it in float32")
    seconds = latency(graph, profile, precision)
    claimed = plan.predicted_latency_s.value
    if not isclose(seconds, claimed, rel_tol=1e-6, abs_tol=1e-9):
        raise PlanIsWrong(f"the plan takes {seconds * 1e3:.4f} ms by the tables, {claimed * 1e3:.4f} ms were claimed")
    if objective_s is not None and seconds > objective_s + profile.overhead_s + 1e-6 + 1e-3 * seconds:
        total = objective_s + profile.overhead_s
        raise PlanIsWrong(
            f"the plan takes {seconds * 1e3:.4f} ms by the tables, the solver promised {total * 1e3:.4f} ms"
        )
    for output, bound in (noise_bounds or {}).items():
        total = noise(graph, error, output, precision) if error is not None else 0.0
        if total > bound * (1.0 + 1e-6):
            raise PlanIsWrong(f"output {output}: the plan's noise {total:.4g} is over its bound {bound:.4g}")


def latency(graph: Graph, profile: Profile, precision: Mapping[str, str]) -> float:
    """Seconds of one inference by the profile's tables."""
    total = profile.overhead_s
    total += sum(time.seconds for time in profile.blocks if precision.get(time.block) == time.precision)
    blocks = {block.name: block for block in graph.blocks}
    for entry in profile.glue:
        tensor = next(each for each in graph.tensors if each.name == entry.flow)
        int8 = tensor.producer is not None and precision[tensor.producer] == "int8"
        to_int8: set[str] = set()
        to_float = 0
        waiting = [tensor.name]
        while waiting:
            name = waiting.pop()
            to_float += int8 and name in graph.outputs
            for consumer in next(each for each in graph.tensors if each.name == name).consumers:
                block = blocks[consumer]
                if block.movement and not block.refusal and block.inputs[0] == name:
                    waiting += block.outputs
                elif precision[consumer] == "float32":
                    to_float += int8
                elif not int8:
                    to_int8.add(name)
        if int8:
            total += entry.int8_s + to_float * entry.dequantize_s
        elif tensor.producer is not None and precision[tensor.producer] != "float32":  # its anchor alone is int8
            base, each = entry.anchor_float_s, entry.anchor_quantize_s
            total += entry.float_s if base is None else base
            total += len(to_int8) * (entry.quantize_s if each is None else each)
        else:
            total += entry.float_s + len(to_int8) * entry.quantize_s
    return total


def noise(graph: Graph, error: ErrorModel, output: str, precision: Mapping[str, str]) -> float:
    """Noise sum of one output by the error model's tables."""
    model = next(each for each in error.outputs if each.output == output)
    producer = {tensor.name: tensor.producer for tensor in graph.tensors}
    total = sum(each.own for each in model.blocks if precision[each.block] == each.precision)
    for edge in model.edges:
        source = producer[edge.flow]
        written = source is not None and precision[source] == "int8"
        if precision[edge.reader] != "float32" and not written:
            total += edge.noise
    return total
