"""What a value costs between the states of its producer and readers, as tables. The formula is in problem.py.

Devices are counted among those that a part's ends can still be on (`Parts.places`), d of them: a producer's state is
kind · d + device, a reader's is 2 · device + (reads int8). A value with one to `arity` edges
is one table, exact. One with more is split into parts of at most `arity` edges, each of which pays its share of what is
paid once: the sum of the parts is then a lower bound (a maximum is at least any convex combination).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

from taglio.plan.prices import BIG, Market, Priced


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


def split(market: Market, arity: int, chosen: np.ndarray) -> Parts:
    """The `chosen` values in parts of at most `arity` edges."""
    start = market.problem.values.start
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


class Tables:
    """Tables of the `chosen` parts, all of `arity` edges, over the devices `places` (part, d): (producer state, reader
    state, …, part). Parts are the last axis, so that inner loops are long.

    Prices of noise change from call to call, those of the resources seldom: what hangs on the latter alone is kept.
    """

    def __init__(self, market: Market, parts: Parts, chosen: np.ndarray, places: np.ndarray, arity: int) -> None:
        self.market, self.arity, self.places = market, arity, places
        self.value, self.share = parts.value[chosen], parts.share[chosen]
        self.edges = parts.edges[chosen, :arity].T
        self.settled_at: np.ndarray | None = None

    def at(self, priced: Priced) -> np.ndarray:
        """The tables at these prices."""
        if priced.send_float is not self.settled_at:
            self._settle(priced)
        arity, (count, devices) = self.arity, self.places.shape
        blocks = self.blocks
        wire = priced.wire[self.edges] if self.market.problem.wire_only else np.full(self.edges.shape, BIG)
        result = np.empty((3, *self.without.shape))
        # Written in float or float behind an anchor: all without int8 copies, or all that pay to make one at home.
        np.add(_spread(partial(blocks.with_int8, wire=wire), arity), self.paid, out=result[:2])
        np.minimum(self.without, result[:2], out=result[:2])
        result[2] = self.from_int8
        # What int8 readers add wherever they are, in every float state of the producer.
        for slot in range(arity):
            result[:2] += priced.edge[self.edges[slot]] * _reads(2 * slot + 1, 2 * arity)
        return result.reshape(3 * devices, *(2 * devices,) * arity, count)

    def _settle(self, priced: Priced) -> None:
        """Work out what the prices of the resources decide."""
        value, share, (count, devices) = self.value, self.share, self.places.shape
        source, target = self.places.T[:, None], self.places.T[None]
        quantize = priced.quantize[value, np.arange(2)[:, None, None], target] * share
        self.blocks = _Blocks(
            priced.send_float[value, source, target] * share,
            priced.send_int8[value, source, target] * share,
            quantize[0],
            priced.dequantize[value, self.places.T],
        )
        self.paid = quantize.reshape(2, devices, *(1,) * (2 * self.arity), count)
        self.without, self.from_int8 = _spread(self.blocks.settled, self.arity)
        self.settled_at = priced.send_float


class _Blocks:
    """Costs of the readers that share a device, by the way that the producer writes: (way, from, to, reads int8, …,
    part).

    `send_float` and `send_int8` are (from, to, part), `again` and `dequantize` (device, part).
    """

    def __init__(
        self, send_float: np.ndarray, send_int8: np.ndarray, again: np.ndarray, dequantize: np.ndarray
    ) -> None:
        self.devices, self.count = dequantize.shape
        self.send_float, self.send_int8, self.again, self.dequantize = send_float, send_int8, again, dequantize
        self.kept: dict[tuple[int, ...], tuple[np.ndarray, np.ndarray]] = {}

    def settled(self, slots: tuple[int, ...]) -> np.ndarray:
        """Readers of these slots: without an int8 copy, and of a value written as int8."""
        lifted = len(slots)
        ones = (1,) * lifted
        some = _ints(lifted)[..., None] > 0
        result = np.empty((2, self.devices, self.devices, *(2,) * lifted, self.count))
        float_only, from_int8 = result
        send_float, send_int8 = _lift(self.send_float, lifted), _lift(self.send_int8, lifted)
        # No int8 copy exists: other devices quantise again, int8 readers at home are not served.
        np.add(send_float, np.where(some, self.again.reshape(1, self.devices, *ones, self.count), 0.0), out=float_only)
        _at_home(float_only)[...] = np.where(some, BIG, 0.0)
        # The producer wrote int8: float readers dequantise, other devices get the int8 copy.
        from_int8[...] = send_int8
        for place in range(lifted):
            floats = 1.0 - _reads(place, lifted)
            from_int8 += self.dequantize.reshape(1, self.devices, *ones, self.count) * floats
        least = _lift(np.minimum(self.again, self.send_int8), lifted)
        self.kept[slots] = send_float + np.where(some, least, 0.0), from_int8
        return result

    def with_int8(self, slots: tuple[int, ...], *, wire: np.ndarray) -> np.ndarray:
        """The same with an int8 copy made on the producer's device, after `settled`: each device takes what is
        cheapest. `wire` (slot, part) is what a float reader of the int8 copy costs in noise."""
        both, from_int8 = self.kept[slots]
        wired = np.zeros((*(2,) * len(slots), self.count))
        for place, slot in enumerate(slots):
            wired += wire[slot] * (1.0 - _reads(place, len(slots)))
        result = np.empty((1, *both.shape))
        np.add(from_int8, wired, out=result[0])
        np.minimum(both, result[0], out=result[0])
        _at_home(result[0])[...] = 0.0
        return result


def _spread(ways: Callable[[tuple[int, ...]], np.ndarray], arity: int) -> np.ndarray:
    """Costs for every state of every reader, (way, from, to, int8, to, int8, …, part), from those of readers that share
    a device."""
    ways = lru_cache(ways)
    kinds, devices, *_, count = ways((0,)).shape
    result = np.empty((kinds, devices, *(devices, 2) * arity, count))
    for blocks in _partitions(arity):
        # Where the readers of each block are on one device: a view of the diagonal.
        at = {slot: letter for letter, block in zip("abcde", blocks, strict=False) for slot in block}
        axes = "".join(at[slot] + "ijklm"[slot] for slot in range(arity))
        order = "".join(at[block[0]] + "".join("ijklm"[slot] for slot in block) for block in blocks)
        there = np.einsum(f"wf{axes}p->wf{order}p", result)
        begin, end = 2, there.ndim - 1
        for block in blocks:
            table, own = ways(block), 1 + len(block)
            laid = (*table.shape[:2], *(1,) * (begin - 2), *table.shape[2:-1], *(1,) * (end - begin - own), count)
            np.add(there if begin > 2 else 0.0, table.reshape(laid), out=there)
            begin += own
    return result


def _at_home(table: np.ndarray) -> np.ndarray:
    """The cells of a (from, to, …) table where a reader is where the producer is: a view."""
    view: np.ndarray = np.einsum("ii...->i...", table)
    return view


@lru_cache
def _reads(place: int, axes: int) -> np.ndarray:
    """1 where axis `place` of `axes` is 1 (the reader reads int8), laid out for broadcasting before a last axis."""
    return np.arange(2.0).reshape(*(2 if axis == place else 1 for axis in range(axes)), 1)


def _lift(table: np.ndarray, axes: int) -> np.ndarray:
    """A (from, to, part) table with `axes` axes before the last."""
    return table.reshape(*table.shape[:-1], *(1,) * axes, table.shape[-1])


@lru_cache
def _ints(slots: int) -> np.ndarray:
    """How many of `slots` readers read int8, by their states."""
    result: np.ndarray = np.indices((2,) * slots).sum(axis=0)
    return result


@lru_cache
def _partitions(arity: int) -> list[tuple[tuple[int, ...], ...]]:
    """Which readers share a device: every partition of them, those of more blocks first."""
    found: list[tuple[tuple[int, ...], ...]] = [()]
    for slot in range(arity):
        found = [
            (*blocks[:number], (*block, slot), *blocks[number + 1 :])
            for blocks in found
            for number, block in enumerate((*blocks, ()))
        ]
    return sorted(found, key=len, reverse=True)
