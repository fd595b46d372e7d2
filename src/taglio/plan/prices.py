"""A problem under prices: every limit a cost, so that what is left is a sum of small tables. Chooses nothing.

Limits become rows g(x) ≤ 1 (each divided by its upper end; a limit of 0 keeps its own unit). With a multiplier λ ≥ 0 a
row adds λ · (g(x) − 1) to the objective, and the least of that sum over all labellings is a lower bound (Lagrange).
"""

from dataclasses import dataclass

import numpy as np

from taglio.plan.problem import CALLER, SOURCE, Copies, Kind, Problem

# Stands for "forbidden" in tables: far above any sum of costs, and small enough that differences keep their digits.
BIG = 1e9
KINDS = 3


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One limit, scaled: which resource, noise bound or device's memory it is, and what its unit is worth."""

    name: str
    source: str
    index: int
    unit: float
    upper: float


@dataclass(frozen=True, slots=True, eq=False)
class Priced:
    """Costs at given prices: by node and label, by value and device, by edge. `unary` has shape (nodes, labels)."""

    unary: np.ndarray
    send_float: np.ndarray
    send_int8: np.ndarray
    quantize: np.ndarray
    dequantize: np.ndarray
    edge: np.ndarray
    wire: np.ndarray
    constant: float


class Market:
    """A problem's arrays, laid out for pricing many times."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.devices, self.forms = len(problem.devices), len(problem.forms)
        self.nodes, self.labels = len(problem.nodes), problem.labels
        values = problem.values
        self.label_device = np.repeat(np.arange(self.devices), self.forms)
        self.label_writes = np.tile(np.array([int(form.writes) for form in problem.forms]), self.devices)
        self.label_reads = np.tile(np.array([int(form.reads) for form in problem.forms]), self.devices)
        self.edge_value = values.edge_value()
        self.producer, self.readers = values.producer, values.readers
        self.rows = self._rows()
        shape, off_diagonal = (self.devices, self.devices), ~np.eye(self.devices, dtype=bool)
        resources = problem.resources
        self.device = np.array([each.device for each in resources]).reshape(-1, self.devices)
        self.link = np.array([each.link for each in resources]).reshape(-1, *shape) * off_diagonal
        self.byte = np.array([each.byte for each in resources]).reshape(-1, *shape) * off_diagonal
        self.models = np.array([each.models for each in resources]).reshape(len(resources), -1)
        self.weight = np.array([each.weight for each in resources])
        self.uppers = np.array([row.upper for row in self.rows])
        self.sent_at = self.weight
        self.sent: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None = None

    def _rows(self) -> tuple[Row, ...]:
        problem, found = self.problem, []

        def add(name: str, source: str, index: int, upper: float) -> None:
            if np.isfinite(upper):
                unit = upper if upper > 0.0 else 1.0
                found.append(Row(name, source, index, unit, upper / unit))

        for index, resource in enumerate(problem.resources):
            add(resource.name, "resource", index, resource.upper)
        for index, noise in enumerate(problem.noises):
            add(noise.name, "noise", index, noise.upper)
        if problem.memory is not None:
            for index, capacity in enumerate(problem.memory.capacity):
                add(f"memory of {problem.devices[index]}", "memory", index, float(capacity))
        return tuple(found)

    def price(self, multipliers: np.ndarray, objective: float = 1.0) -> Priced:
        """Costs with each row at its multiplier (in units of the objective per whole limit)."""
        problem, values = self.problem, self.problem.values
        weight = objective * self.weight
        noise = np.zeros(len(problem.noises))
        memory = np.zeros(self.devices)
        for row, multiplier in zip(self.rows, multipliers, strict=True):
            target = {"resource": weight, "noise": noise, "memory": memory}[row.source]
            target[row.index] += multiplier / row.unit
        by_model = weight[:, None] * self.models
        rate, link, byte = by_model.T @ self.device, _mix(by_model, self.link), _mix(by_model, self.byte)
        unary = problem.seconds * rate[problem.model][:, :, None]
        if problem.extra is not None:
            unary = unary + objective * problem.extra
        for each, bound in zip(noise, problem.noises, strict=True):
            if each:
                unary = unary + each * bound.own[:, None, :]
        if problem.memory is not None and memory.any():
            unary = unary + memory[None, :, None] * problem.memory.weights[:, None, :]
        unary = unary.reshape(self.nodes, self.labels)
        edges = len(values.readers)
        edge = sum((each * bound.edge for each, bound in zip(noise, problem.noises, strict=True)), np.zeros(edges))
        wire = sum((each * bound.wire for each, bound in zip(noise, problem.noises, strict=True)), np.zeros(edges))
        # The same arrays as before where the resources have the same prices, so that what comes of them can be kept.
        if self.sent is None or not np.array_equal(weight, self.sent_at):
            rates, links, bytes_ = rate[values.model], link[values.model], byte[values.model]
            self.sent_at = weight
            self.sent = (
                links + bytes_ * values.float_bytes[:, None, None],
                links + bytes_ * values.int8_bytes[:, None, None],
                values.quantize_s * rates[:, None, :],
                values.dequantize_s * rates,
            )
        return Priced(
            unary,
            *self.sent,
            edge,
            wire,
            objective * problem.constant - float(multipliers @ self.uppers),
        )

    def account(self, priced: Priced, labels: np.ndarray) -> "Account":
        """The copies that are cheapest at these prices, and what the labelling then costs in every row."""
        count = len(self.problem.values)
        place, kind, to, int8 = self.ends(labels)
        every = np.arange(count)
        edges = np.arange(len(to))
        chosen = self.choose(priced, every, place, kind, owner=self.edge_value, edge=edges, to=to, int8=int8)
        values = self.problem.values
        seconds = chosen.again * values.quantize_s[:, 0, :] + chosen.dequantized * values.dequantize_s
        seconds[every, place] += chosen.quantized * values.quantize_s[every, np.minimum(kind, 1), place]
        return self._account(labels, place, chosen.choice, seconds, chosen.noisy, chosen.wired)

    def choose(
        self,
        priced: Priced,
        value: np.ndarray,
        place: np.ndarray,
        kind: np.ndarray,
        *,
        owner: np.ndarray,
        edge: np.ndarray,
        to: np.ndarray,
        int8: np.ndarray,
    ) -> "Chosen":
        """The cheapest copies of values (repeats allowed) that are written at `place` in `kind`; their edges belong to
        value number `owner` of the list and are read on device `to`, as int8 or not."""
        count, devices = len(value), self.devices
        rows = np.arange(count)
        flat = owner * devices + to
        ints = np.bincount(flat[int8], minlength=count * devices).reshape(count, devices)
        floats = np.bincount(flat[~int8], minlength=count * devices).reshape(count, devices)
        wired = np.bincount(flat[~int8], priced.wire[edge[~int8]], count * devices).reshape(count, devices)
        there = ints + floats > 0
        there[rows, place] = False
        needs = ints[rows, place] > 0
        from_int8 = kind == Kind.INT8
        choice = np.zeros((count, devices), dtype=np.intp)
        # Of most values nothing leaves the device that they are written on.
        sent = np.flatnonzero(there.any(axis=1))
        v, at, many, some = value[sent], place[sent], floats[sent], ints[sent] > 0
        send_float, send_int8 = priced.send_float[v, at], priced.send_int8[v, at]
        by_float = send_float + np.where(some, priced.quantize[v, 0], 0.0)
        by_wire = many * priced.dequantize[v] + wired[sent] if self.problem.wire_only else BIG
        by_int8 = send_int8 + np.where(many > 0, by_wire, 0.0)
        by_both = np.where(some & (many > 0), send_float + send_int8, BIG)
        best = np.minimum(np.minimum(by_float, by_int8), by_both)
        here = priced.quantize[v, np.minimum(kind[sent], 1), at]
        spared = np.where(there[sent], by_float - best, 0.0).sum(axis=1)
        cheapest = np.where(by_float <= best, 1, np.where(by_int8 <= best, 2, 3))
        cheapest = np.where((needs[sent] | (here < spared))[:, None], cheapest, 1)
        choice[sent] = np.where(from_int8[sent][:, None], 2, cheapest)
        choice[~there] = 0
        dequantized = np.where(choice == 2, floats, 0)
        dequantized[rows, place] = np.where(from_int8, floats[rows, place], 0)
        noisy = ~from_int8[owner]
        return Chosen(
            choice,
            (needs | (choice >= 2).any(axis=1)) & ~from_int8,
            (choice == 1) & (ints > 0),
            dequantized,
            noisy & int8,
            noisy & ~int8 & (choice[owner, to] == 2),
        )

    def cost(self, priced: Priced, labels: np.ndarray, value: np.ndarray) -> float:
        """The priced cost of some values under `labels`, strict edges not looked at."""
        place, kind, to, int8 = self.ends(labels)
        values = self.problem.values
        counts = np.diff(values.start)[value]
        owner = np.repeat(np.arange(len(value)), counts)
        edge = np.arange(len(owner)) + np.repeat(values.start[value] - np.cumsum(counts) + counts, counts)
        at, held = place[value], kind[value]
        chosen = self.choose(priced, value, at, held, owner=owner, edge=edge, to=to[edge], int8=int8[edge])
        total = ((chosen.choice & 1) * priced.send_float[value, at]).sum()
        total += ((chosen.choice >> 1) * priced.send_int8[value, at]).sum()
        total += (chosen.again * priced.quantize[value, 0]).sum() + (
            chosen.dequantized * priced.dequantize[value]
        ).sum()
        total += (chosen.quantized * priced.quantize[value, np.minimum(held, 1), at]).sum()
        return float(total + priced.edge[edge[chosen.noisy]].sum() + priced.wire[edge[chosen.wired]].sum())

    def ends(self, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Device and kind that every value is written in; device of every edge's reader and whether it reads int8."""
        values = self.problem.values
        source, caller = values.producer == SOURCE, values.readers == CALLER
        written = labels[np.where(source, 0, values.producer)] if self.nodes else np.zeros(len(values), dtype=int)
        place = np.where(source, values.home, self.label_device[written])
        kind = np.where(source, int(Kind.FLOAT), self.label_writes[written])
        read = labels[np.where(caller, 0, values.readers)] if self.nodes else np.zeros(len(values.readers), dtype=int)
        to = np.where(caller, values.home[self.edge_value], self.label_device[read])
        return place, kind, to, ~caller & (self.label_reads[read] == Kind.INT8)

    def _account(
        self,
        labels: np.ndarray,
        place: np.ndarray,
        choice: np.ndarray,
        seconds: np.ndarray,
        edges: np.ndarray,
        wires: np.ndarray,
    ) -> "Account":
        problem, values = self.problem, self.problem.values
        devices, models = self.devices, self.models.shape[1]
        at, form = np.divmod(labels, self.forms)
        nodes = np.arange(self.nodes)
        busy = np.zeros((models, devices))
        np.add.at(busy, (problem.model, at), problem.seconds[nodes, at, form])
        np.add.at(busy, values.model, seconds)
        copies, sent = np.zeros((models, devices, devices)), np.zeros((models, devices, devices))
        for copy, size in ((Copies.FLOAT, values.float_bytes), (Copies.INT8, values.int8_bytes)):
            value, target = np.nonzero(choice & int(copy))
            where = (values.model[value], place[value], target)
            np.add.at(copies, where, 1.0)
            np.add.at(sent, where, size[value])
        amounts = (self.models * (self.device @ busy.T)).sum(axis=1)
        amounts += (self.models * (_flat(self.link) @ _flat(copies).T + _flat(self.byte) @ _flat(sent).T)).sum(axis=1)
        noises = np.array(
            [
                bound.own[nodes, form].sum() + bound.edge[edges].sum() + bound.wire[wires].sum()
                for bound in problem.noises
            ]
        )
        held = problem.memory.weights[nodes, form] if problem.memory is not None else np.zeros(self.nodes)
        weights = np.bincount(at, held, devices)
        objective = problem.constant + float(self.weight @ amounts)
        if problem.extra is not None:
            objective += float(problem.extra[nodes, at, form].sum())
        by_source = {"resource": amounts, "noise": noises, "memory": weights}
        rows = np.array([by_source[row.source][row.index] / row.unit for row in self.rows])
        return Account(labels, objective, rows, place, choice)


@dataclass(frozen=True, slots=True, eq=False)
class Chosen:
    """Copies by value and device, whether a value is quantised at home and where again, how many readers dequantise
    where, and which edges add edge or wire noise."""

    choice: np.ndarray
    quantized: np.ndarray
    again: np.ndarray
    dequantized: np.ndarray
    noisy: np.ndarray
    wired: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class Account:
    """A labelling with its copies: objective, every row in units of its limit, and where each value was written.

    `choice` (value, device) is a `Copies` as a number, 0 where nothing is sent.
    """

    labels: np.ndarray
    objective: float
    rows: np.ndarray
    place: np.ndarray
    choice: np.ndarray

    def wires(self) -> tuple[dict[int, Copies], ...]:
        """The copies as `evaluate` takes them."""
        return tuple({int(d): Copies(int(row[d])) for d in np.flatnonzero(row)} for row in self.choice)


def _mix(weights: np.ndarray, tables: np.ndarray) -> np.ndarray:
    """Weighted sums of (from, to) tables: one for every model."""
    return np.tensordot(weights.T, tables, axes=1)


def _flat(tables: np.ndarray) -> np.ndarray:
    return tables.reshape(len(tables), -1)
