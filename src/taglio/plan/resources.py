"""What adds up over a request: seconds, joules, and the busy time of each device and link; with its limits."""

from collections.abc import Sequence
from math import inf, isfinite

import numpy as np

from taglio.cluster.devices import Cluster
from taglio.plan.problem import Resource
from taglio.plan.workload import Goal, Workload

# Two devices without a link: each copy between them would add this to the objective.
NOT_CONNECTED = "devices without a link"
FORBIDDEN_S = 1e3
# A limit on seconds that nothing keeps, where less than none would be left.
_LEAST_S = 1e-9


def request_shares(workloads: Sequence[Workload]) -> np.ndarray:
    """Share of each model in all requests; equal where no rates are given."""
    rates = np.array([1.0 if each.rate_per_s is None else each.rate_per_s for each in workloads])
    return np.asarray(rates / rates.sum())


def resources(workloads: Sequence[Workload], cluster: Cluster, goal: Goal) -> tuple[Resource, ...]:
    """Seconds and joules of each model's request; caps of devices; and busy shares of devices and links.

    Where requests a second are given, no device and no link may be busy for longer than time goes by.
    """
    count, models = len(cluster.devices), len(workloads)
    delay, per_byte, joules, _ = _links(cluster)
    watts = np.array([device.active_watts for device in cluster.devices])
    none, no_links = np.zeros(count), np.zeros((count, count))
    shares = request_shares(workloads)
    apart = np.where(np.isinf(delay), 1.0, 0.0)
    delay, per_byte = np.nan_to_num(delay, posinf=0.0), np.nan_to_num(per_byte, posinf=0.0)
    found = [Resource(NOT_CONNECTED, none, apart, no_links, np.ones(models), weight=FORBIDDEN_S)]
    for index, each in enumerate(workloads):
        one = np.eye(models)[index]
        name = f" of {each.name}" if models > 1 else ""
        share = float(shares[index])
        limits = each.limits
        found.append(
            Resource(
                f"latency{name}",
                np.ones(count),
                delay,
                per_byte,
                one,
                goal.latency * share,
                # Of a limit, what any request takes of the start device is gone.
                max(_upper(limits.max_latency_s) - cluster.device(cluster.start).request_s, _LEAST_S),
            )
        )
        found.append(
            Resource(
                f"energy{name}", watts, no_links, joules, one, goal.energy * share, _upper(limits.max_energy_joules)
            )
        )
        for d, device in enumerate(cluster.devices):
            if isfinite(device.energy_cap_joules):
                sent = no_links.copy()
                sent[d] = joules[d]
                cap = np.eye(count)[d] * watts
                found.append(
                    Resource(f"energy of {device.name}{name}", cap, no_links, sent, one, 0.0, device.energy_cap_joules)
                )
    rates, floor = _rates(workloads)
    return (*found, *(busy_times(workloads, cluster, rates, floor) if floor < inf else ()))


def busy_times(
    workloads: Sequence[Workload], cluster: Cluster, models: np.ndarray, upper: float, what: str = "time"
) -> tuple[Resource, ...]:
    """Busy seconds of each device (in the mean) and each link, `models` being how often each model's request counts.

    Messages take a device's time as components do, also where other processors than theirs could handle them.
    """
    count = len(cluster.devices)
    delay, per_byte, _, gap = _links(cluster)
    none, own, apart = np.zeros(count), np.eye(count), 1.0 - np.eye(count)
    found = [
        Resource(
            f"{what} of {device.name}",
            own[d],
            (own[d][:, None] * device.send_s + own[d] * device.receive_s) * apart,
            (own[d][:, None] * device.send_byte_s + own[d] * device.receive_byte_s) * apart,
            models * np.array([each.profiles[device.name].sustained() for each in workloads]),
            0.0,
            upper,
        )
        for d, device in enumerate(cluster.devices)
    ]
    for a, source in enumerate(cluster.devices):
        for b, target in enumerate(cluster.devices):
            if delay[a, b] < inf and per_byte[a, b] + gap[a, b] > 0.0:
                only = own[a][:, None] * own[b]
                name = f"{what} of {source.name} -> {target.name}"
                found.append(Resource(name, none, only * gap, only * per_byte[a, b], models, 0.0, upper))
    return tuple(found)


def _rates(workloads: Sequence[Workload]) -> tuple[np.ndarray, float]:
    """Requests a second by model, and the busy share that is allowed: infinite where nobody asks for a rate."""
    asked = [max(each.rate_per_s or 0.0, each.limits.min_rate_per_s or 0.0) for each in workloads]
    return np.array(asked), 1.0 if any(asked) else inf


def _upper(limit: float | None) -> float:
    return inf if limit is None else limit


def _links(cluster: Cluster) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Latency, seconds a byte, joules a byte and gap (from, to); infinite seconds where there is no link, 0 on the
    diagonal."""
    count = len(cluster.devices)
    delay, per_byte, joules, gap = (np.zeros((count, count)) for _ in range(4))
    for a, source in enumerate(cluster.devices):
        for b, target in enumerate(cluster.devices):
            link = cluster.link(source.name, target.name) if a != b else None
            if link is not None:
                delay[a, b], per_byte[a, b] = link.latency_s, 1.0 / link.bandwidth_bytes_per_s
                joules[a, b], gap[a, b] = link.joules_per_byte, link.gap_s
            elif a != b:
                delay[a, b] = per_byte[a, b] = inf
    return delay, per_byte, joules, gap
