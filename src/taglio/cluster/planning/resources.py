"""Seconds, joules and busy times of a request as rows of a problem: what is minimised and what is limited."""

from collections.abc import Sequence
from math import inf, isfinite

import numpy as np

from taglio.cluster.devices import Cluster
from taglio.cluster.planning.problem import ENERGY, LATENCY, Resource
from taglio.cluster.planning.workload import Objective, Workload


def request_shares(workloads: Sequence[Workload]) -> np.ndarray:
    """Each model's share of all requests; equal shares if no rates are given."""
    rates = np.array([1.0 if workload.rate_per_s is None else workload.rate_per_s for workload in workloads])
    return np.asarray(rates / rates.sum())


def resources(workloads: Sequence[Workload], cluster: Cluster, objective: Objective) -> tuple[Resource, ...]:
    """Seconds and joules per request of each model, energy caps of devices, and busy shares of devices and links.

    If request rates are given, no device or link may be busy for more than one second per second.
    """
    count, models = len(cluster.devices), len(workloads)
    delay, per_byte, joules, _ = _between(cluster)
    watts = np.array([device.active_watts for device in cluster.devices])
    none, no_links = np.zeros(count), np.zeros((count, count))
    shares = request_shares(workloads)
    no_link = np.where(np.isinf(delay), 1.0, 0.0)
    delay, per_byte = np.nan_to_num(delay, posinf=0.0), np.nan_to_num(per_byte, posinf=0.0)
    # Counts copies between devices that have no link.
    unlinked = Resource("devices without a link", none, no_link, no_links, np.ones(models), upper=0.0)
    quantities = [unlinked] if no_link.any() else []
    for index, workload in enumerate(workloads):
        mask = np.eye(models)[index]
        name = f" of {workload.name}" if models > 1 else ""
        per_s, per_joule = (float(shares[index]) * weight for weight in (objective.latency, objective.energy))
        latest_s, most_joules = _upper(workload.limits.max_latency_s), _upper(workload.limits.max_energy_joules)
        quantities.append(Resource(f"latency{name}", np.ones(count), delay, per_byte, mask, per_s, latest_s, LATENCY))
        quantities.append(Resource(f"energy{name}", watts, no_links, joules, mask, per_joule, most_joules, ENERGY))
        for d, device in enumerate(cluster.devices):
            if isfinite(device.energy_cap_joules):
                sent_joules = no_links.copy()
                sent_joules[d] = joules[d]
                cap = np.eye(count)[d] * watts
                title = f"energy of {device.name}{name}"
                quantities.append(Resource(title, cap, no_links, sent_joules, mask, 0.0, device.energy_cap_joules))
    rates = np.array([workload.needed_per_s for workload in workloads])
    return (*quantities, *(busy_times(workloads, cluster, rates, 1.0) if rates.any() else ()))


def busy_times(
    workloads: Sequence[Workload], cluster: Cluster, models: np.ndarray, upper: float, what: str = "time"
) -> tuple[Resource, ...]:
    """Mean busy seconds of each device and link, the requests of each model weighted by `models`; of devices that take
    turns, those of each.

    Handling messages keeps a device as busy as running components does, even if another of its cores could do it.
    """
    count = len(cluster.devices)
    delay, per_byte, _, gap = _between(cluster)
    none, own, apart = np.zeros(count), np.eye(count), 1.0 - np.eye(count)
    handling = np.array([(d.send_s, d.receive_s, d.send_byte_s, d.receive_byte_s) for d in cluster.devices]).T
    busy = []
    for d, device in enumerate(cluster.devices):
        send_s, receive_s, send_byte_s, receive_byte_s = handling * own[d]
        per_copy_s, per_sent_byte_s = send_s[:, None] + receive_s, send_byte_s[:, None] + receive_byte_s
        sustained = [workload.profiles[device.name].sustained() for workload in workloads]
        weights = models * sustained / cluster.turns(device.name)
        name = f"{what} of {device.name}"
        busy.append(Resource(name, own[d], per_copy_s * apart, per_sent_byte_s * apart, weights, 0.0, upper))
    for a, source in enumerate(cluster.devices):
        for b, target in enumerate(cluster.devices):
            if delay[a, b] < inf and per_byte[a, b] + gap[a, b] > 0.0:
                only = own[a][:, None] * own[b]
                name = f"{what} of {source.name} -> {target.name}"
                weights = models / cluster.turns(source.name, target.name)
                busy.append(Resource(name, none, only * gap, only * per_byte[a, b], weights, 0.0, upper))
    return tuple(busy)


def _upper(limit: float | None) -> float:
    return inf if limit is None else limit


def link_tables(cluster: Cluster) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Latency, seconds per byte, joules per byte and gap between messages (from, to); infinite seconds without a
    link."""
    links = [[cluster.link(a.name, b.name) for b in cluster.devices] for a in cluster.devices]
    rows = [
        (link.latency_s, 1.0 / link.bandwidth_bytes_per_s, link.joules_per_byte, link.gap_s)
        if link is not None
        else (inf, inf, 0.0, 0.0)
        for row in links
        for link in row
    ]
    delay, per_byte, joules, gap = np.array(rows).T.reshape(4, len(links), len(links))
    return delay, per_byte, joules, gap


def _between(cluster: Cluster) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The same without loopbacks: 0 on the diagonals."""
    delay, per_byte, joules, gap = link_tables(cluster)
    for table in (delay, per_byte, joules, gap):
        np.fill_diagonal(table, 0.0)
    return delay, per_byte, joules, gap
