"""The best placement so far by simulation. Proposes no placement."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf

import numpy as np

from taglio.cluster.planning.assemble import Assembled
from taglio.cluster.planning.costs import BIG, TOLERANCE, Costs
from taglio.cluster.planning.describe import amounts, loads_of
from taglio.cluster.planning.problem import CALLER, LATENCY, SOURCE, Copies, Totals
from taglio.cluster.planning.resources import busy_times, link_tables, request_shares
from taglio.cluster.planning.schedule import Scheduler
from taglio.cluster.planning.simulate import simulate
from taglio.cluster.planning.workload import Objective


class PathSearch:
    """Keeps the placement with the best simulated latency and joules, as weighed by an objective, of a problem without
    limits on latency: they do not apply to the sum of seconds. Of `children` changed placements, `simulations` are
    simulated."""

    children, simulations = 24, 24

    def __init__(self, assembled: Assembled, objective: Objective) -> None:
        self.assembled, self.latency = assembled, objective.latency
        problem = self.problem = assembled.problem
        self.home = problem.devices.index(assembled.cluster.start)
        self.costs = Costs(problem)
        self.shares = request_shares(assembled.workloads)
        self.schedulers = [Scheduler(assembled, model) for model in range(len(assembled.workloads))]
        # The weights of sums in the objective that the simulated value replaces.
        self.summed = np.array([resource.weight if resource.kind == LATENCY else 0.0 for resource in problem.resources])
        # Allowed usage of the limits that component overheads count towards: more if the first placement exceeds it.
        self.limited = [i for i, r in enumerate(problem.resources) if r.upper < inf and r.kind != LATENCY]
        self.uppers = np.array([problem.resources[i].upper for i in self.limited])
        self.best: Totals | None = None
        self.value = inf

    def worth(self, totals: Totals) -> float:
        """The value of a simulated placement: latency and joules."""
        ends_s = [simulate(scheduler.placed(totals)).end_s for scheduler in self.schedulers]
        besides_latency = totals.objective - self.problem.constant - float(self.summed @ totals.resources)
        return self.latency * float(self.shares @ ends_s) + besides_latency

    def simulated(self, totals: Totals) -> tuple[float, Totals]:
        """The value of a placement, whose components end at every block whose output leaves the device, if that is
        faster."""
        split = replace(totals, levels=self._levels(np.array(totals.labels)))
        return min(((self.worth(each), each) for each in (totals, split)), key=lambda pair: pair[0])

    def estimates(self, labels: np.ndarray, copies: np.ndarray, sums: np.ndarray) -> np.ndarray:
        """Estimated values of placements with these labels (placement, node), copies (placement, value, device) and
        sums (placement, sum): infinite if a limit is broken."""
        limits = np.array([row.unit * row.upper for row in self.costs.rows])
        columns = [row.column for row in self.costs.rows]
        over = sums[:, columns] > limits + TOLERANCE * np.maximum(1e-3, np.abs(limits))
        broken = over.any(axis=1) | (sums[:, 0] >= BIG / 10)
        return np.where(broken, inf, self._estimate(labels, copies, sums))

    def kept(self, totals: Totals) -> bool:
        """Whether a placement keeps all limits."""
        return not totals.broken and self._has_room(totals)

    def offer(self, totals: Totals) -> None:
        """Keep a placement if it is within the limits and the best so far."""
        if self.kept(totals) and (value := self.worth(totals)) < self.value:
            self.best, self.value = totals, value

    def _estimate(self, labels: np.ndarray, copies: np.ndarray, sums: np.ndarray) -> np.ndarray:
        """Estimated values: all seconds added up, with as few components as paths allow."""
        components = zip(self._components(labels, copies), self.assembled.overhead_s, strict=True)
        overhead_s = np.array([counts @ overhead_s for counts, overhead_s in components])
        return np.asarray(sums[:, 0] - self.problem.constant + self.latency * (self.shares @ overhead_s))

    def _components(self, labels: np.ndarray, copies: np.ndarray) -> Iterator[np.ndarray]:
        """By model, the fewest components on each device (placement, device) that paths allow."""
        values, device = self.problem.values, labels // len(self.problem.forms)
        called = np.isin(np.arange(len(values)), self.costs.edge_value[values.readers == CALLER])
        for model, scheduler in enumerate(self.schedulers):
            own, nodes = values.model == model, scheduler.nodes
            counts = component_counts(scheduler.sources, device[:, nodes.start : nodes.stop], len(self.problem.devices))
            # Separate components quantise inputs that are sent as int8, and dequantise outputs that arrive as int8.
            inputs, outputs = copies[:, own & (values.producer == SOURCE)], copies[:, own & called, self.home]
            counts[:, self.home] += (inputs == Copies.INT8).any(axis=(1, 2))
            counts[:, self.home] += (outputs == Copies.INT8).any(axis=1)
            yield counts

    def _has_room(self, totals: Totals) -> bool:
        """Whether there is room for the overheads of its components, or at least as much as in the first placement."""
        if not self.limited:
            return True
        used = amounts(self.assembled, [scheduler.placed(totals) for scheduler in self.schedulers])[self.limited]
        if self.best is None:
            self.uppers = np.maximum(self.uppers, used)
        return bool((used <= self.uppers * (1.0 + 1e-9)).all())

    def _levels(self, labels: np.ndarray) -> tuple[int, ...]:
        """Levels (schedule.py) that end a component at each block whose output leaves the device."""
        values, device = self.problem.values, labels // len(self.problem.forms)
        producer, home = values.producer[self.costs.edge_value], values.home[self.costs.edge_value]
        target = np.where(values.readers == CALLER, home, device[np.maximum(values.readers, 0)])
        sends, levels = np.zeros((2, len(labels)), dtype=np.intp)
        sends[producer[(producer != SOURCE) & (target != device[np.maximum(producer, 0)])]] = 1
        for here in device == np.arange(len(self.problem.devices))[:, None]:
            levels[here] = np.cumsum(sends[here]) - sends[here]
        return tuple(levels.tolist())


# What a second of a request counts beside one of the period.
_SPARING = 3e-4


class PeriodSearch(PathSearch):
    """Keeps the placement with the shortest period (busy seconds of the busiest device or link), and of those that are
    nearly as short, one whose requests take fewer seconds. Limits on latency apply to the sum of seconds. The busy
    seconds of devices are resources of its problem."""

    children, simulations = 400, 8

    def __init__(self, assembled: Assembled) -> None:
        cluster, resources = assembled.cluster, assembled.problem.resources
        devices = [device.name for device in cluster.devices]
        periods = busy_times(assembled.workloads, cluster, request_shares(assembled.workloads), inf, "period")
        self.periods, self.first = periods[: len(devices)], 1 + len(resources)
        super().__init__(assembled.with_problem(resources=(*resources, *self.periods)), Objective("throughput"))
        _, byte_s, _, self.gap_s = link_tables(cluster)
        self.byte_s = np.nan_to_num(byte_s, posinf=0.0)
        self.turns = np.array([[cluster.turns(one, other) for other in devices] for one in devices])

    def worth(self, totals: Totals) -> float:
        """The period of a placement, and a little of a request's seconds."""
        pipelines = [scheduler.placed(totals) for scheduler in self.schedulers]
        return max(loads_of(self.assembled, pipelines).values(), default=0.0) + _SPARING * totals.objective

    def simulated(self, totals: Totals) -> tuple[float, Totals]:
        """The value of a placement, whose components are as few as possible."""
        return self.worth(totals), totals

    def _estimate(self, labels: np.ndarray, copies: np.ndarray, sums: np.ndarray) -> np.ndarray:
        """Estimated values, with as few components as paths allow."""
        device_s = sums[:, self.first : self.first + len(self.periods)].copy()
        for model, counts in enumerate(self._components(labels, copies)):
            weights = np.array([period.models[model] for period in self.periods])
            device_s += counts * self.assembled.overhead_s[model] * weights
        link_s = self._link_s(labels // len(self.problem.forms), copies)
        busiest_s = np.maximum(device_s.max(axis=1), link_s.max(axis=(1, 2)))
        return np.asarray(busiest_s + _SPARING * sums[:, 0])

    def _link_s(self, device: np.ndarray, copies: np.ndarray) -> np.ndarray:
        """Busy seconds of links (placement, from, to) for devices (placement, node) and copies (placement, value,
        device)."""
        values = self.problem.values
        placement, value, target = np.nonzero(copies)
        producer = values.producer[value]
        source = np.where(producer == SOURCE, self.home, device[placement, np.maximum(producer, 0)])
        int8 = copies[placement, value, target] == Copies.INT8
        sizes = np.where(int8, values.int8_bytes[value], values.float_bytes[value])
        seconds = self.gap_s[source, target] + sizes * self.byte_s[source, target]
        link_s = np.zeros((len(device), *self.gap_s.shape))
        np.add.at(link_s, (placement, source, target), self.shares[values.model[value]] * seconds)
        return np.asarray(link_s / self.turns)


def component_counts(sources: Sequence[Sequence[int]], device: np.ndarray, devices: int) -> np.ndarray:
    """The fewest components on each device (placement, device) of placements (placement, node) that the paths through
    them allow; `sources` are the earlier nodes that each node reads from."""
    every = np.arange(len(device))
    counts = np.zeros((len(sources), len(device), devices), dtype=np.intp)  # on the paths to each node
    for node, read in enumerate(sources):
        here = device[:, node]
        counts[node, every, here] = 1
        for source in read:
            entered = counts[source, every, here] + (device[:, source] != here)
            entered = np.maximum(entered, counts[node, every, here])
            np.maximum(counts[node], counts[source], out=counts[node])
            counts[node, every, here] = entered
    return np.asarray(counts.max(axis=0))
