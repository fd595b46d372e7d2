"""Identical devices, which may run the same components and take turns at requests. Plans nothing."""

from collections.abc import Sequence
from dataclasses import replace

from taglio.cluster.devices import Cluster, Device, Link
from taglio.cluster.planning.workload import Workload


def alike(workloads: Sequence[Workload], cluster: Cluster) -> tuple[tuple[str, ...], ...]:
    """Groups of identical devices (times, limits and links), in file order, without the start device."""
    groups: list[list[str]] = []
    for device in cluster.devices:
        if device.name == cluster.start:
            continue
        group = next((names for names in groups if _same(workloads, cluster, names[0], device.name)), None)
        if group is None:
            groups.append([device.name])
        else:
            group.append(device.name)
    return tuple(tuple(names) for names in groups if len(names) > 1)


def _same(workloads: Sequence[Workload], cluster: Cluster, one: str, other: str) -> bool:
    def device(name: str) -> Device:
        return replace(cluster.device(name), name="", profile="", scale=None, like="")

    def links(name: str) -> dict[tuple[bool, str], Link]:
        return {
            (link.source == name, link.target if link.source == name else link.source): replace(
                link, source="", target=""
            )
            for link in cluster.links
            if name in (link.source, link.target) and not {link.source, link.target} <= {one, other}
        }

    def limits(name: str, work: Workload) -> list[list[str]]:
        pairs = (work.limits.device_pins, work.limits.device_exclusions)
        return [sorted(block for block, where in constraints if where == name) for constraints in pairs]

    return (
        device(one) == device(other)
        and links(one) == links(other)
        and all(
            work.profiles[one] == work.profiles[other]
            and limits(one, work) == limits(other, work)
            and not limits(one, work)[0]
            for work in workloads
        )
    )


def taking_turns(cluster: Cluster, name: str, replicas: tuple[str, ...]) -> Cluster:
    """`cluster` with `replicas` in the place of a device."""
    return cluster.with_device(name, replicas=replicas if len(replicas) > 1 else ())
