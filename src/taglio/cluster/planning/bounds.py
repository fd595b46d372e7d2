"""Lower bounds on partial placements of a small problem, many at once: whatever completes them takes at least so much.

* Of every sum (the objective, limited resources, noises, weights, busy seconds): what labels and copies add so far, the
  least that the other nodes can add, and the overhead of as many components as a path enters a device.
* Of the critical path of each model: the longest path through a node; and for each device and link the earliest start,
  its work, and the shortest rest of the request after it.

Does not search.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from math import inf

import numpy as np

from taglio.cluster.planning.assemble import Assembled, busy_times, request_shares
from taglio.cluster.planning.costs import TOLERANCE, Costs
from taglio.cluster.planning.critical_path import Paths
from taglio.cluster.planning.problem import CALLER, LATENCY, SOURCE, Copies, Kind, Resource
from taglio.cluster.planning.replay import NEVER, Timetable
from taglio.cluster.planning.workload import Objective

# Relative difference that is no improvement: sums in another order differ by rounding.
ROUNDING = 1e-9
# Steps towards good prices of busy seconds.
_PRICINGS = 60


@dataclass(frozen=True, slots=True, eq=False)
class Caps:
    """Limits that only a schedule shows: seconds of each model's critical path, and seconds between requests."""

    path_s: tuple[float, ...]
    period_s: float = inf


class Columns:
    """The sums to bound: their tables (last axis), limits, and the overhead of components by model and device."""

    def __init__(self, assembled: Assembled, objective: Objective, *, periods: bool) -> None:
        problem, cluster = assembled.problem, assembled.cluster
        models, devices = len(assembled.workloads), len(problem.devices)
        shares, apart = request_shares(assembled.workloads), np.zeros((devices, devices))
        held = [
            replace(each, weight=0.0) if objective.simulated and each.kind == LATENCY else each
            for each in problem.resources
        ]
        streams = busy_times(assembled.workloads, cluster, shares, inf, "period") if periods else ()
        busy = [
            Resource(f"busy {device}", np.eye(devices)[device], apart, apart, np.eye(models)[model])
            for model in range(models)
            for device in range(devices)
        ]
        resources = (*held, *streams, *busy)
        costs = Costs(replace(problem, resources=resources))
        first = 1 + len(held)
        self.periods = np.arange(first, first + len(streams))
        self.busy = np.arange(first + len(streams), first + len(streams) + len(busy)).reshape(models, devices)
        self.tables = tables = costs.sums
        self.limited = np.array([row.column for row in costs.rows], dtype=np.intp)
        uppers = np.array([row.unit * row.upper for row in costs.rows])
        self.uppers = uppers + TOLERANCE * np.maximum(1e-3, np.abs(uppers))
        # A component on the device that wrote a float value may quantise it from float instead of an anchor's layout.
        for column in (*self.periods, *self.busy.ravel()):
            tables.quantize[:, 1, :, column] = tables.quantize[..., column].min(axis=1)
        self.count = tables.unary.shape[-1]
        self.overhead = np.zeros((models, devices, self.count))
        self.base = np.zeros(self.count)
        self.fetches = np.zeros((models, devices, len(streams)))
        for index, each in enumerate(streams):
            if each.fetch is not None:
                self.fetches[:, :, index] = each.models[:, None] * each.fetch
        begun, request_s = problem.devices.index(cluster.start), cluster.device(cluster.start).request_s
        for index, each in enumerate(resources, 1):
            self.overhead[:, :, index] = each.models[:, None] * each.device * assembled.overhead_s
            if index in self.periods:
                self.base[index] = float(each.models.sum() * each.device[begun]) * request_s
        self.objective, self.constant = objective, problem.constant
        # A change of type that saves time may count for another component than in these sums.
        self.spares = any(bool((each < 0.0).any()) for each in (tables.quantize, tables.dequantize, tables.unary))

    def value(self, sums: np.ndarray, path_s: np.ndarray, period: np.ndarray) -> np.ndarray:
        """The objective by row, from its sums, the mean seconds of its critical paths, and its period."""
        if self.objective.kind == "throughput":
            return period
        if self.objective.simulated:
            return np.asarray(self.objective.latency * path_s + sums[:, 0])
        return np.asarray(sums[:, 0] + self.constant)


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Partial placements: labels (row, node), copies (row, value, device), sums so far (row, sum), least seconds of
    each node, until its inputs have arrived and until it ends (row, node), entries into each device on a path to it
    (row, node, device), and the bound on the objective."""

    labels: np.ndarray
    copies: np.ndarray
    sums: np.ndarray
    seconds: np.ndarray
    arrived: np.ndarray
    ends: np.ndarray
    entries: np.ndarray
    bound: np.ndarray

    def take(self, which: np.ndarray | slice) -> "Rows":
        """Some of the rows, perhaps repeated."""
        return Rows(*(getattr(self, each.name)[which] for each in fields(self)))

    def __len__(self) -> int:
        return len(self.bound)


def joined(rows: Sequence[Rows]) -> Rows:
    """All rows in one."""
    return Rows(*(np.concatenate([getattr(part, each.name) for part in rows]) for each in fields(Rows)))


class Bounds:
    """The bounds of a problem. `alive` are the labels of each node that are possible on their own, `ends` the nodes
    that write or read each value."""

    def __init__(self, assembled: Assembled, objective: Objective, caps: Caps) -> None:
        self.assembled, self.caps = assembled, caps
        self.streamed = caps.period_s < inf or objective.kind == "throughput"
        self.path_caps = np.array(caps.path_s) * (1.0 + 1e-6)
        self.shares = request_shares(assembled.workloads)
        self.problem, self.costs = assembled.problem, Costs(assembled.problem)
        self.columns = Columns(assembled, objective, periods=self.streamed)
        self.paths = [Paths(Timetable(assembled, model)) for model in range(len(assembled.workloads))]
        self.alive = [np.flatnonzero(row) for row in self.costs.possible()]
        self.device = self.costs.label_device
        values = self.problem.values
        ends = zip(values.producer.tolist(), values.start, values.start[1:], strict=False)
        self.ends = [_nodes([made, *values.readers[first:last].tolist()]) for made, first, last in ends]
        # By node, the nodes that it reads from.
        self.sources: list[list[int]] = [[] for _ in self.problem.nodes]
        for value, reader in zip(values.edge_value().tolist(), values.readers.tolist(), strict=True):
            if reader != CALLER and values.producer[value] != SOURCE:
                self.sources[reader].append(int(values.producer[value]))
        self.seconds = np.concatenate([each.seconds for each in self.paths])
        self._later_s = np.concatenate([each.after(np.zeros(len(self.problem.noises))) for each in self.paths])
        # By node and label, the most seconds of its device that hand an output over.
        self._before_s = np.concatenate([_before_s(paths) for paths in self.paths])
        spared = np.minimum(0.0, self.seconds.min(axis=1))[:, None]
        self._spared = _later(spared * (self.problem.model[:, None] == np.arange(len(self.paths))))
        self._rest_of = self._rest()
        self._prices, self._priced_rest = self._priced()

    def _rest(self) -> np.ndarray:
        """By number of labelled nodes, the least that the others and their values can add to each sum."""
        tables, fan_out = self.columns.tables, self.costs.fan_out[:, None]
        least = np.array([tables.unary[node, labels].min(axis=0) for node, labels in enumerate(self.alive)])
        saved = self.costs.devices * np.minimum(0.0, tables.quantize).min(axis=(1, 2))
        saved = saved + fan_out * np.minimum(0.0, tables.dequantize).min(axis=1)
        for value, ends in enumerate(self.ends):
            if len(ends):
                least[ends[-1]] += saved[value]
        return _later(least)

    def _priced(self) -> tuple[np.ndarray, np.ndarray]:
        """Shares of the busy seconds of devices and links at which their weighted mean is large whatever the labels,
        and by number of labelled nodes the least that the others add to that mean."""
        columns, tables = self.columns, self.columns.tables
        loads = [labels[alive][:, columns.periods] for labels, alive in zip(tables.unary, self.alive, strict=True)]
        prices = np.full(len(columns.periods), 1.0 / max(1, len(columns.periods)))
        best = -inf, prices
        for _ in range(_PRICINGS * self.streamed):
            busy_s = np.sum([load[(load @ prices).argmin()] for load in loads], axis=0)
            best = max(best, (float(busy_s @ prices), prices), key=lambda pair: pair[0])
            prices = prices * np.exp(0.3 * busy_s / max(1e-12, float(busy_s.max())))
            prices = prices / prices.sum()
        rest = _later(np.array([[float((load @ best[1]).min())] for load in loads]))[:, 0]
        saved = np.minimum(0.0, tables.quantize).sum(axis=(0, 1, 2)) * self.costs.devices
        saved = saved + (self.costs.fan_out[:, None] * np.minimum(0.0, tables.dequantize).min(axis=1)).sum(axis=0)
        rest[:-1] += float(saved[columns.periods] @ best[1])
        return best[1], rest

    def own_s(self, rows: Rows) -> np.ndarray:
        """Least seconds of each node (row, node) of complete placements, less all that changes of type at its inputs
        and outputs may save: another component of its device may be without them."""
        problem, values, every = self.problem, self.problem.values, np.arange(len(rows))
        own = problem.seconds.reshape(len(problem.nodes), -1)[np.arange(len(problem.nodes)), rows.labels]
        if not self.columns.spares:
            return np.asarray(own)
        quantize, dequantize = np.minimum(0.0, values.quantize_s.min(axis=1)), np.minimum(0.0, values.dequantize_s)
        for value, reader in zip(values.edge_value().tolist(), values.readers.tolist(), strict=True):
            made = int(values.producer[value])
            whole, int8 = (np.zeros(len(rows), dtype=bool) for _ in range(2))
            here = to = np.full(len(rows), values.home[value])
            if made >= 0:
                here = self.device[rows.labels[:, made]]
                whole = self.costs.label_writes[rows.labels[:, made]] == Kind.INT8
            if reader >= 0:
                to = self.device[rows.labels[:, reader]]
                int8 = self.costs.label_reads[rows.labels[:, reader]] == Kind.INT8
            narrow = rows.copies[every, value, to] == int(Copies.INT8)
            if made >= 0:
                own[:, made] += np.where(~whole & (int8 | narrow), quantize[value, here], 0.0)
            if reader >= 0:
                own[:, reader] += np.where(int8 & ~whole, quantize[value, to], 0.0)
                own[:, reader] += np.where(~int8 & (whole | narrow), dequantize[value, to], 0.0)
        return np.asarray(own)

    def lengthen(self, rows: Rows, node: int, own_s: np.ndarray) -> None:
        """Set when the node, which takes `own_s` by row, starts and ends at least, and how often paths to it enter
        devices."""
        model = int(self.problem.model[node])
        paths, first = self.paths[model], self.assembled.first_node[model]
        label, every = rows.labels[:, node], np.arange(len(rows))
        here, overhead_s = self.device[label], self.assembled.overhead_s[model]
        edges = paths.reads[node - first]
        starts, arrived = np.zeros(len(rows)), np.zeros(len(rows))
        entries = np.zeros((len(rows), self.costs.devices), dtype=np.int8)
        if not edges:
            starts, entries[every, here] = overhead_s[here], 1
        for edge in edges:
            copies = rows.copies[every, edge.value, here]
            if edge.producer is None:
                came, before = edge.seconds[copies, 0, label], np.zeros_like(entries)
                before[every, here], after_s = 1, edge.after_s[copies, 0, label]
            else:
                made = rows.labels[:, first + edge.producer]
                came = rows.ends[:, first + edge.producer] + edge.seconds[copies, made, label]
                before = rows.entries[:, first + edge.producer].copy()
                before[every, here] += self.device[made] != here
                after_s = edge.after_s[copies, made, label]
            arrived = np.maximum(arrived, came - after_s)
            starts, entries = np.maximum(starts, came), np.maximum(entries, before)
        rows.arrived[:, node], rows.entries[:, node] = arrived, entries
        rows.seconds[:, node], rows.ends[:, node] = own_s, starts + np.maximum(0.0, own_s)

    def _after(self, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        """Seconds from the end of each node to the last answer at least (row, node), and without those in which its
        device changes the types of its outputs."""
        after, away, every = np.zeros_like(rows.ends), np.zeros_like(rows.ends), np.arange(len(rows))
        for node in reversed(range(after.shape[1])):
            model = int(self.problem.model[node])
            paths, first = self.paths[model], self.assembled.first_node[model]
            label, here = rows.labels[:, node], self.device[rows.labels[:, node]]
            for edge in paths.answers[node - first]:
                copies = rows.copies[every, edge.value, paths.table.home]
                seconds = edge.seconds[copies, label, 0]
                after[:, node] = np.maximum(after[:, node], seconds)
                away[:, node] = np.maximum(away[:, node], seconds - edge.before_s[copies, label, 0])
            left = np.maximum(0.0, rows.seconds[:, node]) + after[:, node]
            for edge in paths.reads[node - first]:
                if edge.producer is not None:
                    made = first + edge.producer
                    at = rows.copies[every, edge.value, here], rows.labels[:, made], label
                    after[:, made] = np.maximum(after[:, made], left + edge.seconds[at])
                    away[:, made] = np.maximum(away[:, made], left + edge.seconds[at] - edge.before_s[at])
        return after, away

    def of(
        self,
        rows: Rows,
        depth: int,
        *,
        complete: bool = False,
        components: np.ndarray | float = 0.0,
        least_s: np.ndarray | float = 0.0,
    ) -> tuple[np.ndarray, np.ndarray]:
        """A lower bound on the objective of whatever completes each row, and whether it may keep all limits. `complete`
        rows have all labels and copies; they may have at least so many `components` (row, model, device) and take
        `least_s` (row, model)."""
        after, away = self._after(rows) if complete else (None, None)
        counts = np.zeros((len(rows), len(self.paths), self.costs.devices))
        paths_s = np.zeros((len(rows), len(self.paths)))
        for model in range(len(self.paths)):
            nodes = self.assembled.nodes(model)
            mine = np.arange(nodes.start, min(nodes.stop, depth))
            if len(mine):
                counts[:, model] = rows.entries[:, mine].max(axis=1)
        counts = np.maximum(counts, components)
        for model in range(len(self.paths)):
            nodes = self.assembled.nodes(model)
            mine = np.arange(nodes.start, min(nodes.stop, depth))
            if len(mine):
                labels = rows.labels[:, mine]
                rest = self._later_s[mine, labels] if after is None else after[:, mine]
                left = rest - self._before_s[mine, labels] if away is None else away[:, mine]
                # Time saved in one node of a component may be that of another.
                spared = np.minimum(0.0, rows.seconds[:, mine]).sum(axis=1) + self._spared[depth, model]
                paths_s[:, model] = self._path_s(rows, model, mine, counts[:, model], (rest, left)) + spared
        if after is not None:
            self._raise_by_links(rows, after, paths_s)
        return self._judged(rows, depth, counts, np.maximum(paths_s, least_s))

    def _judged(self, rows: Rows, depth: int, counts: np.ndarray, paths_s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The same, from the least number of components (row, model, device) and seconds of requests (row, model)."""
        columns = self.columns
        sums = rows.sums + columns.base
        sums += np.tensordot(counts + self._changing(rows), columns.overhead, axes=2)
        if self.streamed:
            sums[:, columns.periods] += self._fetching(rows, depth)
        low = sums + self._rest_of[depth]
        # The busy seconds of all devices together have a bound where those of each have none.
        period = np.maximum(
            low[:, columns.periods].max(axis=1, initial=0.0),
            sums[:, columns.periods] @ self._prices + self._priced_rest[depth],
        )
        value = columns.value(low, paths_s @ self.shares, period)
        kept = (low[:, columns.limited] <= columns.uppers).all(axis=1)
        kept &= (paths_s <= self.path_caps).all(axis=1) & (paths_s < NEVER / 10).all(axis=1)
        kept &= period <= self.caps.period_s * (1.0 + ROUNDING)
        return value, kept

    def _changing(self, rows: Rows) -> np.ndarray:
        """Components of the start device that only change types (row, model, device): one quantises inputs that are
        sent as int8, another dequantises outputs that arrive as int8."""
        values, home = self.problem.values, self.paths[0].table.home
        counts = np.zeros((len(rows), len(self.paths), self.costs.devices))
        called = np.zeros(len(values), dtype=bool)
        called[values.edge_value()[values.readers == CALLER]] = True
        for model in range(len(self.paths)):
            inputs = np.flatnonzero((values.model == model) & (values.producer == SOURCE))
            outputs = np.flatnonzero((values.model == model) & (values.producer != SOURCE) & called)
            narrow = int(Copies.INT8)
            counts[:, model, home] += (rows.copies[:, inputs] == narrow).any(axis=(1, 2))
            counts[:, model, home] += (rows.copies[:, outputs, home] == narrow).any(axis=1)
        return counts

    def _raise_by_links(self, rows: Rows, after: np.ndarray, paths_s: np.ndarray) -> None:
        """Raise the seconds of requests of complete placements to what their links need: a link sends one tensor at a
        time."""
        values = self.problem.values
        for model, paths in enumerate(self.paths):
            table, here = paths.table, self.assembled.nodes(model)
            mine = [v for v in np.flatnonzero(values.model == model).tolist() if self.ends[v]]
            spared = np.minimum(0.0, rows.seconds[:, here.start : here.stop]).sum(axis=1)
            for source, target in product(range(self.costs.devices), repeat=2):
                if source == target:
                    continue
                busy, begun, left = np.zeros(len(rows)), np.full(len(rows), inf), np.full(len(rows), inf)
                for value in mine:
                    made = int(values.producer[value])
                    writes = self.device[rows.labels[:, made]] if made >= 0 else np.full(len(rows), values.home[value])
                    copy = rows.copies[:, value, target]
                    sent = (copy > 0) & (writes == source)
                    if not sent.any():
                        continue
                    size = np.where(copy == int(Copies.INT8), values.int8_bytes[value], values.float_bytes[value])
                    busy += np.where(sent, table.gap_s[source, target] + size * table.byte_s[source, target], 0.0)
                    ends = rows.ends[:, made] if made >= 0 else np.zeros(len(rows))
                    begun = np.where(sent, np.minimum(begun, ends), begun)
                    for reader in values.readers[values.start[value] : values.start[value + 1]].tolist():
                        rest, there = np.zeros(len(rows)), np.full(len(rows), values.home[value])
                        if reader >= 0:
                            rest = (
                                np.maximum(0.0, rows.seconds[:, reader]) + after[:, reader] + table.overhead_s[target]
                            )
                            there = self.device[rows.labels[:, reader]]
                        left = np.where(sent & (there == target), np.minimum(left, rest), left)
                taken = begun + busy + table.delay_s[source, target] + left + spared
                paths_s[:, model] = np.where(busy > 0.0, np.maximum(paths_s[:, model], taken), paths_s[:, model])

    def _path_s(
        self, rows: Rows, model: int, mine: np.ndarray, entries: np.ndarray, after: tuple[np.ndarray, np.ndarray]
    ) -> np.ndarray:
        """Least seconds of a model's request: of paths through its nodes, and of what each device has to do. `after`
        each node (see `_after`)."""
        columns = self.columns
        rest, away = after
        longest = (rows.ends[:, mine] + rest).max(axis=1)
        device = self.device[rows.labels[:, mine]]
        own = np.maximum(0.0, rows.seconds[:, mine])
        for place, overhead_s in enumerate(self.assembled.overhead_s[model].tolist()):
            here = device == place
            work = np.where(here, own, 0.0).sum(axis=1)
            if not columns.spares:
                work = np.maximum(work, rows.sums[:, columns.busy[model, place]])
            begun = np.where(here, rows.arrived[:, mine], inf).min(axis=1)
            left = np.where(here, away, inf).min(axis=1)
            taken = begun + work + entries[:, place] * overhead_s + left
            longest = np.maximum(longest, np.where(here.any(axis=1), taken, 0.0))
        return np.asarray(longest)

    def _fetching(self, rows: Rows, depth: int) -> np.ndarray:
        """Least seconds that calls for messages keep each device and link busy (row, period). A message holds tensors
        that the same components read: the start device's, the one that dequantises outputs, the caller itself, or
        some of these."""
        values, home = self.problem.values, self.paths[0].table.home
        result = np.zeros((len(rows), len(self.columns.periods)))
        for model in range(len(self.paths)):
            sent = np.flatnonzero((values.model == model) & (values.producer >= 0) & (values.producer < depth))
            made = self.device[rows.labels[:, values.producer[sent]]]
            readers = np.zeros(made.shape, dtype=int)
            for column, value in enumerate(sent.tolist()):
                readers[:, column] = self._read_at_home(rows, value)
            for place in range(self.costs.devices):
                back = (rows.copies[:, sent, home] > 0) & (made == place)
                kinds = [(back & (readers == kind)).any(axis=1) for kind in range(5)]
                calls = np.sum(kinds, axis=0)
                result += calls[:, None] * self.columns.fetches[model, place]
        return result

    def _read_at_home(self, rows: Rows, value: int) -> np.ndarray:
        """Which kind of readers a value has on the start device, a number by row."""
        values, home = self.problem.values, self.paths[0].table.home
        readers = values.readers[values.start[value] : values.start[value + 1]]
        blocks = readers[readers >= 0]
        here = (self.device[rows.labels[:, blocks]] == home).any(axis=1)
        if len(blocks) == len(readers):
            return np.zeros(len(rows), dtype=int)
        return np.asarray(1 + 2 * here + (rows.copies[:, value, home] == int(Copies.INT8)))


def _before_s(paths: Paths) -> np.ndarray:
    """By node and label, the most seconds of its device for changing the type of an output that is sent."""
    most = np.zeros_like(paths.seconds)
    for node, edges in enumerate(paths.answers):
        for edge in edges:
            most[node] = np.maximum(most[node], edge.before_s[0].max(axis=1))
    for edge in (edge for edges in paths.reads for edge in edges):
        if edge.producer is not None:
            most[edge.producer] = np.maximum(most[edge.producer], edge.before_s[0].max(axis=1))
    return most


def _later(by_node: np.ndarray) -> np.ndarray:
    """By number of labelled nodes, the sum over the others (node, sum)."""
    return np.concatenate([np.cumsum(by_node[::-1], axis=0)[::-1], np.zeros((1, by_node.shape[1]))])


def _nodes(ends: Sequence[int]) -> list[int]:
    """Distinct nodes in order; inputs and the caller have negative numbers."""
    return sorted({node for node in ends if node >= 0})
