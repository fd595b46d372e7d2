"""Replay hundreds of placements at once, block by block: close to simulate.py, and far faster.

Blocks run in their order, one at a time on each device. A component ends right after a block whose output another
device needs, and when a block waits for another device; its overhead is paid when it begins. A tensor is sent to each
device once, over a link that sends one at a time; while its device hands it to the network, the next block waits.
Results only select candidates: the predictions of a plan come from simulate.py.

A transfer from producer to reader has four parts, in seconds: `before` it leaves (quantising it for the wire), `busy`
on the link, `delay`, and `after` it has arrived (quantising or dequantising there; within one device this is the only
part). A fifth number is its bytes. Transfers are float or int8; forbidden ones take `NEVER`. Same rules as in
schedule.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from taglio.cluster.planning.assemble import Assembled
from taglio.cluster.planning.copies import at_home, serve
from taglio.cluster.planning.problem import CALLER, SOURCE, Copies, Kind
from taglio.cluster.planning.resources import link_tables

NEVER = 1e9
PARTS = BEFORE, BUSY, DELAY, AFTER, BYTES = range(5)


@dataclass(frozen=True, slots=True, eq=False)
class EdgeCosts:
    """An edge: `producer` among the model's nodes, None for an input. Arrays are over (producer's label, reader's
    label), with one row for an input and one column for the caller: `far` tells whether it leaves the device; by a
    float and by an int8 copy (first axis), `seconds` are the five numbers and `noise` is what is added to each bound
    (last axes)."""

    value: int
    producer: int | None
    far: np.ndarray
    seconds: np.ndarray
    noise: np.ndarray


class Timetable:
    """Lookup tables for replaying one model of a problem."""

    def __init__(self, assembled: Assembled, model: int) -> None:
        problem, values = assembled.problem, assembled.problem.values
        self.problem, self.nodes = problem, assembled.nodes(model)
        first, count = self.nodes.start, len(self.nodes)
        self.devices, forms, self.labels = len(problem.devices), len(problem.forms), problem.labels
        self.device = np.arange(self.labels) // forms
        self.form = np.arange(self.labels) % forms
        self.overhead_s = assembled.overhead_s[model]
        self.send_s = np.array([device.send_s for device in assembled.cluster.devices])
        self.send_byte_s = np.array([device.send_byte_s for device in assembled.cluster.devices])
        self.receive_s = np.array([device.receive_s for device in assembled.cluster.devices])
        self.receive_byte_s = np.array([device.receive_byte_s for device in assembled.cluster.devices])
        self.home = problem.devices.index(assembled.cluster.start)
        mine = slice(first, first + count)
        self.seconds = problem.seconds.reshape(len(problem.nodes), -1)[mine]
        self.allowed = problem.allowed.reshape(len(problem.nodes), -1)[mine]
        own = [bound.own[mine][:, self.form] for bound in problem.noises]
        self.own = np.stack(own, axis=2) if own else np.zeros((count, self.labels, 0))
        self._reads = np.array([int(form.reads) for form in problem.forms])[self.form]
        self._writes = np.array([int(form.writes) for form in problem.forms])[self.form]
        latency_s, byte_s, _, self.gap_s = link_tables(assembled.cluster)
        self.delay_s = np.minimum(latency_s - self.gap_s, NEVER)
        self.byte_s = np.nan_to_num(byte_s, posinf=0.0)
        self.reads: list[list[EdgeCosts]] = [[] for _ in self.nodes]
        self.answers: list[list[EdgeCosts]] = [[] for _ in self.nodes]
        for value in np.flatnonzero(values.model == model).tolist():
            producer = None if values.producer[value] == SOURCE else int(values.producer[value]) - first
            for edge in range(int(values.start[value]), int(values.start[value + 1])):
                way = self._way(value, edge, producer)
                if values.readers[edge] != CALLER:
                    self.reads[int(values.readers[edge]) - first].append(way)
                elif producer is not None:
                    self.answers[producer].append(way)

    def _way(self, value: int, edge: int, producer: int | None) -> EdgeCosts:
        values, problem, home = self.problem.values, self.problem, self.home
        answer = values.readers[edge] == CALLER
        here = np.full((1, 1), home) if producer is None else self.device[:, None]
        kind = np.full((1, 1), int(Kind.FLOAT)) if producer is None else self._writes[:, None]
        there = np.full((1, 1), home) if answer else self.device[None]
        read_kind = np.full((1, 1), int(Kind.FLOAT)) if answer else self._reads[None]
        here, kind, there, read_kind = np.broadcast_arrays(here, kind, there, read_kind)
        far, written8, read8 = here != there, kind == Kind.INT8, read_kind == Kind.INT8
        quantize = values.quantize_s[value][np.minimum(kind, 1), here]
        dequantize = values.dequantize_s[value][there]
        wire = np.array([bound.wire[edge] for bound in problem.noises])
        forbidden = values.strict[edge] & (kind != read_kind)
        delay = np.where(forbidden, NEVER, np.where(far, self.delay_s[here, there], 0.0))
        byte, gap = np.where(far, self.byte_s[here, there], 0.0), np.where(far, self.gap_s[here, there], 0.0)
        # Within a component the value is quantised in the layout written, between components of one device from float.
        nearer = np.minimum(quantize, values.quantize_s[value][0][here])
        first = self.overhead_s[home] if producer is None else 0.0  # an input is quantised by a separate component
        last = self.overhead_s[home] if answer else 0.0
        restores = far & ~written8 & ~read8
        unwanted = restores & (not problem.wire_only or bool((wire > 1.0).any()))

        def sent(copies: Copies, size: float, refused: np.ndarray) -> np.ndarray:
            numbers = np.zeros((*far.shape, len(PARTS)))
            hand = np.where(far, int(copies), at_home(written8, read8))
            changes = serve(written8, hand, read8, ~read8)
            numbers[..., BEFORE] = np.where(far & changes.quantized, quantize + first, 0.0)
            numbers[..., BUSY], numbers[..., BYTES] = gap + byte * size, np.where(far, size, 0.0)
            numbers[..., DELAY] = np.where(refused, NEVER, delay)
            requantize_s = changes.quantized_there * values.quantize_s[value][0][there]
            here_s = np.where(changes.quantized, nearer, changes.dequantized * dequantize)
            numbers[..., AFTER] = np.where(far, requantize_s + changes.dequantized * (dequantize + last), here_s)
            return numbers

        floats = sent(Copies.FLOAT, values.float_bytes[value], far & written8)
        ints = sent(Copies.INT8, values.int8_bytes[value], unwanted)
        change = np.array([bound.edge[edge] for bound in problem.noises])
        noise = np.where((read8 & ~written8)[..., None], change, 0.0)
        wired = noise + np.where(restores[..., None], wire, 0.0)
        return EdgeCosts(value, producer, far, np.stack([floats, ints]), np.stack([noise, wired]))


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """By placement (first axis): seconds of a request, each node's component (numbered by start time), copies sent,
    noise by bound, and busy seconds of each link (from, to), of each device on the diagonal: with as few components as
    paths through it allow."""

    latency_s: np.ndarray
    component: np.ndarray
    copies: np.ndarray
    noise: np.ndarray
    busy_s: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class _Edge:
    """An edge's tables, flattened for lookup: row = producer's label · labels + reader's label."""

    producer: int | None
    seconds: np.ndarray
    noise: np.ndarray
    noisy: bool
    forbids: bool


class Replay:
    """Replays one model, sending tensors as int8 if that saves more than `price` seconds times the share of an error
    bound that it uses."""

    def __init__(self, table: Timetable, price: float) -> None:
        self.table, self.price = table, price
        self._reads = [[self._edge(way) for way in ways] for ways in table.reads]
        self._answers = [[self._edge(way) for way in ways] for ways in table.answers]
        self._readers: list[list[tuple[int, _Edge]]] = [[] for _ in table.nodes]
        for node, edges in enumerate(self._reads):
            for edge in edges:
                if edge.producer is not None:
                    self._readers[edge.producer].append((node, edge))

    def _edge(self, way: EdgeCosts) -> _Edge:
        int8 = self._as_int8(way)
        seconds, noise = (
            np.where(int8[..., None], ints, floats).reshape(int8.size, floats.shape[-1])
            for floats, ints in (way.seconds, way.noise)
        )
        return _Edge(way.producer, seconds, noise, bool(noise.any()), bool((seconds[:, DELAY] >= NEVER).any()))

    def _as_int8(self, way: EdgeCosts) -> np.ndarray:
        floats, ints = way.seconds[..., :BYTES].sum(axis=-1) + self.price * way.noise.sum(axis=-1)
        return np.asarray(ints <= floats)

    def play(self, labels: np.ndarray) -> Played:
        """Replay placements: `labels` has shape (placements, nodes)."""
        run = _ReplayState(self.table, np.ascontiguousarray(labels.T))
        for node in range(len(self._reads)):
            run.begin(node, self._reads[node])
            for reader, edge in self._readers[node]:
                run.leave(node, reader, edge)
            for edge in self._answers[node]:
                run.answer(node, edge)
        busy_s = run.busy_s.reshape(len(labels), self.table.devices, self.table.devices)
        busy_s += run.entries.max(axis=0, initial=0)[:, :, None] * np.diag(self.table.overhead_s)
        return Played(np.maximum(run.done, run.last), run.component.T, run.copies, run.noise, busy_s)

    def copies(self, labels: Sequence[int], sent: np.ndarray) -> None:
        """Write the copies that are sent under one labelling of the model's nodes to `sent` (value, device)."""
        table = self.table
        for node in range(len(table.nodes)):
            for way in (*table.reads[node], *table.answers[node]):
                answer = way.far.shape[1] == 1
                producer_label = 0 if way.producer is None else labels[way.producer]
                reader_label = 0 if answer else labels[node]
                if not way.far[producer_label, reader_label]:
                    continue
                device = table.home if answer else int(table.device[reader_label])
                # If any reader on a device is to get float, that copy serves all readers there.
                int8 = self._as_int8(way)[producer_label, reader_label] and sent[way.value, device] != Copies.FLOAT
                sent[way.value, device] = int(Copies.INT8 if int8 else Copies.FLOAT)


class _ReplayState:
    """State of placements during a replay: the last axis is over placements, combined with devices where it is flat."""

    def __init__(self, table: Timetable, labels: np.ndarray) -> None:
        size, many = labels.shape
        count = table.devices
        self.table, self.labels, self.device = table, labels, table.device[labels]
        self.placement = np.arange(many)
        self.own = self.placement * count  # + device: index of a placement's device in flat arrays
        self.current, self.closed = np.zeros(many * count, dtype=np.intp), np.ones(many * count, dtype=bool)
        self.began, self.clock = np.full(many * count, -1.0), np.zeros(many * count)
        self.link, self.busy_s = np.zeros((2, many * count * count))
        self.component, self.begun = np.zeros((size, many), dtype=np.intp), np.zeros(many, dtype=np.intp)
        self.ended = np.zeros((size, many))  # by component
        self.arrived = np.full((size, many, count), NEVER)  # arrival of a node's output, by device
        self.entries = np.zeros((size, many, count), dtype=np.intp)  # to each device on a path to the end of a node
        self.noise = np.zeros((many, table.own.shape[2]))
        self.copies, self.done, self.last = (np.zeros(many) for _ in range(3))

    def begin(self, node: int, reads: Sequence[_Edge]) -> None:
        """Run a node once its inputs are there."""
        table, label, here = self.table, self.labels[node], self.device[node]
        at = self.own + here
        ready = np.where(table.allowed[node, label], 0.0, NEVER)
        run_s, entries = table.seconds[node, label], self.entries[node]
        entries[self.placement, here] = 1
        self.noise += table.own[node, label]
        for edge in reads:
            pair = label if edge.producer is None else self.labels[edge.producer] * table.labels + label
            row = edge.seconds[pair]
            if edge.producer is None:
                ready = np.maximum(ready, row[:, BEFORE] + row[:, BUSY] + row[:, DELAY])
                handing_s = table.send_s[table.home] + row[:, BYTES] * table.send_byte_s[table.home]
                handed = np.where(row[:, BEFORE] > 0.0, row[:, BEFORE] + handing_s, 0.0)
                home = self.own + table.home
                self.clock[home] = np.maximum(self.clock[home], handed)
                self.copies += row[:, BYTES] > 0.0
                self._occupy(self.placement, np.full_like(here, table.home), here, row)
            else:
                far = self.device[edge.producer] != here
                np.maximum(entries, self.entries[edge.producer], out=entries)
                entered = self.entries[edge.producer, self.placement, here] + far
                entries[self.placement, here] = np.maximum(entries[self.placement, here], entered)
                arrival = np.where(far, self.arrived[edge.producer].ravel()[at], row[:, DELAY])
                ready = np.maximum(ready, arrival)
                if edge.forbids:  # another reader on this device may still be allowed
                    ready = np.where(row[:, DELAY] >= NEVER, NEVER, ready)
            if edge.noisy:
                self.noise += edge.noise[pair]
            run_s = run_s + row[:, AFTER]
        clock, began = self.clock[at], self.began[at]
        start = np.maximum(ready, clock)
        fresh = self.closed[at] | (ready > began)
        self.began[at] = np.where(fresh, start, began)
        end = start + np.where(fresh, table.overhead_s[here], 0.0) + run_s
        component = np.where(fresh, self.begun, self.current[at])
        self.begun += fresh
        self.current[at] = self.component[node] = component
        self.ended[component, self.placement] = end
        self.clock[at], self.closed[at], self.last = end, False, np.maximum(self.last, end)
        self.busy_s[at * table.devices + here] += run_s

    def leave(self, node: int, reader: int, edge: _Edge) -> None:
        """Send a node's output to the device of a reader elsewhere, unless it is there already."""
        there = self.device[reader]
        away = (self.device[node] != there) & (self.arrived[node].ravel()[self.own + there] >= NEVER)
        senders = np.flatnonzero(away)
        if len(senders):
            row = edge.seconds[self.labels[node, senders] * self.table.labels + self.labels[reader, senders]]
            self.arrived[node][senders, there[senders]] = self._send(senders, node, there[senders], row)

    def answer(self, node: int, edge: _Edge) -> None:
        """Send a node's output to the caller."""
        home, row = self.table.home, edge.seconds[self.labels[node]]
        far = self.device[node] != home
        end = self.ended[self.component[node], self.placement]
        senders = np.flatnonzero(far)
        if len(senders):
            arrived = self._send(senders, node, np.full(len(senders), home), row[senders])
            free = self.clock[self.own[senders] + home]
            end[senders] = np.where(row[senders, AFTER] > 0.0, np.maximum(arrived, free), arrived)
        self.done = np.maximum(self.done, end + row[:, AFTER])
        self.busy_s[(self.own + home) * self.table.devices + home] += row[:, AFTER]

    def _send(self, which: np.ndarray, node: int, to: np.ndarray, row: np.ndarray) -> np.ndarray:
        """When a node's output arrives on device `to` of each placement in `which`; sending it ends its component."""
        table, source = self.table, self.device[node, which]
        link = (which * table.devices + source) * table.devices + to
        leaves = self.ended[self.component[node, which], which] + row[:, BEFORE]
        handing = self.own[which] + source
        handing_s = table.send_s[source] + row[:, BYTES] * table.send_byte_s[source]
        self.clock[handing] = np.maximum(self.clock[handing], leaves) + handing_s
        leaves = np.maximum(leaves, self.link[link]) + row[:, BUSY]
        self.link[link] = leaves
        self.copies[which] += row[:, BYTES] > 0.0
        self.closed[handing] = True
        self._occupy(which, source, to, row)
        return np.asarray(leaves + row[:, DELAY])

    def _occupy(self, which: np.ndarray, source: np.ndarray, to: np.ndarray, row: np.ndarray) -> None:
        """Count the time of the link and of the devices at its ends for a tensor of each placement in `which`."""
        table, far, size = self.table, source != to, row[:, BYTES]
        from_source, from_target = (which * table.devices + end for end in (source, to))
        from_source, from_target = from_source * table.devices, from_target * table.devices
        sending_s = far * (table.send_s[source] + size * table.send_byte_s[source])
        self.busy_s[from_source + source] += row[:, BEFORE] + sending_s
        self.busy_s[from_target + to] += far * (table.receive_s[to] + size * table.receive_byte_s[to])
        self.busy_s[from_source + to] += far * row[:, BUSY]
