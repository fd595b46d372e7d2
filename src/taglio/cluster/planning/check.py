"""Check a plan's limits and the costs that it states, without a solver and without the planner's arithmetic.

Uses only what the plan states: placements, crossings, and the seconds of its components. Derives from the readers what
must be sent and what each device holds. Does not compute the seconds of components or the timeline again; the tests do.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from math import inf, isclose

from taglio.cluster.devices import Cluster
from taglio.error.model import ErrorModel
from taglio.model.graph import Graph
from taglio.plan.check import FormChecks, PlanIsWrong
from taglio.plan.result import Plan

INT8, FLOAT = "int8", "float32"
_CLOSE = 1e-6


def check(
    graph: Graph,
    error: ErrorModel | None,
    cluster: Cluster,
    plan: Plan,
    *,
    max_noise: Mapping[str, float] | None = None,
) -> None:
    """Raise PlanIsWrong unless `cluster` can run the plan and it keeps its limits.

    `max_noise` bounds the noise sum by output. Memory counts this model only.
    """
    if sorted(placement.block for placement in plan.placements) != sorted(block.name for block in graph.blocks):
        raise PlanIsWrong(f"the plan places {len(plan.placements)} blocks of {len(graph.blocks)}")
    checks = Checks(graph, cluster, plan)
    checks.check_forms()
    checks.check_placements()
    checks.check_crossings()
    checks.check_limits()
    checks.check_memory()
    for output in error.outputs if error is not None else ():
        checks.check_noise(output, (max_noise or {}).get(output.output, inf), checks.wired())


@dataclass(frozen=True, slots=True)
class Reading:
    """One reader of a tensor: a block, or "" for the caller."""

    reader: str
    device: str
    int8: bool


class Checks(FormChecks):
    """The checks of one plan on several devices, each of which relies on those before it."""

    def __init__(self, graph: Graph, cluster: Cluster, plan: Plan) -> None:
        super().__init__(graph, plan)
        self.cluster, self.place, self.copies = cluster, plan.devices(), plan.copies()

    def home(self, tensor: str) -> str:
        """The device that writes a tensor; the start device for an input."""
        producer = self.tensors[tensor].producer
        return self.plan.start if producer is None else self.place[producer]

    @cached_property
    def readings(self) -> dict[str, list[Reading]]:
        """The readers of every tensor."""
        readings = dict[str, list[Reading]]()
        for tensor in self.graph.tensors:
            readings[tensor.name] = [
                Reading(reader, self.place[reader], self.reads_int8(reader)) for reader in tensor.consumers
            ]
            if tensor.name in self.graph.outputs and tensor.producer is not None:
                readings[tensor.name].append(Reading("", self.plan.start, int8=False))
        return readings

    def behind(self, reader: str) -> set[str]:
        """Blocks that compute with what a reader takes: itself, or all behind it if it only moves values."""
        if not reader or not self.blocks[reader].carries:
            return {reader}
        return {
            name
            for output in self.blocks[reader].outputs
            for consumer in self.tensors[output].consumers
            for name in self.behind(consumer)
        }

    def check_placements(self) -> None:
        """Every block is on a device that may run it, in its form."""
        limits, names = self.limits, {device.name: device for device in self.cluster.devices}
        pins, off = dict(limits.device_pins), set(limits.device_exclusions)
        for block in self.graph.blocks:
            place, form = self.place[block.name], self.form[block.name]
            if place not in names:
                raise PlanIsWrong(f"block {block.name} is placed on {place}, which is not in the cluster")
            device = names[place]
            words = (block.name, *block.operators, *block.kind.split("+"))
            if any(fnmatchcase(word, pattern) for pattern in device.never for word in words):
                raise PlanIsWrong(f"block {block.name} is placed on {place}, which may not run it")
            if pins.get(block.name, place) != place or (block.name, place) in off:
                raise PlanIsWrong(f"block {block.name} is placed on {place} against a pin")
            if form != FLOAT and not device.int8:
                raise PlanIsWrong(f"block {block.name} is {form} on {place}, which may not run int8")

    def check_crossings(self) -> None:
        """Every reader elsewhere gets a copy that it can read, over a link."""
        needed: set[tuple[str, str]] = set()
        for tensor, readings in self.readings.items():
            for reading in readings:
                if reading.device == self.home(tensor):
                    continue
                needed.add((tensor, reading.device))
                copies = self.copies.get((tensor, reading.device))
                if not copies:
                    reader = reading.reader or "the caller"
                    raise PlanIsWrong(f"{tensor} never reaches {reading.device}, where {reader} reads it")
                if self.writes_int8(self.tensors[tensor].producer) and copies != {INT8}:
                    raise PlanIsWrong(
                        f"{tensor} is written as int8 but is sent to {reading.device} as {sorted(copies)}"
                    )
        for key in self.copies.keys() - needed:
            raise PlanIsWrong(f"{key[0]} is sent to {key[1]}, where nothing reads it")
        for crossing in self.plan.crossings:
            if self.cluster.link(crossing.source, crossing.target) is None:
                raise PlanIsWrong(
                    f"{crossing.tensor} is sent from {crossing.source} to {crossing.target}, which are not connected"
                )

    def check_limits(self) -> None:
        """Latency, energy and rate, from the components' seconds and the crossings."""
        plan, limits, devices = self.plan, self.limits, self.cluster.devices
        spent = {device.name: 0.0 for device in devices}
        for piece in plan.pieces:
            spent[piece.device] += piece.predicted_s * self.cluster.device(piece.device).active_watts
        for crossing in plan.crossings:
            link = self.cluster.link(crossing.source, crossing.target)
            assert link is not None
            spent[crossing.source] += crossing.bytes * link.joules_per_byte
        joules, claimed = sum(spent.values()), plan.predicted_joules
        if not isclose(joules, claimed.value if claimed is not None else 0.0, rel_tol=_CLOSE, abs_tol=1e-9):
            raise PlanIsWrong(f"a request takes {joules:.6g} J by the tables, the plan claims {claimed}")
        amounts: list[tuple[str, float, float | None]] = [
            ("latency", plan.predicted_latency_s.value, limits.max_latency_s),
            ("energy", joules, limits.max_energy_joules),
            *((f"energy on {device.name}", spent[device.name], device.energy_cap_joules) for device in devices),
        ]
        if plan.predicted_rate_per_s is not None and limits.min_rate_per_s:
            period_s, limit_s = 1.0 / plan.predicted_rate_per_s.value, 1.0 / limits.min_rate_per_s
            amounts.append(("seconds between requests", period_s, limit_s))
        for quantity, amount, limit in amounts:
            if limit is not None and amount > limit * (1.0 + _CLOSE):
                raise PlanIsWrong(f"the plan's {quantity} of {amount:.6g} is over its limit {limit:.6g}")

    def check_memory(self) -> None:
        """Weights and live activations of every device, operator by operator."""
        position = {block.name: index for index, block in enumerate(self.graph.blocks)}
        for device in self.cluster.devices:
            resident_bytes, live = 0.0, [0.0] * len(position)
            for block in self.graph.blocks:
                if self.place[block.name] == device.name:
                    resident_bytes += block.weight_bytes(self.precisions[self.form[block.name]].weight_bits)
                    resident_bytes += block.state_bytes
            for tensor in self.graph.tensors:
                here = [reading for reading in self.readings[tensor.name] if reading.device == device.name]
                if not here and device.name != self.home(tensor.name):
                    continue
                kinds = self.held(tensor.name, device.name, here)
                first = position[tensor.producer] if tensor.producer is not None else 0
                end = max([first, *(position.get(reading.reader, len(live) - 1) for reading in here)])
                size = tensor.float_bytes * (FLOAT in kinds) + tensor.int8_bytes * (INT8 in kinds)
                for index in range(first, end + 1):
                    live[index] += size
            used = resident_bytes + max(live)
            if used > device.memory_bytes * (1.0 + _CLOSE):
                raise PlanIsWrong(
                    f"{device.name} needs {used / 1e6:.1f} MB for weights and live activations, "
                    f"it has {device.memory_bytes / 1e6:.1f} MB"
                )

    def held(self, tensor: str, device: str, here: Sequence[Reading]) -> Set[str]:
        """Precisions in which a device holds a tensor."""
        wants_int8 = any(reading.int8 for reading in here)
        if device != self.home(tensor):
            return self.copies[tensor, device] | ({INT8} if wants_int8 else set())
        if self.writes_int8(self.tensors[tensor].producer):
            return {INT8}
        sent_int8 = any(name == tensor and INT8 in kinds for (name, _), kinds in self.copies.items())
        return {FLOAT} | ({INT8} if wants_int8 or sent_int8 else set())

    def wired(self) -> set[tuple[str, str]]:
        """The (flow, reader) whose float values travel as int8; blocks that only move values stand for all behind."""
        flow_of = {tensor: flow.name for flow in self.graph.flows for tensor in flow.tensors}
        return {
            (flow_of[tensor], name)
            for tensor, reader in self.plan.wire_only(self.graph)
            for name in self.behind(reader)
        }
