"""A priced problem as a sum over pairs of nodes, solved by elimination: one evaluation of the Lagrangian.

A value with several readers is split into one part per reader. Each part pays a share of what all readers pay together:
copies, and quantising where the value is written. So the least sum is a lower bound on the cost of any plan at any
prices and for any shares. Does not choose prices.
"""

from collections.abc import Sequence

import numpy as np

from taglio.cluster.planning.costs import BIG, KINDS, Account, Costs, Priced, ramp, ways
from taglio.cluster.planning.cutting_planes import Plane
from taglio.cluster.planning.elimination import schedule
from taglio.cluster.planning.problem import CALLER, SOURCE, Kind

# Larger tables are not built: only CP-SAT gives a bound then.
WIDEST = 3e6
# Weight of a reader that is never elsewhere than the writer, beside that of one which always is.
_STAYING = 0.02
# Sizes of axes: few for small tables, where the number of distinct shapes costs time; many for large tables.
_SIZES = np.array([1, 3, 6, 8, 9, 10, 12, 14, 16, 18, 20, 24, 30, 36, 42, 48, 64, 96, 128, 256, 512, 1024])


def pair_costs(costs: Costs, priced: Priced, share: np.ndarray) -> np.ndarray:
    """The least cost of every edge, which pays a share of its value's common costs: by edge, kind written, device of
    the producer, device of the reader, and whether that reads int8."""
    value, devices = costs.edge_value, costs.devices

    def shared(cost: np.ndarray) -> np.ndarray:
        """What an edge pays of a cost that all readers pay once; savings count fully in every part."""
        return np.where(cost > 0.0, cost * share.reshape(-1, *(1,) * (cost.ndim - 1)), cost)

    # Axes of what follows: edge, producer's device, reader's device, int8.
    int8 = np.array([0, 1])
    by_float, by_int8 = ways(
        shared(priced.send_float[value])[..., None],
        shared(priced.send_int8[value])[..., None],
        shared(priced.quantize[value, 0])[:, None, :, None],
        priced.dequantize[value][:, None, :, None],
        int8,
        1 - int8,
    )
    wired = BIG * np.ones(len(value))
    if costs.problem.wire_only:
        wired = priced.wire
    home = np.eye(devices, dtype=bool)[..., None]
    # A float value without an int8 copy made on the producer's device, and with one.
    bare = np.where(home, BIG * int8, by_float)
    made = np.where(home, 0.0, np.minimum(by_float, by_int8 + (wired[:, None] * (1 - int8))[:, None, None]))
    noise = (priced.edge[:, None] * int8)[:, None, None]
    # Quantising saves time only if the reader can use an int8 copy.
    used = (int8 == 1) | (~home & costs.problem.wire_only)
    result = np.empty((len(value), KINDS, devices, devices, 2))
    for kind in (Kind.FLOAT, Kind.ANCHOR):
        paid = shared(priced.quantize[value, int(kind)])[:, :, None, None]
        paid = np.where(paid > 0.0, paid, paid * used)
        result[:, kind] = np.minimum(bare, made + paid) + noise
    result[:, Kind.INT8] = by_int8
    return result


def shares_of(costs: Costs, answers: Sequence[Account], weights: np.ndarray) -> np.ndarray:
    """Shares of edges: more for readers that are elsewhere than the writer in more of the weighted answers."""
    away = np.full(len(costs.readers), _STAYING)
    for account, weight in zip(answers, weights.tolist(), strict=True):
        ends = costs.ends(account.labels)
        away += weight * (ends.to != ends.place[ends.owner])
    return np.asarray(away / np.bincount(costs.edge_value, away, len(costs.fan_out))[costs.edge_value])


class Relaxation:
    """The pairs of a problem restricted to labels that are `alive`, a mask (nodes, labels). The edges of a value have
    equal shares unless `share` (edge) says otherwise."""

    def __init__(self, costs: Costs, alive: np.ndarray, share: np.ndarray | None = None) -> None:
        """Raises TooWide if a table would have too many entries."""
        self.costs, values, devices = costs, costs.problem.values, costs.devices
        self.share = 1.0 / costs.fan_out[costs.edge_value] if share is None else share
        # Sizes are rounded up by repeating the last label: that changes no minimum and gives fewer distinct shapes.
        own = alive.sum(axis=1)
        sizes = _SIZES[np.searchsorted(_SIZES, own)]
        ordered = np.argsort(~alive, axis=1, kind="stable")
        place = np.minimum(np.arange(sizes.max(initial=1)), own[:, None] - 1)
        self.labels = np.take_along_axis(ordered, place, axis=1)
        producer, reader = values.producer[costs.edge_value], values.readers
        scopes = [
            tuple(node for node in pair if node >= 0) for pair in zip(producer.tolist(), reader.tolist(), strict=True)
        ]
        inner = [edge for edge, scope in enumerate(scopes) if scope]
        factors = [(node,) for node in range(costs.nodes)]
        self.elimination = plan = schedule(sizes.tolist(), [*factors, *(scopes[edge] for edge in inner)], WIDEST)
        node, cell = np.repeat(np.arange(costs.nodes), sizes), ramp(sizes)
        self.own_positions, self.own_cells = plan.starts[node] + cell, (node, self.labels[node, cell])
        # By label: the states of a producer and of a reader, as numbers within an edge's costs.
        writes = costs.label_writes * devices + costs.label_device
        reads = costs.label_device * 2 + (costs.label_reads == Kind.INT8)
        home = values.home[costs.edge_value]
        positions, cells, forbidden = [], [], [np.zeros(0, dtype=np.intp)]
        for number, edge in enumerate(inner, costs.nodes):
            first, second = producer[edge], reader[edge]
            written = home[edge : edge + 1] if first == SOURCE else writes[self._of(first, sizes)]
            read = 2 * home[edge : edge + 1] if second == CALLER else reads[self._of(second, sizes)]
            table = (edge * KINDS * devices + written[:, None]) * 2 * devices + read
            wrong = np.zeros(table.shape, dtype=bool)
            if values.strict[edge]:
                kinds = np.zeros(1) if first == SOURCE else costs.label_writes[self._of(first, sizes)]
                wrong = kinds[:, None] != costs.label_reads[self._of(second, sizes)]
            if plan.scopes[number][0] != first:  # the axes are in the order of elimination
                table, wrong = table.T, wrong.T
            positions.append(plan.starts[number] + np.arange(table.size))
            cells.append(table.ravel())
            forbidden.append(positions[-1][wrong.ravel()])
        nothing = [np.zeros(0, dtype=np.intp)]
        self.positions, self.cells = np.concatenate([*positions, *nothing]), np.concatenate([*cells, *nothing])
        self.forbidden = np.concatenate(forbidden)
        # Edges from the caller to the caller.
        self.outer = [(edge, home[edge]) for edge, scope in enumerate(scopes) if not scope]

    def _of(self, node: int, sizes: np.ndarray) -> np.ndarray:
        return np.asarray(self.labels[node, : sizes[node]])

    def run(self, priced: Priced) -> tuple[float, np.ndarray]:
        """A lower bound on the priced cost of every labelling, and the labels that attain it."""
        factors, pairs = self.elimination.factors, pair_costs(self.costs, priced, self.share)
        factors[self.own_positions] = priced.unary[self.own_cells]
        factors[self.positions] = pairs.ravel()[self.cells]
        factors[self.forbidden] = BIG
        total, chosen = self.elimination.run()
        base = priced.constant + sum(float(pairs[edge, Kind.FLOAT, home, home, 0]) for edge, home in self.outer)
        self.base, self.total = base, total
        return total + base, self.labels[np.arange(self.costs.nodes), chosen]

    def answer(self, prices: np.ndarray) -> tuple[Plane, Account]:
        """The bound at these prices and its slope; and the labels that attain it, with their cheapest copies."""
        priced = self.costs.price(prices)
        value, labels = self.run(priced)
        account = self.costs.account(priced, labels)
        slope = account.rows - self.costs.uppers
        return Plane(value, value - float(prices @ slope), slope), account

    def marginals(self) -> np.ndarray:
        """After `run`: a lower bound on the priced cost under each label (nodes, labels); infinite for labels that a
        node lacks."""
        result = np.full((self.costs.nodes, self.costs.labels), np.inf)
        least = self.elimination.marginals(self.total) + self.base
        rows, columns = np.nonzero(np.isfinite(least))
        result[rows, self.labels[rows, columns]] = least[rows, columns]
        return result
