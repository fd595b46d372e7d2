"""What a value costs between the states of its producer and readers, as tables. The formula is in problem.py.

Devices are counted among those that a part's ends can still be on (`Parts.places`), d of them: a producer's state is
kind · d + device, a reader's is 2 · device + (reads int8). A value with one to `arity` edges
is one table, exact. One with more is split into parts of at most `arity` edges, each of which pays its share of what is
paid once: the sum of the parts is then a lower bound (a maximum is at least any convex combination).
"""

from dataclasses import dataclass
from functools import lru_cache

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


def tables(
    market: Market, priced: Priced, parts: Parts, chosen: np.ndarray, places: np.ndarray, arity: int
) -> np.ndarray:
    """Tables of the `chosen` parts, all of `arity` edges, over the devices `places` (part, d):
    (producer state, reader state, …, part). Parts are the last axis, so that inner loops are long."""
    value, (count, devices) = parts.value[chosen], places.shape
    edges, share = parts.edges[chosen, :arity].T, parts.share[chosen]
    source, target = places.T[:, None], places.T[None]
    quantize = priced.quantize[value, np.arange(2)[:, None, None], target] * share
    blocks = _Blocks(
        priced.send_float[value, source, target] * share,
        priced.send_int8[value, source, target] * share,
        quantize[0],
        priced.dequantize[value, places.T],
        priced.wire[edges] if market.problem.wire_only else np.full(edges.shape, BIG),
    )
    result = blocks.spread(arity)
    without, with_int8 = result[0], result[1]
    paid = with_int8 + quantize.reshape(2, devices, *(1,) * (2 * arity), count)
    np.minimum(without, paid, out=result[:2])
    # What int8 readers add wherever they are, in every float state of the producer.
    for slot in range(arity):
        result[:2] += priced.edge[edges[slot]] * _reads(2 * slot + 1, 2 * arity)
    return result.reshape(3 * devices, *(2 * devices,) * arity, count)


class _Blocks:
    """Costs of the readers that share a device, for the ways that the producer can write: (way, from, to, reads int8,
    …, part).

    `send_float` and `send_int8` are (from, to, part), `again` and `dequantize` (device, part), `wire` (slot, part).
    """

    def __init__(
        self,
        send_float: np.ndarray,
        send_int8: np.ndarray,
        again: np.ndarray,
        dequantize: np.ndarray,
        wire: np.ndarray,
    ) -> None:
        self.devices, self.count = dequantize.shape
        self.send_float, self.send_int8, self.again = send_float, send_int8, again
        self.dequantize, self.wire = dequantize, wire
        self.least = np.minimum(again, send_int8)

    def ways(self, slots: tuple[int, ...]) -> np.ndarray:
        """Readers of these slots: without an int8 copy, with one made at home, of a value written as int8."""
        lifted = len(slots)
        ones = (1,) * lifted
        some = _ints(lifted)[..., None] > 0
        result = np.empty((3, self.devices, self.devices, *(2,) * lifted, self.count))
        float_only, with_int8, from_int8 = result
        send_float, send_int8 = _lift(self.send_float, lifted), _lift(self.send_int8, lifted)
        # No int8 copy exists: other devices quantise again, int8 readers at home are not served.
        np.add(send_float, np.where(some, self.again.reshape(1, self.devices, *ones, self.count), 0.0), out=float_only)
        _at_home(float_only)[...] = np.where(some, BIG, 0.0)
        # The producer wrote int8: float readers dequantise, other devices get the int8 copy.
        from_int8[...] = send_int8
        wired = np.zeros((*(2,) * lifted, self.count))
        for place, slot in enumerate(slots):
            floats = 1.0 - _reads(place, lifted)
            from_int8 += self.dequantize.reshape(1, self.devices, *ones, self.count) * floats
            wired += self.wire[slot] * floats
        # An int8 copy exists on the producer's device: each device takes what is cheapest.
        np.add(send_float, np.where(some, _lift(self.least, lifted), 0.0), out=with_int8)
        np.minimum(with_int8, from_int8 + wired, out=with_int8)
        _at_home(with_int8)[...] = 0.0
        return result

    def spread(self, arity: int) -> np.ndarray:
        """Costs for every state of every reader: (way, from, to, int8, to, int8, …, part)."""
        single = [self.ways((slot,)) for slot in range(arity)]
        if arity == 1:
            return single[0]
        result = np.empty((3, self.devices, *(self.devices, 2) * arity, self.count))
        np.add(_beside(single[0], 0, arity), _beside(single[1], 1, arity), out=result)
        for slot in range(2, arity):
            result += _beside(single[slot], slot, arity)
        for shared, rest in _partitions(arity):
            # Where the readers of `shared` are on one device: a view of the diagonal.
            axes = "".join(("a" if slot in shared else "b") + "ijk"[slot] for slot in range(arity))
            order = "a" + "".join("ijk"[slot] for slot in shared) + "".join("b" + "ijk"[slot] for slot in rest)
            there = np.einsum(f"wf{axes}p->wf{order}p", result)
            joint = self.ways(shared)
            if rest:
                joint = joint[..., None, None, :] + single[rest[0]][:, :, None, None, None]
            there[...] = joint
        return result


def _beside(table: np.ndarray, slot: int, arity: int) -> np.ndarray:
    """One reader's (way, from, to, int8, part), laid along that reader's axes."""
    before, after = (1, 1) * slot, (1, 1) * (arity - 1 - slot)
    return table.reshape(*table.shape[:2], *before, *table.shape[2:4], *after, table.shape[4])


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
def _partitions(arity: int) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    """(readers that share a device, the others), fewer of them first."""
    if arity == 2:
        return (((0, 1), ()),)
    if arity == 3:
        return (((0, 1), (2,)), ((0, 2), (1,)), ((1, 2), (0,)), ((0, 1, 2), ()))
    return ()
