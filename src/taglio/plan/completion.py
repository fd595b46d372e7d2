"""What a request takes at least after each of its blocks, for the decision diagram of one model (diagram.py).

By the label of each block: the shortest path from its end on. Of what lies between two blocks (windows.py): which share
of the work is left, how soon each device can begin with it and how long before the end it has to be through. Each
device working from its first moment to its last is more than any schedule can do, so all of them together are through
with the work no sooner. All of it holds for those labels that are allowed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from taglio.plan.timetable import AFTER, BUSY, BYTES, DELAY, NEVER, Timetable, Way
from taglio.plan.windows import END, START, Window


@dataclass(frozen=True, slots=True, eq=False)
class Edge:
    """Least seconds between who writes `value` and who reads, those busy on the reader's device, and noise, by their
    labels; rows also stand for any label of a device, and for any at all. `idle` is `path` without what the reader's
    device does in that time. `shared` is the edge's part of what quantising takes right after the value is written, on
    the same device. `sent` is how long the link `lane` is busy with it (-1: none)."""

    producer: int
    reader: int
    value: int
    path: np.ndarray
    idle: np.ndarray
    load: np.ndarray
    shared: np.ndarray
    noise: np.ndarray
    sent: np.ndarray
    lane: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """A window: the nodes that may begin what happens in it, those inside, and the work that is `left` of it after each
    node, in units of which `speed` (by device) is done a second. Each device is idle `before` it does any, at least, by
    the label of the first block; the request ends `until` so long after a device is through with it, at least. `after`
    is the shortest path from the end of the window on, the last block in it, by that one's device; `reads` are the
    edges to that block, with a column for each device."""

    first: int
    last: int
    members: frozenset[int]
    inside: frozenset[int]
    left: np.ndarray
    speed: np.ndarray
    before: np.ndarray
    until: np.ndarray
    after: np.ndarray
    reads: tuple[Edge, ...]

    def filled(self, free: np.ndarray, left: float) -> np.ndarray:
        """When all devices together are through with what is left, by state: each works from when it is free (states,
        device), if that is soon enough."""
        by = np.argsort(free, axis=1)
        speed, free = self.speed[by], np.take_along_axis(free, by, axis=1)
        sums = np.maximum(speed.cumsum(axis=1), 1e-300)
        result: np.ndarray = ((left + (speed * free).cumsum(axis=1)) / sums).min(axis=1)
        return result


class Completion:
    """The tables of one model: the edges to every node, and to the caller; the windows, and which ones a node opens;
    the shortest paths that are left, by node and label."""

    def __init__(self, table: Timetable, windows: tuple[Window, ...], allowed: np.ndarray) -> None:
        self.table, self._windows, self._allowed = table, windows, allowed
        count = table.devices
        # What is busy in a window: the devices, then the links.
        self.lanes = count + len(table.links)
        self._lane = np.full((count, count), -1)
        for index, (one, other) in enumerate(table.links):
            self._lane[one, other] = count + index
        self.delay_s = np.array([0.0] * count + [table.delay_s[link] for link in table.links])
        self.opening: dict[int, list[int]] = {}
        opened = np.zeros(len(table.nodes) + 2, dtype=int)
        for number, window in enumerate(windows):
            self.opening.setdefault(self._local(window.first), []).append(number)
            opened[self._local(window.first) + 1] += 1
            opened[self._local(window.last) + 1 if window.last != END else -1] -= 1
        self.most_open = int(opened.cumsum().max())
        self._seconds = np.where(allowed, table.seconds, NEVER)
        self.reads = [[self._edge(way, node) for way in ways] for node, ways in enumerate(table.reads)]
        self.answers = [[self._edge(way, END) for way in ways] for ways in table.answers]
        self.tails, self.spans = self._left()

    def _local(self, node: int) -> int:
        """A window's node among the model's own."""
        return node if node in {START, END} else node - self.table.nodes.start

    def _left(self) -> tuple[list[np.ndarray], list[Span]]:
        """The shortest time from the end of each node to that of the request, by label; and the windows."""
        table = self.table
        tails = [np.zeros(table.labels)] * len(table.nodes)
        after: list[list[Edge]] = [[] for _ in table.nodes]
        for edge in (edge for edges in self.reads for edge in edges if edge.producer != START):
            after[edge.producer].append(edge)
        spans: dict[int, Span] = {}
        for node in reversed(range(START, len(tails))):
            for number in self.opening.get(node, []):
                spans[number] = self._span(self._windows[number], tails, after)
            if node == START:
                break
            tail = np.zeros(table.labels)
            for answer in self.answers[node]:
                tail = np.maximum(tail, answer.path[: table.labels, 0])
            for edge in after[node]:
                left = edge.path[: table.labels] + (self._seconds[edge.reader] + tails[edge.reader])[None]
                tail = np.maximum(tail, left.min(axis=1))
            for number in self.opening.get(node, []):
                each = spans[number]
                tail = np.maximum(tail, each.filled(each.before + each.until, each.left[node]))
            tails[node] = tail
        return tails, [spans[number] for number in range(len(spans))]

    def _span(self, window: Window, tails: Sequence[np.ndarray], after: Sequence[Sequence[Edge]]) -> Span:
        """A window, given what is left after the nodes behind its first, and the edges from each."""
        count, seconds = self.table.devices, self._seconds
        begin, last, inside = self._local(window.first), self._local(window.last), [*map(self._local, window.nodes)]
        end, reads = np.zeros(count), tuple[Edge, ...]()
        if last != END:
            end = (seconds[last] + tails[last]).reshape(count, -1).min(axis=1)
            reads = tuple(self._by_device(edge, self._allowed[last]) for edge in self.reads[last])
        devices = seconds[inside].reshape(len(inside), count, -1).min(axis=2)
        able = devices < NEVER
        least = (able * devices.min(axis=1, keepdims=True)).sum(axis=0)
        speed = np.where(able.any(axis=0), least / np.maximum(np.where(able, devices, 0.0).sum(axis=0), 1e-12), 0.0)
        work = np.zeros(len(seconds) + 1)
        work[inside] = np.where(able, devices * speed, inf).min(axis=1)
        until = np.min([np.where(seconds[node] < NEVER, tails[node], NEVER) for node in inside], axis=0)
        return Span(
            begin,
            last,
            frozenset({begin, *inside}),
            frozenset(inside),
            work[::-1].cumsum()[::-1][1:],
            speed,
            self._before(begin, inside, after),
            until.reshape(count, -1).min(axis=1),
            end,
            reads,
        )

    def _before(self, begin: int, inside: Sequence[int], after: Sequence[Sequence[Edge]]) -> np.ndarray:
        """How long every device does nothing of a window, at least, from the end of the node that begins it, by the
        label of that and device; the one that this ran on may go on at once, quantising what it wrote."""
        table = self.table
        if begin == START:
            return np.zeros((table.labels, table.devices))
        ends = {begin: np.where(np.eye(table.labels, dtype=bool), 0.0, NEVER)}
        waits, starts = ({node: np.zeros((table.labels, table.labels)) for node in inside} for _ in range(2))
        found = np.full((table.labels, table.labels), NEVER)
        for node in [begin, *inside]:
            if node != begin:
                found = np.minimum(found, np.where(self._allowed[node], waits[node], NEVER))
                ends[node] = starts[node] + self._seconds[node]
            for edge in after[node]:
                if edge.reader in starts:
                    for sums, way in ((waits, edge.idle), (starts, edge.path[: table.labels])):
                        came = (ends[node][:, :, None] + way[None]).min(axis=1)
                        sums[edge.reader] = np.maximum(sums[edge.reader], came)
        least = found.reshape(table.labels, table.devices, -1).min(axis=2)
        result: np.ndarray = np.where(table.device[:, None] == np.arange(table.devices), 0.0, least)
        return result

    def _edge(self, way: Way, reader: int) -> Edge:
        table, producer = self.table, START if way.producer is None else way.producer
        answers = reader == END
        # An edge to the caller starts no component.
        entered = np.zeros(1) if answers else table.overhead_s[table.device]
        begun = np.where(way.far | (producer == START), entered, 0.0)
        path, idle = (
            np.minimum(way.floats[..., :end].sum(axis=-1), way.ints[..., :end].sum(axis=-1)) + begun
            for end in (BYTES, AFTER)
        )
        # Who reads float dequantises for itself; where only int8 is sent, after it has come.
        near = np.where(way.shared, 0.0, way.floats[..., AFTER])
        load = np.where(way.far, np.where(way.floats[..., DELAY] >= NEVER, way.ints[..., AFTER], 0.0), near)
        shared = np.where(way.shared, way.floats[..., AFTER] * way.share, 0.0)
        busy = [np.where(each[..., DELAY] >= NEVER, NEVER, each[..., BUSY]) for each in (way.floats, way.ints)]
        sent = np.minimum(*busy)
        # An input is sent to a device once; each reader counts its part.
        sent = np.where(sent < NEVER, sent, 0.0) * (way.share if producer == START else 1.0)
        here = np.array([[table.home]]) if producer == START else table.device[:, None]
        there = np.array([[table.home]]) if answers else table.device[None]
        lane = np.broadcast_to(self._lane[here, there], sent.shape)
        noise = way.noise
        if producer != START:
            allowed = self._allowed[producer]
            path, load, shared, noise, sent = (
                self._coarse(each, allowed) for each in (path, load, shared, noise, sent)
            )
            # The link is known where the device is.
            lane = np.concatenate([lane, lane[:: table.labels // table.devices], np.full_like(lane[:1], -1)])
        return Edge(producer, reader, way.value, path, idle, load, shared, noise, sent, lane)

    def _by_device(self, edge: Edge, allowed: np.ndarray) -> Edge:
        """With the least of a device's allowed labels of who reads."""
        count = self.table.devices
        path, sent = (
            np.where(allowed, each, NEVER).reshape(len(each), count, -1).min(axis=2) for each in (edge.path, edge.sent)
        )
        return replace(edge, path=path, sent=sent, lane=edge.lane[:, :: self.table.labels // count])

    def _coarse(self, rows: np.ndarray, allowed: np.ndarray) -> np.ndarray:
        """With the least over every device's labels, and over all, as further rows."""
        held = np.where(allowed.reshape(-1, *(1,) * (rows.ndim - 1)), rows, NEVER)
        devices = held.reshape(self.table.devices, len(rows) // self.table.devices, *rows.shape[1:]).min(axis=1)
        return np.concatenate([rows, devices, devices.min(axis=0, keepdims=True)])
