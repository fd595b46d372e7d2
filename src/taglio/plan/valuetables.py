"""What a value costs between the states of its producer and readers, as tables. The formula is in problem.py.

Devices are counted among those that a part's ends can still be on (`Parts.places`), d of them: a producer's state is
kind · d + device, a reader's is 2 · device + (reads int8). A value with one to `arity` edges
is one table, exact. One with more is split into parts of at most `arity` edges, each of which pays its share of what is
paid once: the sum of the parts is then a lower bound (a maximum is at least any convex combination).
"""

from collections.abc import Callable
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
    (part, producer state, reader state, …)."""
    value, devices = parts.value[chosen], places.shape[1]
    edges, share = parts.edges[chosen, :arity], parts.share[chosen]
    diagonal = np.eye(devices, dtype=bool)
    of, source, target = value[:, None, None], places[:, :, None], places[:, None, :]
    quantize = priced.quantize[of, np.arange(2)[None, :, None], places[:, None, :]] * share[:, None, None]
    blocks = _Blocks(
        priced.send_float[of, source, target] * share[:, None, None],
        priced.send_int8[of, source, target] * share[:, None, None],
        quantize[:, 0],
        priced.dequantize[value[:, None], places],
        priced.wire[edges] if market.problem.wire_only else np.full(edges.shape, BIG),
        diagonal,
    )
    count = len(value)
    size = (devices, 2) * arity
    # What int8 readers add wherever they are, in every float state of the producer.
    noise = np.zeros((count, 1, *size))
    for slot in range(arity):
        noise = noise + _along(np.stack([np.zeros(count), priced.edge[edges[:, slot]]], axis=1), slot, arity)
    without = blocks.spread(arity, blocks.float_only)
    with_int8 = blocks.spread(arity, blocks.with_int8)
    result = np.empty((count, 3, devices, *size))
    tail = (1,) * (2 * arity)
    for kind in range(2):
        paid = with_int8 + quantize[:, kind].reshape(count, devices, *tail)
        np.minimum(without, paid, out=result[:, kind])
        result[:, kind] += noise
    result[:, 2] = blocks.spread(arity, blocks.from_int8)
    return result.reshape(count, 3 * devices, *(2 * devices,) * arity)


def _along(pair: np.ndarray, slot: int, arity: int) -> np.ndarray:
    """A (part, reads int8) array laid along one reader's axis."""
    shape = [len(pair), 1, *(1, 1) * arity]
    shape[3 + 2 * slot] = 2
    return pair.reshape(shape)


class _Blocks:
    """Costs of the readers that share a device, for one way that the producer wrote: (part, from, to, reads int8 …)."""

    def __init__(
        self,
        send_float: np.ndarray,
        send_int8: np.ndarray,
        again: np.ndarray,
        dequantize: np.ndarray,
        wire: np.ndarray,
        diagonal: np.ndarray,
    ) -> None:
        self.count, self.devices = dequantize.shape
        self.send_float, self.send_int8, self.again = send_float, send_int8, again
        self.dequantize, self.wire, self.diagonal = dequantize, wire, diagonal

    def float_only(self, slots: tuple[int, ...]) -> np.ndarray:
        """No int8 copy exists: other devices quantise again, int8 readers at home are not served."""
        result = np.empty((self.count, self.devices, self.devices, *(2,) * len(slots)))
        result[...] = _lift(self.send_float, len(slots))
        ints = _ints(len(slots)) > 0
        result[..., ints] += self.again[:, None, :, None]
        here = np.where(ints, BIG, 0.0)
        result[:, self.diagonal] = here
        return result

    def with_int8(self, slots: tuple[int, ...]) -> np.ndarray:
        """An int8 copy exists on the producer's device: each device takes what is cheapest."""
        ints = _ints(len(slots))
        some = ints > 0
        result = np.empty((self.count, self.devices, self.devices, *(2,) * len(slots)))
        result[...] = _lift(self.send_float, len(slots))
        result[..., some] += np.minimum(self.again[:, None, :], self.send_int8)[..., None]
        wired = self._dequantized(slots, self.wire) + _lift(self.send_int8, len(slots))
        np.minimum(result, wired, out=result)
        result[:, self.diagonal] = 0.0
        return result

    def from_int8(self, slots: tuple[int, ...]) -> np.ndarray:
        """The producer wrote int8: float readers dequantise, other devices get the int8 copy."""
        result: np.ndarray = self._dequantized(slots, np.zeros_like(self.wire)) + _lift(self.send_int8, len(slots))
        return result

    def _dequantized(self, slots: tuple[int, ...], extra: np.ndarray) -> np.ndarray:
        result = np.zeros((self.count, 1, self.devices, *(2,) * len(slots)))
        for place, slot in enumerate(slots):
            shape = [self.count, 1, self.devices, *(1,) * len(slots)]
            shape[3 + place] = 2
            cost = self.dequantize + extra[:, slot, None]
            result = result + np.stack([cost, np.zeros_like(cost)], axis=2).reshape(shape)
        return result

    def spread(self, arity: int, block: Callable[[tuple[int, ...]], np.ndarray]) -> np.ndarray:
        """Costs for every state of every reader: (part, from, to, int8, to, int8, …)."""
        shape = (self.count, self.devices, *(self.devices, 2) * arity)
        result = np.zeros(shape)
        single = [block((slot,)) for slot in range(arity)]
        for slot, table in enumerate(single):
            axes = [self.count, self.devices, *(1, 1) * arity]
            axes[2 + 2 * slot], axes[3 + 2 * slot] = self.devices, 2
            result += table.reshape(axes)
        for groups in _partitions(arity):
            joint = [block(group) for group in groups if len(group) > 1]
            shared = [group for group in groups if len(group) > 1]
            for device in range(self.devices):
                where: list[slice | int] = [slice(None)] * len(shape)
                group, table = shared[0], joint[0]
                for slot in group:
                    where[2 + 2 * slot] = device
                rest = [slot for slot in range(arity) if slot not in group]
                total = table[:, :, device]
                axes, kept = [self.count, self.devices], [2] * len(group)
                layout: list[int] = []
                for slot in range(arity):
                    layout += [2] if slot in group else [1, 1]
                total = total.reshape(*axes, *layout) if rest else total.reshape(*axes, *kept)
                for slot in rest:
                    layout = []
                    for other in range(arity):
                        layout += [1] if other in group else ([self.devices, 2] if other == slot else [1, 1])
                    total = total + single[slot].reshape(*axes, *layout)
                result[tuple(where)] = total
        return result


def _lift(table: np.ndarray, axes: int) -> np.ndarray:
    return table.reshape(*table.shape, *(1,) * axes)


@lru_cache
def _ints(slots: int) -> np.ndarray:
    """How many of `slots` readers read int8, by their states."""
    result: np.ndarray = np.indices((2,) * slots).sum(axis=0)
    return result


@lru_cache
def _partitions(arity: int) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Which readers share a device, the finer partitions first; those where none does are left out."""
    if arity == 2:
        return (((0, 1),),)
    if arity == 3:
        return (((0, 1), (2,)), ((0, 2), (1,)), ((1, 2), (0,)), ((0, 1, 2),))
    return ()
