"""The additive quantities of a problem as tables, whose last axis is over sums, and its limits as rows of them."""

from dataclasses import dataclass

import numpy as np

from taglio.cluster.planning.problem import Problem


@dataclass(frozen=True, slots=True)
class LimitRow:
    """One limit: its index among the sums, its unit, and its upper end in that unit."""

    name: str
    column: int
    unit: float
    upper: float


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """Costs by node and label, by value and device (from, to), and by edge; the last axis is over sums, absent at given
    prices."""

    unary: np.ndarray
    send_float: np.ndarray
    send_int8: np.ndarray
    quantize: np.ndarray
    dequantize: np.ndarray
    edge: np.ndarray
    wire: np.ndarray

    def columns(self, which: np.ndarray, units: np.ndarray) -> "Tables":
        """The sums `which`, each divided by its unit."""
        return Tables(*(np.ascontiguousarray(getattr(self, name)[..., which] / units) for name in self.__slots__))


@dataclass(frozen=True, slots=True, eq=False)
class Priced(Tables):
    """Costs at given prices, plus a constant that no label changes."""

    constant: float


def limit_rows(problem: Problem) -> tuple[LimitRow, ...]:
    """A row for each finite limit of a problem: on resources, noises, and memories."""
    rows = []
    limits = [(resource.name, resource.upper) for resource in problem.resources]
    limits += [(bound.name, bound.upper) for bound in problem.noises]
    limits += [(f"memory of {problem.devices[d]}", float(c)) for d, c in enumerate(problem.memory.capacity)]
    for index, (name, upper) in enumerate(limits):
        if np.isfinite(upper):
            unit = upper if upper > 0.0 else 1.0
            rows.append(LimitRow(name, 1 + index, unit, upper / unit))
    return tuple(rows)


def tables(problem: Problem) -> Tables:
    """Tables of every sum: the objective, resources, noises, weights by device."""
    values, devices = problem.values, len(problem.devices)
    resources, noises, apart = problem.resources, problem.noises, 1.0 - np.eye(devices)
    noise = slice(1 + len(resources), 1 + len(resources) + len(noises))
    models = np.array([resource.models for resource in resources]).reshape(len(resources), -1)
    by_node, by_value = models[:, problem.model].T, models[:, values.model].T
    device = np.array([resource.device for resource in resources]).reshape(-1, devices)
    link = np.array([resource.link * apart for resource in resources]).reshape(-1, devices, devices)
    byte = np.array([resource.byte * apart for resource in resources]).reshape(-1, devices, devices)
    weight = np.array([resource.weight for resource in resources])

    def whole(table: np.ndarray) -> np.ndarray:
        """A table of resources with the objective before it, and room for noises and weights behind it."""
        none = np.zeros((*table.shape[:-1], len(noises) + devices))
        return np.concatenate([(table @ weight)[..., None], table, none], axis=-1)

    def sent(sizes: np.ndarray) -> np.ndarray:
        bytes_ = by_value * sizes[:, None]
        return whole(np.einsum("vr,rab->vabr", by_value, link) + np.einsum("vr,rab->vabr", bytes_, byte))

    unary = whole(np.einsum("ndf,nr,rd->ndfr", problem.seconds, by_node, device))
    edge, wire = (np.zeros((len(values.readers), unary.shape[-1])) for _ in range(2))
    if noises:
        unary[..., noise] = np.stack([bound.own for bound in noises], axis=-1)[:, None]
        edge[:, noise] = np.stack([bound.edge for bound in noises], axis=-1)
        wire[:, noise] = np.stack([bound.wire for bound in noises], axis=-1)
    unary[..., noise.stop :] = problem.memory.weights[:, None, :, None] * np.eye(devices)[:, None]
    return Tables(
        unary.reshape(len(problem.nodes), problem.labels, -1),
        sent(values.float_bytes),
        sent(values.int8_bytes),
        whole(np.einsum("vd,vr,rd->vdr", values.quantize_s, by_value, device)),
        whole(np.einsum("vd,vr,rd->vdr", values.dequantize_s, by_value, device)),
        edge,
        wire,
    )
