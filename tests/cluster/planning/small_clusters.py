"""Random small models on up to three devices, under random limits, and the best of their placements by trying all. No
solver in here: the rules are those of reference.py, the times those of the simulated schedule."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf, prod
from random import Random

import numpy as np

from taglio.cluster.devices import Cluster
from taglio.cluster.file import parse
from taglio.cluster.planning.assemble import Assembled
from taglio.cluster.planning.describe import latencies, period_s
from taglio.cluster.planning.problem import Copies
from taglio.cluster.planning.workload import Objective, Workload
from taglio.plan.one_machine import noise_limits
from tests.cluster.planning.reference import array_of, broken_edges, choices, evaluate, of_use, over, use_of
from tests.plan import made_up

NAMES = ("camera", "gateway", "server")
OBJECTIVES = (
    "latency",
    "throughput",
    "energy",
    "sum",
    "latency=1,energy=0.05",
    "latency,energy",
    "energy,latency",
    "throughput,energy",
)


def cluster(rng: Random) -> Cluster:
    """Three devices, perhaps without a link between the first and the last."""
    text = 'start = "camera"\n'
    for name in NAMES:
        text += f"[device.{name}]\nactive_watts = {rng.choice((1, 2, 5, 10))}\n"
        text += "send_ms = 0.01\nreceive_ms = 0.02\n" if rng.random() < 0.3 else ""
        text += f"memory_mb = {rng.choice((2e-4, 3e-4, 1.0))}\n" if rng.random() < 0.3 else ""
    for one, other in (("camera", "gateway"), ("camera", "server"), ("gateway", "server")):
        if (one, other) != ("camera", "server") or rng.random() < 0.8:
            text += f'[[link]]\nfrom = "{one}"\nto = "{other}"\nboth = true\n'
            text += f"bandwidth_mbit_s = {rng.choice((8, 80, 800))}\nlatency_ms = {rng.choice((0.001, 0.01, 0.03))}\n"
            text += f"joules_per_mb = {rng.choice((0, 1, 3))}\n"
    return parse(text)


def case(seed: int, labellings: int) -> tuple[Workload, Cluster]:
    """A model of five to eight blocks with limits on its error, pins, and devices with little memory. Blocks are pinned
    to devices until there are at most so many labellings."""
    rng = Random(seed)
    devices = cluster(rng)
    graph = made_up._graph(rng, rng.randint(5, 8))
    profile, error = made_up._profile(rng, graph, sparing=False), made_up._error(rng, graph)
    limits = made_up._limits(rng, graph, error)
    places = dict.fromkeys((block.name for block in graph.blocks), len(NAMES))
    while prod(places[block.name] * len(made_up.forms(block)) for block in graph.blocks) > labellings:
        places[rng.choice([name for name, count in places.items() if count > 1])] = 1
    pins = tuple((name, rng.choice(NAMES)) for name, count in places.items() if count == 1)
    limits = replace(limits, device_pins=pins)
    waking_s = rng.choice((0.0, 1e-5, 5e-5))
    profiles = {}
    for device, speed in zip(devices.devices, (1.0, rng.choice((2, 3)), rng.choice((4, 10))), strict=True):
        blocks = tuple(replace(b, seconds=b.seconds / speed * rng.uniform(0.8, 1.25)) for b in profile.blocks)
        glue = tuple(each.times(1.0 / speed, 1.0 / speed) for each in profile.glue)
        overhead_s = profile.overhead_s / speed + (waking_s if device.name != devices.start else 0.0)
        profiles[device.name] = replace(profile, blocks=blocks, glue=glue, overhead_s=overhead_s)
    bounds = None if limits.max_error is None else noise_limits(error, limits.max_error, 1.0)
    return Workload("m", graph, profiles, error, limits, noise_limits=bounds), devices


@dataclass(frozen=True, slots=True)
class _Choice:
    """Copies of a value, and what they add: seconds by device, and to the objective, resources and noise sums."""

    copies: dict[int, Copies]
    seconds: tuple[float, ...]
    amounts: tuple[float, ...]


class Trial:
    """Tries every labelling and every choice of copies of a problem on one model."""

    def __init__(self, assembled: Assembled, objective: Objective) -> None:
        self.assembled, self.objective, self.problem = assembled, objective, assembled.problem
        values = self.problem.values
        self.ends = [
            sorted({int(n) for n in (made, *values.readers[first:last]) if n >= 0})
            for made, first, last in zip(values.producer, values.start, values.start[1:], strict=False)
        ]
        self.known: dict[tuple[int, tuple[int, ...]], list[_Choice]] = {}
        self.best = inf
        # No amount may exceed these; the objective has no upper end.
        resources, noises = self.problem.resources, self.problem.noises
        self.uppers = [inf, *(each.upper for each in resources), *(each.upper for each in noises)]

    def least(self) -> float:
        """The least value of all placements with as few components as their devices allow; infinite without any."""
        allowed = self.problem.allowed.reshape(len(self.problem.nodes), -1)
        for labels in product(*(np.flatnonzero(row).tolist() for row in allowed)):
            options = [self._choices(value, labels) for value in range(len(self.ends))]
            unary = self._of_labels(labels)
            for chosen in product(*options):
                self._try(labels, chosen, [sum(column) for column in zip(unary, *(c.amounts for c in chosen))])
        return self.best

    def _of_labels(self, labels: Sequence[int]) -> list[float]:
        problem = self.problem
        amounts = [problem.constant] + [0.0] * (len(self.uppers) - 1)
        for node, label in enumerate(labels):
            device, form = problem.split(label)
            for index, resource in enumerate(problem.resources, 1):
                used = float(resource.device[device] * problem.seconds[node, device, form])
                amounts[index] += used
                amounts[0] += resource.weight * used
            for index, noise in enumerate(problem.noises, 1 + len(problem.resources)):
                amounts[index] += float(noise.own[node, form])
        return amounts

    def _choices(self, value: int, labels: Sequence[int]) -> list[_Choice]:
        key = value, tuple(labels[node] for node in self.ends[value])
        if key not in self.known:
            right = [] if broken_edges(self.problem, labels, value) else choices(self.problem, labels, value)
            self.known[key] = [self._choice(value, labels, copies) for copies in right]
        return self.known[key]

    def _choice(self, value: int, labels: Sequence[int], copies: dict[int, Copies]) -> _Choice:
        problem = self.problem
        use = use_of(problem, labels, value, copies)
        assert use is not None
        used = [of_use(resource, use, 0) for resource in problem.resources]
        noise = [sum(float((n.wire if wire else n.edge)[edge]) for edge, wire in use.edges) for n in problem.noises]
        cost = sum(resource.weight * amount for resource, amount in zip(problem.resources, used, strict=True))
        seconds = tuple(use.seconds.get(device, 0.0) for device in range(len(problem.devices)))
        return _Choice(copies, seconds, (cost, *used, *noise))

    def _try(self, labels: Sequence[int], chosen: Sequence[_Choice], amounts: Sequence[float]) -> None:
        problem, objective = self.problem, self.objective
        if any(over(amount, upper) for amount, upper in zip(amounts, self.uppers, strict=True)):
            return
        value, scheduled = amounts[0], objective.simulated or objective.kind == "throughput"
        if scheduled:  # a request, and the time between two, is no shorter than the work of a device
            work = [sum(choice.seconds[device] for choice in chosen) for device in range(len(problem.devices))]
            for node, label in enumerate(labels):
                device, form = problem.split(label)
                work[device] += float(problem.seconds[node, device, form])
            summed = sum(r.weight * used for r, used in zip(problem.resources, amounts[1:]) if r.kind == "latency")
            rest = 0.0 if objective.kind == "throughput" else amounts[0] - problem.constant - summed
            value = (objective.latency if objective.simulated else 1.0) * max(work) + rest
        if value >= self.best:
            return
        totals = evaluate(problem, labels, array_of(problem, [choice.copies for choice in chosen]))
        if totals.broken:
            return
        if scheduled and objective.simulated:
            value = objective.latency * latencies(self.assembled, totals)[0] + rest
        elif scheduled:
            value = period_s(self.assembled, totals)
        self.best = min(self.best, value)
