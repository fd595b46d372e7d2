"""A proven bound on one model's latency: a relaxed decision diagram over its blocks.

Blocks are taken in their order, each in every label. A state keeps what the rest can still feel: the labels and end
times of blocks that somebody has yet to read, of every window that is open (windows.py) when each device would be
through with what it has of it, the noise so far, and when the caller has what it got. Of two states with the same
labels the one that is nowhere better is dropped; so is what cannot end before the target. Where more states are left
than the width, the worse are merged: of those with the same labels, then the same devices, then any, each number
becomes the least, so that a merged state is no worse than any of them (Bergman, Cire, van Hoeve and Hooker, Decision
Diagrams for Optimization, 2016). A state's bound adds the shortest path that is left, so that the least of a layer's
bounds is one on every placement, and so is the highest of those.

Times agree with schedule.py where it charges something, and leave out what depends on how components are cut: waiting
for one's component, for a link, and more than one overhead between two crossings.
"""

import time
from dataclasses import dataclass
from math import inf

import numpy as np

from taglio.plan.timetable import AFTER, BYTES, DELAY, NEVER, Timetable, Way
from taglio.plan.windows import END, START, Window

# States with the same labels that each is held against.
_COMPARED = 8


@dataclass(frozen=True, slots=True, eq=False)
class _Edge:
    """Least seconds between who writes and who reads, those busy on the reader's device, and noise, by their labels;
    rows also stand for any label of a device, and for any at all. `shared` is the edge's part of what quantising takes
    right after the value is written, on the same device."""

    producer: int | None
    path: np.ndarray
    load: np.ndarray
    shared: np.ndarray
    noise: np.ndarray


@dataclass(slots=True)
class _Layer:
    """States: `labels` of the blocks in `live`; `numbers` are their end times, when the caller has what it got, times
    by open window and device, and noise; `bounds` what a request takes at least."""

    live: list[int]
    windows: list[int]
    labels: np.ndarray
    numbers: np.ndarray
    bounds: np.ndarray


@dataclass(slots=True)
class _Entry:
    """By state and label of the next block: when it may start, what its device is busy with for it besides, noise with
    it; and by whom what it reads was written, and what quantising that took right after."""

    start: np.ndarray
    load: np.ndarray
    shared: list[tuple[int, np.ndarray]]
    noise: np.ndarray


class Diagram:
    """The diagrams of one model."""

    def __init__(self, table: Timetable, windows: tuple[Window, ...]) -> None:
        self.table = table
        count, size = table.devices, table.labels
        # Any label of a device, and any at all, are labels of their own.
        self._coarser = np.concatenate([size + table.device, size + np.arange(count), [size + count]])
        self._any = size + count
        self._reads = [[self._edge(way) for way in ways] for ways in table.reads]
        self._answers = [[self._path(way)[:, 0] for way in ways] for ways in table.answers]
        self._last = [-1] * len(table.nodes)
        for node, edges in enumerate(self._reads):
            for edge in edges:
                if edge.producer is not None:
                    self._last[edge.producer] = node
        first = table.nodes.start
        # Windows by number: those that a node opens, those that it closes, and those that it is in.
        self._opening: dict[int, list[int]] = {}
        self._closing: dict[int, list[int]] = {}
        self._inside: list[set[int]] = [set() for _ in table.nodes]
        # What begins a window may quantise in it.
        self._members = [{window.first - first, *(node - first for node in window.nodes)} for window in windows]
        for number, window in enumerate(windows):
            self._opening.setdefault(window.first if window.first == START else window.first - first, []).append(number)
            self._closing.setdefault(window.last if window.last == END else window.last - first, []).append(number)
            for node in window.nodes:
                self._inside[node - first].add(number)
        self._tails = self._left()

    def bound(self, width: int, target_s: float, deadline: float) -> float:
        """Seconds that no placement undercuts: `target_s` where none ends before it."""
        found, layer = 0.0, self._start()
        for node in range(len(self.table.nodes)):
            expanded = self._expanded(layer, node, target_s)
            if not len(expanded.bounds):
                return target_s
            found = max(found, float(expanded.bounds.min()))
            if time.perf_counter() > deadline:
                return min(found, target_s)
            layer = self._merged(self._undominated(expanded), width)
        return min(max(found, float(layer.bounds.min())), target_s)

    def _start(self) -> _Layer:
        windows = self._opening.get(START, [])
        numbers = np.zeros((1, 1 + len(windows) * self.table.devices + self.table.own.shape[2]))
        return _Layer([], windows, np.zeros((1, 0), dtype=np.intp), numbers, np.zeros(1))

    def _expanded(self, layer: _Layer, node: int, target_s: float) -> _Layer:
        """Every state with `node` in every label, as far as that may end before the target."""
        table, live = self.table, layer.live
        count = table.devices
        at, opened = len(live), 1 + len(live)  # where `done` and the windows stand
        closed = opened + len(layer.windows) * count
        labels = np.flatnonzero(table.allowed[node])
        entry = self._entry(layer, node, labels, layer.numbers[:, closed:])
        start, load, noise = entry.start, entry.load, entry.noise
        ending = self._closing.get(node, [])
        for index, window in enumerate(layer.windows):
            if window in ending:
                busy = layer.numbers[:, opened + index * count : opened + (index + 1) * count]
                start = np.maximum(start, busy.max(axis=1)[:, None])
        end = start + table.seconds[node, labels]
        worth = np.maximum(layer.bounds[:, None], end + self._tails[node][labels])
        uppers = np.array([each.upper for each in table.problem.noises])
        kept = (worth < min(target_s, NEVER * 1e-3)) & (noise <= uppers * (1.0 + 1e-6) + 1e-9).all(axis=2)
        state, which = np.nonzero(kept)
        label, ends = labels[which], end[state, which]
        each, device = np.arange(len(state)), table.device[label]
        done = layer.numbers[state, at]
        for answer in self._answers[node]:
            done = np.maximum(done, ends + answer[label])
        if not self._answers[node] and self._last[node] < 0:
            done = np.maximum(done, ends)
        staying = [column for column, each_live in enumerate(live) if self._last[each_live] > node]
        names, times = layer.labels[state][:, staying], layer.numbers[state][:, staying]
        after = [live[column] for column in staying]
        if self._last[node] > node:
            after.append(node)
            names, times = np.column_stack([names, label]), np.column_stack([times, ends])
        windows = [index for index, window in enumerate(layer.windows) if window not in ending]
        busy = layer.numbers[state, opened:closed].reshape(len(state), len(layer.windows), count)[:, windows]
        open_ = [layer.windows[index] for index in windows]
        for index, window in enumerate(open_):
            if window in self._inside[node]:
                within = [taken for producer, taken in entry.shared if producer in self._members[window]]
                busy[each, index, device] += (table.seconds[node, labels] + sum(within, load))[state, which]
        opening = self._opening.get(node, [])
        busy = np.concatenate([busy, np.broadcast_to(ends[:, None, None], (len(state), len(opening), count))], axis=1)
        open_ += opening
        whole = [index for index, window in enumerate(open_) if window in self._closing.get(END, [])]
        worth = np.maximum(worth[state, which], done)
        if whole and len(state):
            worth = np.maximum(worth, busy[:, whole].max(axis=(1, 2)))
        numbers = np.column_stack([times, done, busy.reshape(len(state), len(open_) * count), noise[state, which]])
        return _Layer(after, open_, names, numbers, worth)

    def _entry(self, layer: _Layer, node: int, labels: np.ndarray, noise: np.ndarray) -> _Entry:
        """What `node` takes until it starts, from every state in every label."""
        shape = (len(layer.bounds), len(labels))
        entry = _Entry(np.zeros(shape), np.zeros(shape), [], noise[:, None] + self.table.own[node, labels])
        if not self._reads[node]:
            entry.start += self.table.overhead_s[self.table.device[labels]]
        for edge in self._reads[node]:
            if edge.producer is None:
                rows, ends = np.zeros(shape[0], dtype=np.intp), np.zeros(shape[0])
            else:
                column = layer.live.index(edge.producer)
                rows, ends = layer.labels[:, column], layer.numbers[:, column]
                entry.shared.append((edge.producer, edge.shared[:, labels][rows]))
            entry.start = np.maximum(entry.start, ends[:, None] + edge.path[:, labels][rows])
            entry.load = entry.load + edge.load[:, labels][rows]
            entry.noise = entry.noise + edge.noise[:, labels][rows]
        return entry

    def _undominated(self, layer: _Layer) -> _Layer:
        """Without states that another one with the same labels is nowhere worse than."""
        key = keys(layer.labels)
        order = np.lexsort((layer.numbers.sum(axis=1), key))
        first = np.r_[True, key[order][1:] != key[order][:-1]]
        begins = np.flatnonzero(first)[np.cumsum(first) - 1]
        # A merged state's bound holds for what was merged, not for what its numbers allow: it is held against as well.
        numbers = np.column_stack([layer.numbers, layer.bounds])[order]
        place, alive = np.arange(len(order)) - begins, np.ones(len(order), dtype=bool)
        for rank in range(_COMPARED):
            some = np.flatnonzero(alive & (place > rank))
            some = some[alive[begins[some] + rank]]
            if not len(some):
                break
            beaten = (numbers[begins[some] + rank] <= numbers[some] + 1e-12).all(axis=1)
            alive[some[beaten]] = False
        return _chosen(layer, order[alive])

    def _merged(self, layer: _Layer, width: int) -> _Layer:
        """At most about `width` states: the best half as they are, the rest merged."""
        if len(layer.bounds) <= width:
            return layer
        order = np.argsort(layer.bounds, kind="stable")
        best, rest = _chosen(layer, order[: width // 2]), _chosen(layer, order[width // 2 :])
        labels = rest.labels
        groups, group = np.unique(keys(labels), return_inverse=True)
        for column in range(-1, labels.shape[1]):
            if len(groups) <= width // 2:
                break
            if column < 0:
                labels = self._coarser[labels]
            else:
                labels[:, column] = self._any
            groups, group = np.unique(keys(labels), return_inverse=True)
        names = np.zeros((len(groups), labels.shape[1]), dtype=np.intp)
        names[group] = labels
        numbers, bounds = np.full((len(groups), rest.numbers.shape[1]), inf), np.full(len(groups), inf)
        np.minimum.at(numbers, group, rest.numbers)
        np.minimum.at(bounds, group, rest.bounds)
        return _Layer(
            layer.live,
            layer.windows,
            np.concatenate([best.labels, names]),
            np.concatenate([best.numbers, numbers]),
            np.concatenate([best.bounds, bounds]),
        )

    def _left(self) -> list[np.ndarray]:
        """The shortest time from the end of each node to that of the request, by label."""
        table = self.table
        seconds = np.where(table.allowed, table.seconds, NEVER)
        tails = [np.zeros(table.labels)] * len(table.nodes)
        after: list[list[tuple[int, np.ndarray]]] = [[] for _ in table.nodes]
        for node, edges in enumerate(self._reads):
            for edge in edges:
                if edge.producer is not None:
                    after[edge.producer].append((node, edge.path[: table.labels]))
        for node in reversed(range(len(tails))):
            tail = np.zeros(table.labels)
            for answer in self._answers[node]:
                tail = np.maximum(tail, answer)
            for reader, path in after[node]:
                tail = np.maximum(tail, (path + (seconds[reader] + tails[reader])[None]).min(axis=1))
            tails[node] = tail
        return tails

    def _edge(self, way: Way) -> _Edge:
        table = self.table
        path = self._path(way)
        entered = table.overhead_s[table.device]
        path = path + np.where(way.far | (way.producer is None), entered, 0.0)
        # Who reads float dequantises for itself; where only int8 is sent, after it has come.
        near = np.where(way.shared, 0.0, way.floats[..., AFTER])
        load = np.where(way.far, np.where(way.floats[..., DELAY] >= NEVER, way.ints[..., AFTER], 0.0), near)
        shared = np.where(way.shared, way.floats[..., AFTER] * way.share, 0.0)
        result = [path, load, shared, way.noise]
        if way.producer is not None:
            allowed = table.allowed[way.producer]
            result = [self._coarse(each, allowed) for each in result]
        return _Edge(way.producer, *result)

    def _path(self, way: Way) -> np.ndarray:
        floats, ints = way.floats[..., :BYTES].sum(axis=-1), way.ints[..., :BYTES].sum(axis=-1)
        result: np.ndarray = np.minimum(floats, ints)
        return result

    def _coarse(self, rows: np.ndarray, allowed: np.ndarray) -> np.ndarray:
        """With the least over every device's labels, and over all, as further rows."""
        held = np.where(allowed.reshape(-1, *(1,) * (rows.ndim - 1)), rows, NEVER)
        devices = held.reshape(self.table.devices, len(rows) // self.table.devices, *rows.shape[1:]).min(axis=1)
        return np.concatenate([rows, devices, devices.min(axis=0, keepdims=True)])


def _chosen(layer: _Layer, which: np.ndarray) -> _Layer:
    return _Layer(layer.live, layer.windows, layer.labels[which], layer.numbers[which], layer.bounds[which])


def keys(labels: np.ndarray) -> np.ndarray:
    """One number for each row of labels, the same for equal rows alone."""
    key, base = np.zeros(len(labels), dtype=np.int64), int(labels.max(initial=0)) + 1
    for column in range(labels.shape[1]):
        if len(key) and int(key.max()) > 2**62 // base:
            key = np.unique(key, return_inverse=True)[1]
        key = key * base + labels[:, column]
    return key
