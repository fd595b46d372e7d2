"""The critical path: the best placement found by simulated latency, and a proven lower bound on the latency of any.

Placements come from the plan with the least sum, the plans on one device, and an evolutionary search (evolution.py).

A request takes at least as long as any path of blocks and transfers, whatever else happens: at least the longest path
under its best labels. The bound ignores that a device runs one component at a time, so it is tight for chains and loose
for wide networks; it ignores limits, too. Two cases raise it: where all blocks run on the device that starts, a request
takes the sum of their seconds, which has a bound of its own with the limits; otherwise there is a block elsewhere, and
the longest path through it crosses links.
"""

import time

import numpy as np

from taglio.cluster.planning.assemble import Assembled
from taglio.cluster.planning.copies import serve
from taglio.cluster.planning.costs import BIG, Costs
from taglio.cluster.planning.evolution import evolve
from taglio.cluster.planning.path_search import PathSearch
from taglio.cluster.planning.problem import CALLER, LATENCY, SOURCE, Copies, Kind, Totals
from taglio.cluster.planning.tables import Priced
from taglio.cluster.planning.workload import Objective


def shorten(
    assembled: Assembled,
    objective: Objective,
    start: Totals,
    *,
    least: float,
    gap: float,
    time_limit_s: float,
) -> tuple[Totals, float, float]:
    """The best placement found from `start` (one within the limits), its value, and a lower bound on any value,
    once the gap is proven or time is up. `objective` weighs the critical path and the joules; `least` is a lower bound
    with the sum of seconds for the critical path."""
    started_s = time.perf_counter()
    search = PathSearch(assembled, objective)
    search.offer(start)
    bound = lower_bound(assembled, search.costs, objective.latency * search.shares, least)
    for _ in evolve(search, started_s + time_limit_s, good_enough=bound / (1.0 - gap)):
        pass
    assert search.best is not None, "the first placement keeps the limits"
    return search.best, search.value, min(bound, search.value)


def lower_bound(assembled: Assembled, costs: Costs, weights: np.ndarray, least: float) -> float:
    """Lower bound on the value of any placement, with the weight of each model's critical path; `least` bounds it with
    the sum of seconds in its place, which it is, beside the overhead of a component, on the device that starts."""
    models, home = range(len(assembled.workloads)), assembled.problem.devices.index(assembled.cluster.start)
    paths = np.array([Paths(assembled, costs, model).longest() for model in models])
    anywhere = float(weights @ paths[:, 0])
    away = float((weights * (paths[:, 1] - paths[:, 0])).min())
    return max(anywhere, min(anywhere + away, least + float(weights @ assembled.overhead_s[:, home])))


class Paths:
    """Paths through one model's graph: least seconds of nodes (node, label) and edges (producer's label, reader's
    label), whatever else happens. An input has one label, and so has the caller."""

    def __init__(self, assembled: Assembled, costs: Costs, model: int) -> None:
        problem, values, nodes = assembled.problem, assembled.problem.values, assembled.nodes(model)
        own = slice(nodes.start, nodes.stop)
        self.device, self.home = costs.label_device, problem.devices.index(assembled.cluster.start)
        self.overhead_s = assembled.overhead_s[model][self.device]
        column = [1 + i for i, resource in enumerate(problem.resources) if resource.kind == LATENCY][model]
        allowed = problem.allowed.reshape(len(problem.nodes), -1)[own]
        self.seconds = np.where(allowed, costs.sums.unary[own, :, column], BIG)
        # A component gets what its blocks save even if they are on no path through it.
        least = self.seconds.min(axis=1)
        self.saved = float(least[least < 0.0].sum())
        self.reads: list[list[tuple[int | None, np.ndarray]]] = [[] for _ in nodes]
        self.answers: list[list[np.ndarray]] = [[] for _ in nodes]
        table = edge_seconds(costs, costs.alone(column))
        for edge in np.flatnonzero(values.model[costs.edge_value] == model).tolist():
            producer, reader = int(values.producer[costs.edge_value[edge]]), int(values.readers[edge])
            start = np.array([int(Kind.FLOAT) * costs.devices + self.home]) if producer == SOURCE else costs.written
            end = np.array([self.home * 2]) if reader == CALLER else costs.read
            seconds = table[start[:, None], end, edge]
            if reader != CALLER:
                moves = start[:, None] % costs.devices != end // 2
                # A component begins, with its overhead.
                seconds = seconds + np.where(moves | (producer == SOURCE), self.overhead_s, 0.0)
                changes = start[:, None] // costs.devices != end % 2
                seconds = seconds + BIG * (values.strict[edge] & changes)
                writer = None if producer == SOURCE else producer - nodes.start
                self.reads[reader - nodes.start].append((writer, seconds))
            elif producer != SOURCE:
                self.answers[producer - nodes.start].append(seconds[:, 0])

    def longest(self) -> np.ndarray:
        """Length of the longest path, and the least of the longest ones through a block that is not on the device that
        starts: seconds under the best labels."""
        ends = np.zeros_like(self.seconds)
        for node, edges in enumerate(self.reads):
            start = np.zeros_like(self.overhead_s) if edges else self.overhead_s
            for producer, edge_s in edges:
                path_s = edge_s[0] if producer is None else (ends[producer][:, None] + edge_s).min(axis=0)
                start = np.maximum(start, path_s)
            ends[node] = start + self.seconds[node]
        through = ends + self.after()
        away = through[:, self.device != self.home].min(initial=BIG)
        return np.array([through.min(axis=1).max(initial=0.0), away]) + self.saved

    def after(self) -> np.ndarray:
        """Length of the longest path from the end of a node to the last answer (node, label), under the best labels of
        the other nodes."""
        onward_s = np.zeros_like(self.seconds)
        for node in reversed(range(len(onward_s))):
            for answer_s in self.answers[node]:
                onward_s[node] = np.maximum(onward_s[node], answer_s)
            for producer, edge_s in self.reads[node]:
                if producer is not None:
                    path_s = (edge_s + self.seconds[node] + onward_s[node]).min(axis=1)
                    onward_s[producer] = np.maximum(onward_s[producer], path_s)
        return np.asarray(onward_s)


def edge_seconds(costs: Costs, priced: Priced) -> np.ndarray:
    """The least seconds of each edge if it is its value's only one: (kind written · devices + device, device read · 2 +
    whether as int8, edge)."""
    apart = 1.0 - np.eye(costs.devices)
    value = costs.edge_value
    quantize, dequantize = priced.quantize[value], priced.dequantize[value]
    sent = {Copies.FLOAT: priced.send_float[value], Copies.INT8: priced.send_int8[value]}
    seconds = np.empty((len(Kind), costs.devices, costs.devices, len(Kind), len(value)))
    for written in Kind:
        whole = written == Kind.INT8
        for read in Kind:
            ways = []
            for copies in (Copies.FLOAT, Copies.INT8):
                changes = serve(whole, copies, np.array(read == Kind.INT8), np.array(read == Kind.FLOAT))
                way = sent[copies] * apart + changes.dequantized * dequantize[:, None, :]
                way = way + changes.quantized * quantize[:, :, None] + changes.quantized_there * quantize[:, None, :]
                ways.append(way)
            if whole:  # sent as int8
                least = ways[1]
            elif read == Kind.FLOAT and not costs.problem.wire_only:
                least = ways[0]
            else:
                least = np.minimum(*ways)
            seconds[written, :, :, read] = np.moveaxis(least, 0, -1)
    return seconds.reshape(len(Kind) * costs.devices, 2 * costs.devices, -1)
