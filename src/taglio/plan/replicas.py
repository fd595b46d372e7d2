"""Replicas: to reach a request rate, several identical devices may run the same components, a request each in turn.

A group of k identical devices is planned as one device that is busy 1/k of the time, as are its links. No plan with
different components on the devices of a group has a shorter period: if every device ran all of them, a request each in
turn, each would be busy for the mean of what the devices were, and no tensors would be sent between them. But every
device then needs memory for all components; if memory is limited, plans without replicas are made too. Only as many
devices of a group take turns as the period needs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite

from taglio.cluster.devices import Cluster, Device
from taglio.errors import Infeasible
from taglio.plan import place as single
from taglio.plan.assemble import request_shares
from taglio.plan.check import check_turns
from taglio.plan.describe import describe, loads
from taglio.plan.place import GAP, Answer, Running
from taglio.plan.schedule import pipelines
from taglio.plan.simulate import Pipeline, stream
from taglio.plan.workload import Objective, Workload

_ROUNDING = 1.0 + 1e-9


def place(
    workloads: Sequence[Workload],
    cluster: Cluster,
    objective: Objective,
    *,
    running: Running | None = None,
    gap: float = GAP,
    time_limit_s: float = 20.0,
) -> Answer:
    """The answer of plan/place.py, with replicas if the objective is throughput or a required rate cannot be reached
    without them. Raises Infeasible."""
    streamed = objective.kind == "throughput"
    groups = alike(workloads, cluster) if streamed or any(each.needed_per_s for each in workloads) else ()
    limited = any(isfinite(cluster.device(name).memory_bytes) for group in groups for name in group)
    share_s = time_limit_s / 2 if groups and (limited or not streamed) else time_limit_s

    def without(*, why: bool) -> Answer:
        return single.place(workloads, cluster, objective, running=running, gap=gap, time_limit_s=share_s, why=why)

    def with_replicas(*, why: bool) -> Answer:
        shared = cluster
        for first, *others in groups:
            shared = _taking_turns(shared, first, (first, *others))
            for name in others:
                shared = shared.without(name)
        found = single.place(workloads, shared, objective, running=running, gap=gap, time_limit_s=share_s, why=why)
        return _fewest(found, workloads, cluster, streamed=streamed)

    if not groups:
        return without(why=True)
    first, second = (with_replicas, without) if streamed else (without, with_replicas)
    try:
        found = first(why=False)
    except Infeasible:
        return second(why=True)
    if not (streamed and limited):
        return found
    try:
        other = second(why=False)
    except Infeasible:
        return found
    best = min(found, other, key=lambda each: each.value)
    return replace(best, bound=min(found.bound, other.bound))


def simulated_rate(answer: Answer, machines: Mapping[str, Sequence[str]], requests: int = 200) -> float:
    """Requests per second of a stream of the first model in the steady state, by simulation: all `requests` wait from
    the beginning, and `machines` of a device, such as `Plan.machines()`, take turns."""
    one, *_ = pipelines(answer.assembled, answer.totals)

    def at_turn(turn: int) -> Pipeline:
        def machine(device: str) -> str:
            return machines[device][turn % len(machines[device])] if device in machines else device

        tasks = tuple(replace(each, device=machine(each.device)) for each in one.tasks)
        sent = tuple(replace(each, link=(machine(each.link[0]), machine(each.link[1]))) for each in one.transfers)
        return Pipeline(tasks, sent, one.processors)

    ends_s = sorted(stream([at_turn(turn) for turn in range(requests)]))
    half = requests // 2
    return half / (ends_s[-1] - ends_s[-1 - half])


def alike(workloads: Sequence[Workload], cluster: Cluster) -> tuple[tuple[str, ...], ...]:
    """Groups of identical devices (times, limits and links), in file order, without the start device and devices that
    share a processor. None for a model with states, which stay on one device."""
    if any(block.state_bytes for each in workloads for block in each.graph.blocks):
        return ()
    shared = {name for each in cluster.devices if each.processor for name in (each.name, each.processor)}
    groups: list[list[str]] = []
    for device in cluster.devices:
        if device.name == cluster.start or device.name in shared:
            continue
        group = next((each for each in groups if _same(workloads, cluster, each[0], device.name)), None)
        if group is None:
            groups.append([device.name])
        else:
            group.append(device.name)
    return tuple(tuple(each) for each in groups if len(each) > 1)


def _same(workloads: Sequence[Workload], cluster: Cluster, one: str, other: str) -> bool:
    def device(name: str) -> Device:
        return replace(cluster.device(name), name="", profile=None, scale_of=None, scale_factor=1.0, like="")

    def links(name: str) -> list[object]:
        rest = [each.name for each in cluster.devices if each.name not in (one, other)]
        found = [link for each in rest for link in (cluster.link(name, each), cluster.link(each, name))]
        return [None if link is None else replace(link, source="", target="") for link in found]

    def limits(name: str, work: Workload) -> list[list[str]]:
        pairs = (work.limits.device_pins, work.limits.device_exclusions)
        return [sorted(block for block, where in each if where == name) for each in pairs]

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


def _fewest(answer: Answer, workloads: Sequence[Workload], cluster: Cluster, *, streamed: bool) -> Answer:
    """The answer with the fewest replicas that keep its period, or the required rates if it is not `streamed`,
    described and checked again. `cluster` has all devices."""
    assembled, totals = answer.assembled, answer.totals
    rates = list(request_shares(workloads)) if streamed else [each.needed_per_s for each in workloads]

    def busiest(shared: Cluster) -> float:
        return max(loads(replace(assembled, cluster=shared), totals, rates).values(), default=0.0)

    used = {name for plan in answer.plans for name in plan.devices().values()}
    shared = assembled.cluster
    most = _ROUNDING * (busiest(shared) if streamed else 1.0)
    for device in assembled.cluster.devices:
        counts = range(len(device.replicas)) if device.name in used else (0,)
        fewer = (_taking_turns(shared, device.name, device.replicas[: count + 1]) for count in counts)
        shared = next((each for each in fewer if busiest(each) <= most), shared)
    assembled, first = replace(assembled, cluster=shared), answer.plans[0]
    plans = describe(assembled, totals, status=first.status, gap=first.gap, objective=first.objective)
    for workload, plan in zip(workloads, plans, strict=True):
        check_turns(workload.graph, workload.profiles, workload.error, cluster, plan)
    return replace(answer, plans=plans, assembled=assembled)


def _taking_turns(cluster: Cluster, name: str, replicas: tuple[str, ...]) -> Cluster:
    """`cluster` with `replicas` in the place of a device."""
    return cluster.with_device(name, replicas=replicas if len(replicas) > 1 else ())
