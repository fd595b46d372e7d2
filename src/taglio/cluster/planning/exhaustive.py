"""Place small problems on several devices by enumeration: the best placement by any objective, with a proof.

The nodes take their labels (device, form) in execution order, and a value takes its copies once all its ends have
labels. Thousands of partial placements are extended at once. Those whose bound (bounds.py) breaks a limit or is no less
than the best cost are dropped; the deepest and cheapest are extended first. A complete placement is scheduled with few
components (schedule.py). If its bound is still below the best cost in the end, it is also scheduled with its blocks
split into more components (splits.py). All values are those of the schedule, as in a plan.

Out of time, it returns the bound that it reached.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf

import numpy as np

from taglio.cluster.planning.assemble import Assembled
from taglio.cluster.planning.bounds import ROUNDING, Bounds, Caps, Rows, joined
from taglio.cluster.planning.costs import Costs, over, ramp
from taglio.cluster.planning.describe import beyond_blocks, period_s
from taglio.cluster.planning.merge import merged
from taglio.cluster.planning.problem import LATENCY, Copies, Totals
from taglio.cluster.planning.schedule import Scheduler
from taglio.cluster.planning.simulate import simulate
from taglio.cluster.planning.splits import components, latencies_s, splits
from taglio.cluster.planning.workload import Objective

# Most labellings that are enumerated: those of ten blocks in three forms on three devices. Most devices: each value may
# be sent to each of them in two ways.
_MOST, _MOST_DEVICES = 1e10, 6
# Partial placements extended at once; the cheapest complete ones of these that are scheduled at once; and splits that
# are compared at once.
_BATCH, _OFFERED, _SPLITS = 2048, 4, 20_000


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """The best placement (None if none was found), its value, and a lower bound on any: infinite if there is none."""

    totals: Totals | None
    value: float
    bound: float

    @property
    def gap(self) -> float:
        """Proven relative distance from the optimum."""
        return max(0.0, self.value - self.bound) / max(abs(self.value), 1e-12) if self.totals is not None else inf


def few_placements(assembled: Assembled) -> bool:
    """Whether a problem is small enough to enumerate: by the labels that are possible each on its own."""
    labellings = Costs(assembled.problem).possible().sum(axis=1).prod(dtype=float)
    return len(assembled.problem.devices) <= _MOST_DEVICES and bool(labellings <= _MOST)


def enumerate_placements(
    assembled: Assembled,
    objective: Objective,
    caps: Caps,
    start: Sequence[Totals] = (),
    *,
    gap: float,
    time_limit_s: float,
) -> Found:
    """The best placement within the limits and `caps`. LATENCY resources must have no limit of their own: a limit on
    latency is one on the critical path. `start` are placements to compare with. In the second half of the time a
    placement within `gap` of the best is enough."""
    if not Costs(assembled.problem).possible().any(axis=1).all():  # a node breaks a limit in every form on every device
        return Found(None, inf, inf)
    search = _Search(assembled, objective, caps, gap, time_limit_s)
    for totals in start:
        search.offer(totals)
    return search.run()


class _Search:
    def __init__(self, assembled: Assembled, objective: Objective, caps: Caps, gap: float, time_limit_s: float) -> None:
        now = time.perf_counter()
        self.exact_until, self.deadline = now + time_limit_s / 2, now + time_limit_s
        self.assembled, self.objective, self.caps, self.gap = assembled, objective, caps, gap
        self.bounds = Bounds(assembled, objective, caps)
        self.problem, self.costs = assembled.problem, self.bounds.costs
        self.schedulers = [Scheduler(assembled, model) for model in range(len(assembled.workloads))]
        # By node, the values whose last end it is.
        self.completed: list[list[int]] = [[] for _ in self.problem.nodes]
        for value, ends in enumerate(self.bounds.ends):
            if len(ends):
                self.completed[ends[-1]].append(value)
        self.best: Totals | None = None
        self.value, self.low = inf, inf  # the best value; the least bound of what is left unexplored
        self.open: list[Rows] = []

    def run(self) -> Found:
        """Explore all placements, or as many as there is time for."""
        self._extend_all()
        self._split_all()
        return Found(self.best, self.value, min(self.value, self.low))

    def _cutoff(self) -> float:
        """Cost from which on placements are of no use."""
        share = ROUNDING if time.perf_counter() < self.exact_until else 0.9 * self.gap
        return self.value - share * abs(self.value) if self.best is not None else inf

    def _extend_all(self) -> None:
        nodes, values, devices = len(self.problem.nodes), len(self.problem.values), self.costs.devices
        count = self.bounds.columns.count
        shapes = ((nodes,), (values, devices), (count,), (nodes,), (nodes,), (nodes,), (nodes, devices), ())
        kinds = (np.int16, np.int8, float, float, float, float, np.int8, float)
        first = Rows(*(np.zeros((1, *shape), dtype=kind) for shape, kind in zip(shapes, kinds, strict=True)))
        waiting = [(0, replace(first, bound=np.full(1, -inf)))]
        while waiting:
            depth, rows = waiting.pop()
            rows = rows.take(rows.bound < self._cutoff())
            if len(rows) and time.perf_counter() > self.deadline:
                self.low = min(self.low, *(float(left.bound.min()) for _, left in [(depth, rows), *waiting]))
                return
            if not len(rows):
                continue
            if depth == nodes:
                self._complete(rows)
                continue
            rows = self._extended(rows, depth)
            rows = rows.take(np.argsort(rows.bound, kind="stable"))
            begins = reversed(range(0, len(rows), _BATCH))  # the cheapest on top
            waiting += [(depth + 1, rows.take(slice(begin, begin + _BATCH))) for begin in begins]

    def _promising(self, rows: Rows, depth: int, *, complete: bool = False) -> Rows:
        """The rows that may keep all limits and cost less than the best, with their bound."""
        bound, kept = self.bounds.of(rows, depth, complete=complete)
        return replace(rows, bound=np.maximum(rows.bound, bound)).take(kept & (bound < self._cutoff()))

    def _extended(self, rows: Rows, node: int) -> Rows:
        """The rows with each label of the next node and each choice of the copies of the values that it completes."""
        labels = self.bounds.alive[node]
        label = np.tile(labels, len(rows))
        rows = rows.take(np.repeat(np.arange(len(rows)), len(labels)))
        rows.labels[:, node] = label
        rows = replace(rows, sums=rows.sums + self.bounds.columns.tables.unary[node, label])
        for value in self.completed[node]:
            rows = self._with_copies(rows, value)
        self.bounds.lengthen(rows, node, self.bounds.seconds[node, rows.labels[:, node]])
        return self._promising(rows, node + 1)

    def _with_copies(self, rows: Rows, value: int) -> Rows:
        """The rows with each choice of a value's copies; their cost depends on the labels at its ends alone."""
        ends = self.bounds.ends[value]
        shape = (self.costs.labels,) * len(ends)
        keys, key = np.unique(np.ravel_multi_index(tuple(rows.labels[:, ends].T), shape), return_inverse=True)
        copies, amounts, of_key = self._choices(value, np.array(np.unravel_index(keys, shape)))
        first, last = (np.searchsorted(of_key, np.arange(len(keys)), side) for side in ("left", "right"))
        counts = (last - first)[key]
        which = np.repeat(np.arange(len(rows)), counts)
        choice = first[key][which] + ramp(counts)
        rows = rows.take(which)
        rows.copies[:, value] = copies[choice]
        return replace(rows, sums=rows.sums + amounts[choice])

    def _choices(self, value: int, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """For labels (end, key) of a value's ends: every choice of its copies (choice, device), what it adds to the
        sums (choice, sum), and its key, ascending."""
        costs, strict = self.costs, self.problem.values.strict
        kinds = np.array(list(product((0, int(Copies.FLOAT), int(Copies.INT8)), repeat=costs.devices)))
        key, copies = np.repeat(np.arange(labels.shape[1]), len(kinds)), np.tile(kinds, (labels.shape[1], 1))
        place = np.zeros(len(self.problem.nodes), dtype=np.intp)
        place[self.bounds.ends[value]] = np.arange(len(labels))
        ends = costs.ends_of(np.full(len(key), value), lambda number, node: labels[place[node], key[number]])
        reads = costs.label_reads[labels[place[np.maximum(costs.readers[ends.edge], 0)], key[ends.owner]]]
        right = costs.serves(ends, copies)
        right[ends.owner[strict[ends.edge] & (reads != ends.kind[ends.owner])]] = False
        key, copies = key[right], copies[right]
        ends = costs.ends_of(np.full(len(key), value), lambda number, node: labels[place[node], key[number]])
        return copies, costs.by_value(self.bounds.columns.tables, ends, costs.given(ends, copies)), key

    def _complete(self, rows: Rows) -> None:
        """Offer placements whose labels and copies are complete, the cheapest first."""
        own_s = self.bounds.own_s(rows)
        for node in range(rows.labels.shape[1]):  # the copies of some values were open before
            self.bounds.lengthen(rows, node, own_s[:, node])
        rows = self._promising(rows, rows.labels.shape[1], complete=True)
        rows = rows.take(self.costs.fits(rows.labels, rows.copies))
        rows = rows.take(np.argsort(rows.bound, kind="stable"))
        for index, bound in enumerate(rows.bound.tolist()):
            if bound >= self._cutoff():
                return
            if time.perf_counter() > self.deadline:
                self.low = min(self.low, bound)
                return
            value = inf
            if index < _OFFERED:
                labels, copies = rows.labels[index].astype(np.intp), rows.copies[index].astype(np.intp)
                value = self.offer(self.costs.totals(labels, copies))
            if value > bound + ROUNDING * abs(bound):
                self.open.append(rows.take(slice(index, index + 1)))

    def offer(self, totals: Totals) -> float:
        """Keep a placement that has few components if it is the best; its value, infinite if it breaks a limit."""
        if totals.broken:
            return inf
        value = self._keep(totals)
        return min(value, self._keep(merged(self.assembled, totals))) if self.bounds.streamed else value

    def _keep(self, totals: Totals) -> float:
        """Keep a placement if it is the best; its value, infinite if its schedule breaks a limit."""
        pipelines = [each.placed(totals) for each in self.schedulers]
        ends_s = np.array([simulate(each).end_s for each in pipelines])
        amounts = (totals.resources + beyond_blocks(self.assembled, pipelines)).tolist()
        limited = zip(self.problem.resources, amounts, strict=True)
        period = period_s(self.assembled, totals) if self.bounds.streamed else 0.0
        if (
            (ends_s > self.bounds.path_caps).any()
            or period > self.caps.period_s * (1.0 + ROUNDING)
            or any(over(amount, each.upper) for each, amount in limited)
        ):
            return inf
        value = totals.objective
        if self.objective.kind == "throughput":
            value = period
        elif self.objective.simulated:
            summed = np.array([each.weight if each.kind == LATENCY else 0.0 for each in self.problem.resources])
            rest = totals.objective - self.problem.constant - float(summed @ totals.resources)
            value = self.objective.latency * float(self.bounds.shares @ ends_s) + rest
        if value < self.value:
            self.best, self.value = totals, value
        return value

    def _split_all(self) -> None:
        """Schedule what may be better with more components: placements on the same devices together."""
        groups: dict[bytes, list[Rows]] = {}
        for row in self.open:
            if row.bound[0] < self._cutoff():
                groups.setdefault(self.bounds.device[row.labels[0]].tobytes(), []).append(row)
        rows_of = [joined(members) for members in groups.values()]
        for group in sorted(rows_of, key=lambda group: float(group.bound.min())):
            rows = group.take(group.bound < self._cutoff())
            if len(rows) and (time.perf_counter() > self.deadline or not self._split(rows)):
                self.low = min(self.low, float(rows.bound.min()))

    def _split(self, rows: Rows) -> bool:
        """Schedule placements on the same devices with every split of their components that may be the best; whether
        there was time for all."""
        devices, nodes = self.costs.devices, rows.labels.shape[1]
        places = (self.problem.model * devices + self.bounds.device[rows.labels[0]]).tolist()
        most = self._most_components(rows, places)
        levels = splits(self.bounds.sources, places, most)
        if levels is None:
            return False
        counts = components(levels, places, len(most)).reshape(len(levels), -1, devices)
        many = max(1, _SPLITS // len(levels))
        for begin in range(0, len(rows), many):
            some = rows.take(slice(begin, begin + many))
            row = np.repeat(np.arange(len(some)), len(levels))
            split = np.tile(np.arange(len(levels)), len(some))
            tried = some.take(row)
            least_s = latencies_s(self.bounds, tried, levels[split])
            bound, kept = self.bounds.of(tried, nodes, complete=True, components=counts[split], least_s=least_s)
            for index in np.flatnonzero(kept)[np.argsort(bound[kept], kind="stable")].tolist():
                if bound[index] >= self._cutoff():
                    break
                if time.perf_counter() > self.deadline:
                    return False
                labels, copies = tried.labels[index].astype(np.intp), tried.copies[index].astype(np.intp)
                totals = self.costs.totals(labels, copies)
                if not totals.broken:
                    self._keep(replace(totals, levels=tuple(levels[split[index]].tolist())))
        return True

    def _most_components(self, rows: Rows, places: Sequence[int]) -> list[int]:
        """By model and device (`places` of the nodes), with how many components placements may still be the best."""
        models, devices = len(self.bounds.paths), self.costs.devices
        most = [places.count(place) for place in range(models * devices)]
        tried = [(place, count) for place, nodes in enumerate(most) for count in range(2, nodes + 1)]
        counts = np.zeros((len(tried), models * devices))
        for row, (place, count) in enumerate(tried):
            counts[row, place] = count
        which = np.repeat(np.arange(len(rows)), len(tried))
        bound, kept = self.bounds.of(
            rows.take(which),
            rows.labels.shape[1],
            complete=True,
            components=np.tile(counts.reshape(-1, models, devices), (len(rows), 1, 1)),
        )
        possible = (kept & (bound < self._cutoff())).reshape(len(rows), len(tried)).any(axis=0)
        for row in np.flatnonzero(~possible).tolist():
            place, count = tried[row]
            most[place] = min(most[place], count - 1)
        return most
