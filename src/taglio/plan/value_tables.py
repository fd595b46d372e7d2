"""What a value costs between the states of its producer and readers. The formula is in problem.py.

A value with one to `arity` edges is one part, exact. One with more is split into parts of at most `arity` edges, each
of which pays its share of what is paid once: the sum of the parts is then a lower bound (a maximum is at least any
convex combination). Where quantising saves time, each part saves it all.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from taglio.plan.cost_tables import BIG, Priced
from taglio.plan.costs import Costs, ways
from taglio.plan.problem import Kind


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """Values cut into parts: `value` and `share` by part, `edges` (part, slot) with −1 beyond the part's own."""

    value: np.ndarray
    edges: np.ndarray
    count: np.ndarray
    share: np.ndarray

    @property
    def exact(self) -> bool:
        """Whether no value had to be split."""
        return bool((self.share == 1.0).all())


def split(costs: Costs, arity: int, chosen: np.ndarray) -> Parts:
    """The `chosen` values in parts of at most `arity` edges."""
    start = costs.problem.values.start
    fan_out = np.diff(start)
    pieces = np.zeros(len(fan_out), dtype=np.intp)
    pieces[chosen] = -(-fan_out[chosen] // arity)
    value = np.repeat(np.arange(len(fan_out)), pieces)
    nth = np.arange(len(value)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    # Parts of a value are as even as can be: six edges are two threes, four are two twos.
    size = -(-fan_out[value] // pieces[value])
    first = start[value] + nth * size
    count = np.minimum(size, start[value + 1] - first)
    slots = np.arange(arity)[None, :]
    edges = np.where(slots < count[:, None], first[:, None] + slots, -1)
    keep = count > 0
    share = np.maximum(count, 0) / np.maximum(1, fan_out[value])
    return Parts(value[keep], edges[keep], count[keep], share[keep])


class States(NamedTuple):
    """What each cell stands for: the number of its part among those of the tables, the kind that the part's producer
    writes in and where, and by slot (arity, cells) where its readers are and whether they read int8."""

    part: np.ndarray
    kind: np.ndarray
    source: np.ndarray
    target: np.ndarray
    int8: np.ndarray


class Tables:
    """Costs of cells of the `chosen` parts, which all have as many edges; cells of values written in int8 come last.

    Readers that share a device are served together: what they cost hangs on their devices, the producer's and which of
    them read int8, and many cells have such a group in common. Prices of noise change from call to call, those of the
    resources seldom: what hangs on the latter alone is kept.
    """

    def __init__(self, costs: Costs, parts: Parts, chosen: np.ndarray, states: States) -> None:
        self.costs, self.states = costs, states
        self.value, self.share = parts.value[chosen], parts.share[chosen]
        self.floats = int((states.kind != Kind.INT8).sum())
        self._group(parts.edges[chosen, : len(states.target)].T)
        self.settled_at: np.ndarray | None = None

    def _group(self, edges: np.ndarray) -> None:
        """Number the groups of readers that are met, by part, devices and members: `groups` (arity, cells) has the
        number of a group at its first slot, and at others that of nothing, which comes last."""
        states, devices = self.states, self.costs.devices
        arity, count = states.target.shape
        patterns, none = 3**arity, len(self.costs.readers)
        keys = np.zeros((arity, count), dtype=np.intp)
        first = np.ones((arity, count), dtype=bool)
        place = (states.part * devices + states.source) * devices
        for slot in range(arity):
            for other in range(arity):
                together = states.target[slot] == states.target[other]
                keys[slot] += 3**other * np.where(together, 1 + states.int8[other], 0)
                if other < slot:
                    first[slot] &= ~together
            keys[slot] += (place + states.target[slot]) * patterns
        met = np.zeros(len(self.value) * devices * devices * patterns, dtype=bool)
        met[keys[first]] = True
        found = np.flatnonzero(met)
        self.groups = np.where(first, (np.cumsum(met) - 1)[keys], len(found))
        where, pattern = np.divmod(found, patterns)
        member = pattern // 3 ** np.arange(arity)[:, None] % 3
        self.part, there = np.divmod(where, devices * devices)
        self.source, self.target = np.divmod(there, devices)
        self.some, self.reading = (member == 2).any(axis=0), (member == 1).sum(axis=0)
        self.wired = np.where(member == 1, edges[:, self.part], none)
        self.noisy = np.where(member == 2, edges[:, self.part], none)

    def at(self, priced: Priced) -> np.ndarray:
        """The costs at these prices, by cell."""
        if priced.send_float is not self.settled_at:
            self._settle(priced)
        if self.costs.problem.wire_only:
            wired = np.append(priced.wire, 0.0).take(self.wired).sum(axis=0)
        else:
            wired = BIG * self.reading
        # What int8 readers add wherever they are, in every float state of the producer.
        noise = np.append(priced.edge, 0.0).take(self.noisy).sum(axis=0)
        # Without an int8 copy made on the producer's device, and with one, of which each other device takes what is
        # cheapest: summed up over the groups at once, as the two parts of complex numbers.
        self.ways.real[:-1] = self.alone + noise
        self.ways.imag[:-1] = np.minimum(self.both, self.by_int8 + wired) + noise
        total, more = self.totals
        np.take(self.ways, self.groups[0, : self.floats], out=total, mode="clip")
        for groups in self.groups[1:, : self.floats]:
            np.add(total, np.take(self.ways, groups, out=more, mode="clip"), out=total)
        np.minimum(total.real, total.imag + self.paid, out=self.table[: self.floats])
        return self.table

    def _settle(self, priced: Priced) -> None:
        """Work out what the prices of the resources decide."""
        value, share, source, target = self.value[self.part], self.share[self.part], self.source, self.target
        send_float = priced.send_float[value, source, target] * share
        send_int8 = priced.send_int8[value, source, target] * share
        again = priced.quantize[value, 0, target]
        again = np.where(again > 0.0, again * share, again)
        home = source == target
        # No int8 copy exists: other devices quantise again, int8 readers at home are not served.
        restored = self.reading * priced.dequantize[value, target]
        # Of what the producer wrote in int8 other devices get the int8 copy, and float readers dequantise.
        by_float, self.from_int8, by_both = ways(send_float, send_int8, again, self.some, self.reading > 0, restored)
        self.alone = np.where(home, np.where(self.some, BIG, 0.0), by_float)
        self.both = np.where(home, 0.0, np.minimum(by_float, by_both))
        self.by_int8 = np.where(home, 0.0, self.from_int8)
        states, floats = self.states, self.floats
        part, kind, place = states.part[:floats], states.kind[:floats], states.source[:floats]
        paid = priced.quantize[self.value[part], kind, place]
        # Time that quantising saves counts whole in every part; and not where nobody can read an int8 copy.
        used = states.int8[:, :floats].any(axis=0)
        if self.costs.problem.wire_only:
            used |= (states.target[:, :floats] != place).any(axis=0)
        self.paid = np.where(paid > 0.0, paid * self.share[part], np.where(used, paid, 0.0))
        self.ways = np.zeros(len(value) + 1, dtype=complex)
        self.totals = np.empty((2, floats), dtype=complex)
        self.table = np.zeros(len(states.kind))
        self.table[floats:] = np.append(self.from_int8, 0.0)[self.groups[:, floats:]].sum(axis=0)
        self.settled_at = priced.send_float
