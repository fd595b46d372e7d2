"""Every cost with all that it counts towards at once: the objective first, then each row in units of its limit.

What a move changes is worked out from the values that it touches alone, for many moves in one pass. Decides nothing.
"""

import numpy as np

from taglio.plan.prices import Market, Priced


class Ledger:
    """Arrays as in `Priced`, each with a last axis over (objective, *rows)."""

    def __init__(self, market: Market) -> None:
        self.market = market
        rows = len(market.rows)
        priced = [market.price(np.zeros(rows)), *(market.price(unit, 0.0) for unit in np.eye(rows))]
        self.width = 1 + rows
        self.unary = np.stack([each.unary for each in priced], axis=-1)
        self.send_float = np.stack([each.send_float for each in priced], axis=-1)
        self.send_int8 = np.stack([each.send_int8 for each in priced], axis=-1)
        self.quantize = np.stack([each.quantize for each in priced], axis=-1)
        self.dequantize = np.stack([each.dequantize for each in priced], axis=-1)
        self.edge = np.stack([each.edge for each in priced], axis=-1)
        self.wire = np.stack([each.wire for each in priced], axis=-1)
        values = market.problem.values
        self.fan_out = np.diff(values.start)
        inner = values.producer >= 0
        read = values.readers >= 0
        pairs = np.unique(
            np.concatenate(
                [
                    np.column_stack([values.producer[inner], np.flatnonzero(inner)]),
                    np.column_stack([values.readers[read], market.edge_value[read]]),
                ]
            ),
            axis=0,
        ).reshape(-1, 2)
        # Values that a node writes or reads.
        self.touched = pairs[:, 1]
        self.touches = np.searchsorted(pairs[:, 0], np.arange(market.nodes + 1))

    def totals(self, priced: Priced, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Sums over the whole problem, and by value, with copies chosen at these prices."""
        every = np.arange(len(self.fan_out))
        owner, edge, producer, reader = self._ends(every)
        use = self._use(priced, every, owner, edge, labels[producer], labels[reader])
        total = self.unary[np.arange(len(labels)), labels].sum(axis=0) + use.sum(axis=0)
        total[0] += self.market.problem.constant
        return total, use

    def changes(
        self, priced: Priced, labels: np.ndarray, use: np.ndarray, nodes: np.ndarray, to: np.ndarray
    ) -> np.ndarray:
        """What giving node nodes[m] the label to[m], alone, adds to every sum; `use` is by value, from `totals`."""
        value, move = self._touched(nodes)
        owner, edge, producer, reader = self._ends(value)
        moved, taken = nodes[move], to[move]
        written = np.where(producer == moved, taken, labels[producer])
        read = np.where(reader == moved[owner], taken[owner], labels[reader])
        new = self._use(priced, value, owner, edge, written, read) - use[value]
        result: np.ndarray = self.unary[nodes, to] - self.unary[nodes, labels[nodes]]
        np.add.at(result, move, new)
        return result

    def _touched(self, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Values that each of a list of nodes writes or reads, and whose they are."""
        counts = self.touches[nodes + 1] - self.touches[nodes]
        return self.touched[np.repeat(self.touches[nodes], counts) + _ramp(counts)], np.repeat(
            np.arange(len(nodes)), counts
        )

    def _ends(self, value: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Edges of a list of values with their owners in the list, and producers and readers (0 where outside)."""
        values = self.market.problem.values
        counts = self.fan_out[value]
        owner = np.repeat(np.arange(len(value)), counts)
        edge = np.repeat(values.start[value], counts) + _ramp(counts)
        return owner, edge, np.maximum(values.producer[value], 0), np.maximum(values.readers[edge], 0)

    def _use(
        self,
        priced: Priced,
        value: np.ndarray,
        owner: np.ndarray,
        edge: np.ndarray,
        written: np.ndarray,
        read: np.ndarray,
    ) -> np.ndarray:
        """What each of a list of values counts, given its producer's label and its readers'."""
        market = self.market
        values = market.problem.values
        producer, reader, home = values.producer[value], values.readers[edge], values.home[value]
        place = np.where(producer < 0, home, market.label_device[written])
        kind = np.where(producer < 0, 0, market.label_writes[written])
        device = np.where(reader < 0, home[owner], market.label_device[read])
        int8 = (reader >= 0) & (market.label_reads[read] == 2)
        chosen = market.choose(priced, value, place, kind, owner=owner, edge=edge, to=device, int8=int8)
        rows = np.arange(len(value))
        result = np.zeros((len(value), self.width))
        at, target = np.nonzero(chosen.choice)
        copies = chosen.choice[at, target]
        v, a = value[at], place[at]
        sent = (copies & 1)[:, None] * self.send_float[v, a, target]
        sent += (copies >> 1)[:, None] * self.send_int8[v, a, target]
        np.add.at(result, at, sent)
        at, target = np.nonzero(chosen.again)
        np.add.at(result, at, self.quantize[value[at], 0, target])
        at, target = np.nonzero(chosen.dequantized)
        np.add.at(result, at, chosen.dequantized[at, target][:, None] * self.dequantize[value[at], target])
        here = rows[chosen.quantized]
        result[here] += self.quantize[value[here], np.minimum(kind[here], 1), place[here]]
        np.add.at(result, owner[chosen.noisy], self.edge[edge[chosen.noisy]])
        np.add.at(result, owner[chosen.wired], self.wire[edge[chosen.wired]])
        strict = values.strict[edge] & (market.label_reads[read] != kind[owner])
        result[:, 0] += _FORBIDDEN * np.bincount(owner[strict], minlength=len(value))
        return result


# More than any objective: a move that a strict edge forbids is never an improvement.
_FORBIDDEN = 1e9


def _ramp(counts: np.ndarray) -> np.ndarray:
    """0, 1, … within each of `counts`."""
    result: np.ndarray = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    return result
