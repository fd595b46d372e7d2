"""A proven bound on one model's latency: a relaxed decision diagram over its blocks.

Blocks are taken in their order, each in every label. A state keeps what the rest can still feel: the labels and end
times of blocks that somebody has yet to read; of every window that is open (windows.py) when each device and each link
would be through with what it has of it; which values were sent to which device, as those are not sent again; the noise
so far; and when the caller has what it got. Of two states with the same labels the one that is nowhere better is
dropped; so is what cannot end before the target. Where more states are left than the width, the worse are merged: of
those with the same labels, then the same devices, then any, each number becomes the least, so that a merged state is no
worse than any of them (Bergman, Cire, van Hoeve and Hooker, Decision Diagrams for Optimization, 2016).

A state's bound adds what is left at least (completion.py). So the least of a layer's bounds is one on every placement,
and so is the highest of those.

Times agree with schedule.py where it charges something, and leave out what depends on how components are cut: waiting
for one's component, and more than one overhead between two crossings.
"""

import time
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from taglio.plan.completion import Completion, Edge
from taglio.plan.timetable import NEVER, Timetable
from taglio.plan.windows import END, START, Window

# States with the same labels that each is held against.
_COMPARED = 8
# Nodes inside all windows together, and numbers of the states of a layer, beyond which tables take too long or too much
# memory: then the largest windows are left out, or the layer is narrower.
_MOST_INSIDE, _MOST_NUMBERS = 20_000, 30_000_000


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    """States: `labels` and `ends` of the blocks in `live`; `done`, when the caller has what it got; by window when it
    `opened`, and when each device is `free` for what is in it; `busy`, by window and lane (the devices, then the
    links), until when, no later than `opened` where there was nothing; `paid`, by value in `copied` and device, how
    long a link was busy with it already, negative, so that less is better; `noise`; and `bounds`, what a request takes
    at least."""

    live: tuple[int, ...]
    windows: tuple[int, ...]
    copied: tuple[int, ...]
    labels: np.ndarray
    ends: np.ndarray
    done: np.ndarray
    opened: np.ndarray
    free: np.ndarray
    busy: np.ndarray
    paid: np.ndarray
    noise: np.ndarray
    bounds: np.ndarray

    def chosen(self, which: np.ndarray) -> "_Layer":
        """Some of the states."""
        numbers = (getattr(self, name)[which] for name in _NUMBERS)
        return _Layer(self.live, self.windows, self.copied, self.labels[which], *numbers)

    def numbers(self) -> np.ndarray:
        """All numbers of a state, the bound last, as a row."""
        return np.concatenate([getattr(self, name).reshape(len(self.bounds), -1) for name in _NUMBERS], axis=1)

    def with_merged(self, rest: "_Layer", begins: np.ndarray, labels: np.ndarray) -> "_Layer":
        """These and, for each run of states in `rest` that begins there, one of such labels and the least numbers."""
        labels = np.concatenate([self.labels, labels])
        numbers = (
            np.concatenate([getattr(self, name), np.minimum.reduceat(getattr(rest, name), begins, axis=0)])
            for name in _NUMBERS
        )
        return _Layer(self.live, self.windows, self.copied, labels, *numbers)


_NUMBERS = ("ends", "done", "opened", "free", "busy", "paid", "noise", "bounds")


@dataclass(frozen=True, slots=True, eq=False)
class _Taken:
    """An edge to the next block, by state and label of that: see Edge; `fully` is without what was paid already."""

    edge: Edge
    shared: np.ndarray
    sent: np.ndarray
    fully: np.ndarray
    lane: np.ndarray


class Diagram:
    """The diagrams of one model. What one finds to end no placement before its target is left out of the next: it is no
    longer `allowed`, a mask (nodes, labels)."""

    def __init__(self, table: Timetable, windows: tuple[Window, ...]) -> None:
        self.table = table
        by_size = sorted(windows, key=lambda window: len(window.nodes))
        inside = np.cumsum([len(window.nodes) for window in by_size])
        self._windows = tuple(by_size[: int(np.searchsorted(inside, _MOST_INSIDE, side="right"))])
        count, size = table.devices, table.labels
        # Any label of a device, and any at all, are labels of their own.
        self._coarser = np.concatenate([size + table.device, size + np.arange(count), [size + count]])
        self._any = size + count
        self._last, self._last_of = [-1] * len(table.nodes), dict[int, int]()
        for node, ways in enumerate(table.reads):
            for way in ways:
                if way.producer is not None:
                    self._last[way.producer] = self._last_of[way.value] = node
        # Values of which a device may have a copy when the next block there reads it: those with more than one reader.
        self._copied: list[list[int]] = [[] for _ in table.nodes]
        for way in (way for ways in table.reads for way in ways if way.share < 1.0):
            if way.producer is not None and way.value not in self._copied[way.producer]:
                self._copied[way.producer].append(way.value)
        self._restrict(table.allowed, inf)

    def bound(self, width: int, target_s: float, deadline: float) -> float:
        """Seconds that no placement undercuts: `target_s` where none ends before it."""
        if target_s > self._left_out:
            self._restrict(self.table.allowed, inf)
        found, layer, labels = 0.0, self._start(), self.allowed.copy()
        many = self.allowed.sum(axis=1).max() * self._ahead.most_open * (self._ahead.lanes + self.table.devices)
        width = max(2, min(width, int(_MOST_NUMBERS // max(1, many))))
        for node in range(len(self.table.nodes)):
            expanded, labels[node] = self._expanded(layer, node, target_s)
            if not len(expanded.bounds):
                return target_s
            found = max(found, float(expanded.bounds.min()))
            if time.perf_counter() > deadline:
                break
            layer = self._merged(self._undominated(expanded), width)
        else:
            found = max(found, float(layer.bounds.min()))
        if (labels != self.allowed).any() and time.perf_counter() + self._making_s < deadline:
            self._restrict(labels, target_s)
        return min(found, target_s)

    def _restrict(self, allowed: np.ndarray, target_s: float) -> None:
        """Try these labels alone; others end no placement before the target."""
        begun = time.perf_counter()
        self.allowed, self._left_out = allowed, target_s
        self._ahead = Completion(self.table, self._windows, allowed)
        self._making_s = time.perf_counter() - begun

    def _start(self) -> _Layer:
        windows = tuple(self._ahead.opening.get(START, ()))
        none = np.zeros((1, 0))
        opened, devices = np.zeros((1, len(windows))), self.table.devices
        free, busy = np.zeros((1, len(windows), devices)), np.zeros((1, len(windows), self._ahead.lanes))
        paid, noise, zero = np.zeros((1, 0, devices)), np.zeros((1, self.table.own.shape[2])), np.zeros(1)
        return _Layer((), windows, (), none.astype(np.intp), none, zero, opened, free, busy, paid, noise, zero)

    def _expanded(self, layer: _Layer, node: int, target_s: float) -> tuple[_Layer, np.ndarray]:
        """Every state with `node` in every label, as far as that may end before the target; and in which it may."""
        table, ahead, spans = self.table, self._ahead, self._ahead.spans
        labels = np.flatnonzero(self.allowed[node])
        start, load, noise, taken = self._entry(layer, node, labels)
        for index, window in enumerate(layer.windows):
            if spans[window].last == node:
                busy = np.repeat(layer.busy[:, None, index], len(labels), axis=1)
                for each in taken:
                    if each.edge.producer in spans[window].members:
                        self._add(busy, layer.opened[:, index, None], each.sent, each.lane)
                start = np.maximum(start, busy.max(axis=2))
        end = start + table.seconds[node, labels]
        worth = np.maximum(layer.bounds[:, None], end + ahead.tails[node][labels])
        uppers = np.array([each.upper for each in table.problem.noises])
        kept = (worth < min(target_s, NEVER * 1e-3)) & (noise <= uppers * (1.0 + 1e-6) + 1e-9).all(axis=2)
        state, which = np.nonzero(kept)
        pair = state, which
        label, ends = labels[which], end[pair]
        staying = [column for column, each in enumerate(layer.live) if self._last[each] > node]
        live, names, times = tuple(layer.live[each] for each in staying), layer.labels[state], layer.ends[state]
        names, times = names[:, staying], times[:, staying]
        if self._last[node] > node:
            live, names, times = (*live, node), np.column_stack([names, label]), np.column_stack([times, ends])
        copied, paid = self._paid(layer, node, pair, label, taken)
        open_, opened, free, busy = self._in_windows(layer, node, pair, label, ends, load, taken)
        done = layer.done[state]
        for edge in ahead.answers[node]:
            done = np.maximum(done, ends + edge.path[label, 0])
        if not ahead.answers[node] and self._last[node] < 0:
            done = np.maximum(done, ends)
        found = _Layer(live, open_, copied, names, times, done, opened, free, busy, paid, noise[pair], worth[pair])
        worth = self._worth(found, node)
        soon = worth < target_s
        return replace(found, bounds=worth).chosen(soon), np.isin(np.arange(table.labels), label[soon])

    def _in_windows(
        self,
        layer: _Layer,
        node: int,
        pair: tuple[np.ndarray, np.ndarray],
        label: np.ndarray,
        ends: np.ndarray,
        load: np.ndarray,
        taken: list[_Taken],
    ) -> tuple[tuple[int, ...], np.ndarray, np.ndarray, np.ndarray]:
        """The windows open after `node`; when each opened, when devices are free for it, until when lanes are busy."""
        table, ahead, spans = self.table, self._ahead, self._ahead.spans
        state, every = pair[0], np.arange(len(label))
        staying = [index for index, window in enumerate(layer.windows) if spans[window].last != node]
        opening = ahead.opening.get(node, [])
        new = np.broadcast_to(ends[:, None], (len(ends), len(opening)))
        idle = np.zeros((len(ends), len(opening), table.devices))
        for index, window in enumerate(opening):
            idle[:, index] = spans[window].before[label]
        opened = np.concatenate([layer.opened[state][:, staying], new], axis=1)
        free = np.concatenate([layer.free[state][:, staying], new[..., None] + idle], axis=1)
        busy = np.concatenate([layer.busy[state][:, staying], np.repeat(new[..., None], ahead.lanes, axis=2)], axis=1)
        open_ = (*(layer.windows[index] for index in staying), *opening)
        for index, window in enumerate(open_):
            span = spans[window]
            here = [each for each in taken if each.edge.producer in span.members]
            if node in span.inside:
                more = table.seconds[node, label] + sum((each.shared for each in here), load)[pair]
                own = every, index, table.device[label]
                unused = busy[own] <= opened[:, index]
                busy[own] = np.where(unused, np.maximum(busy[own], free[own]), busy[own]) + more
                for each in here:
                    self._add(busy[:, index], opened[:, index], each.sent[pair], each.lane[pair])
            if span.last == END and node in span.members:
                for edge in self._ahead.answers[node]:
                    self._add(busy[:, index], opened[:, index], edge.sent[label, 0], edge.lane[label, 0])
        return open_, opened, free, busy

    def _worth(self, layer: _Layer, node: int) -> np.ndarray:
        """What a request takes at least, after `node`: also of what is left of every open window."""
        worth: np.ndarray = np.maximum(layer.bounds, layer.done)
        for index, window in enumerate(layer.windows):
            span, busy = self._ahead.spans[window], layer.busy[:, index]
            free = np.maximum(busy[:, : self.table.devices], layer.free[:, index]) + span.until
            worth = np.maximum(worth, span.filled(free, span.left[node]))
            # The last block waits for all that it reads, wherever it runs.
            reach, loads = np.repeat(busy.max(axis=1)[:, None], self.table.devices, axis=1), busy.copy()
            for edge in span.reads:
                if edge.producer in layer.live:
                    column = layer.live.index(edge.producer)
                    rows = layer.labels[:, column]
                    reach = np.maximum(reach, layer.ends[:, column, None] + edge.path[rows])
                    if edge.producer in span.members:
                        sent = edge.sent[rows]
                        if edge.value in layer.copied:
                            sent = np.maximum(0.0, sent + layer.paid[:, layer.copied.index(edge.value)])
                        for device in range(self.table.devices):
                            self._add(loads, layer.opened[:, index], sent[:, device], edge.lane[rows, device])
            for number, (_, device) in enumerate(self.table.links, self.table.devices):
                reach[:, device] = np.maximum(reach[:, device], loads[:, number])
            worth = np.maximum(worth, (reach + span.after).min(axis=1))
        return worth

    def _entry(
        self, layer: _Layer, node: int, labels: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[_Taken]]:
        """From every state in every label of `node`: when it may start, what its device is busy with for it besides,
        the noise with it, and the edges to it."""
        table, states = self.table, len(layer.bounds)
        shape, device = (states, len(labels)), table.device[labels]
        start, load, noise = np.zeros(shape), np.zeros(shape), layer.noise[:, None] + table.own[node, labels]
        if not self._ahead.reads[node]:
            start += table.overhead_s[device]
        taken = []
        for edge in self._ahead.reads[node]:
            rows, ends = np.zeros(states, dtype=np.intp), np.zeros(states)
            if edge.producer != START:
                column = layer.live.index(edge.producer)
                rows, ends = layer.labels[:, column], layer.ends[:, column]
            path, more, shared, change, sent, lane = (
                each[:, labels][rows] for each in (edge.path, edge.load, edge.shared, edge.noise, edge.sent, edge.lane)
            )
            start, load, noise = np.maximum(start, ends[:, None] + path), load + more, noise + change
            fully = sent
            if edge.value in layer.copied:
                sent = np.maximum(0.0, sent + layer.paid[:, layer.copied.index(edge.value)][:, device])
            taken.append(_Taken(edge, shared, sent, fully, lane))
        return start, load, noise, taken

    def _paid(
        self, layer: _Layer, node: int, pair: tuple[np.ndarray, np.ndarray], label: np.ndarray, taken: list[_Taken]
    ) -> tuple[tuple[int, ...], np.ndarray]:
        """The values of which there may be copies after `node`, and how long links were busy with them."""
        table, count = self.table, len(label)
        paid, every = layer.paid[pair[0]], np.arange(count)
        for each in taken:
            if each.edge.value in layer.copied:
                column, device = layer.copied.index(each.edge.value), table.device[label]
                before = paid[every, column, device]
                paid[every, column, device] = np.where(
                    each.lane[pair] >= 0, np.minimum(before, -each.fully[pair]), before
                )
        staying = [column for column, value in enumerate(layer.copied) if self._last_of[value] > node]
        own = np.zeros((count, len(self._copied[node]), table.devices))
        for edge in self._ahead.answers[node]:
            if edge.value in self._copied[node]:
                own[:, self._copied[node].index(edge.value), table.home] = -edge.sent[label, 0]
        copied = (*(layer.copied[column] for column in staying), *self._copied[node])
        return copied, np.concatenate([paid[:, staying], own], axis=1)

    def _undominated(self, layer: _Layer) -> _Layer:
        """Without states that another one with the same labels is nowhere worse than."""
        # A merged state's bound holds for what was merged, not for what its numbers allow: it is held against as well.
        key, numbers = keys(layer.labels), layer.numbers()
        order = np.lexsort((numbers.sum(axis=1), key))
        first = np.r_[True, key[order][1:] != key[order][:-1]]
        begins = np.flatnonzero(first)[np.cumsum(first) - 1]
        numbers = numbers[order]
        place, alive = np.arange(len(order)) - begins, np.ones(len(order), dtype=bool)
        for rank in range(_COMPARED):
            some = np.flatnonzero(alive & (place > rank))
            some = some[alive[begins[some] + rank]]
            if not len(some):
                break
            beaten = (numbers[begins[some] + rank] <= numbers[some] + 1e-12).all(axis=1)
            alive[some[beaten]] = False
        return layer.chosen(order[alive])

    def _merged(self, layer: _Layer, width: int) -> _Layer:
        """At most about `width` states: the best half as they are, the rest merged."""
        if len(layer.bounds) <= width:
            return layer
        order = np.argsort(layer.bounds, kind="stable")
        best, rest = layer.chosen(order[: width // 2]), layer.chosen(order[width // 2 :])
        labels = rest.labels
        key = keys(labels)
        for column in range(-1, labels.shape[1]):
            if len(np.unique(key)) <= width // 2:
                break
            if column < 0:
                labels = self._coarser[labels]
            else:
                labels[:, column] = self._any
            key = keys(labels)
        order = np.argsort(key, kind="stable")
        begins = np.flatnonzero(np.r_[True, key[order][1:] != key[order][:-1]])
        return best.with_merged(rest.chosen(order), begins, labels[order[begins]])

    def _add(self, busy: np.ndarray, opened: np.ndarray, seconds: np.ndarray, lane: np.ndarray) -> None:
        """Add to links (lanes, the last axis of `busy`) what each is busy besides; the first also takes the delay."""
        used = np.nonzero((lane >= 0) & (seconds > 0.0))
        own = *used, lane[used]
        opened = np.broadcast_to(opened, lane.shape)[used]
        delayed = np.maximum(busy[own], opened + self._ahead.delay_s[own[-1]])
        busy[own] = np.where(busy[own] <= opened, delayed, busy[own]) + seconds[used]


def keys(labels: np.ndarray) -> np.ndarray:
    """One number for each row of labels, the same for equal rows alone."""
    key, base = np.zeros(len(labels), dtype=np.int64), int(labels.max(initial=0)) + 1
    for column in range(labels.shape[1]):
        if len(key) and int(key.max()) > 2**62 // base:
            key = np.unique(key, return_inverse=True)[1]
        key = key * base + labels[:, column]
    return key
