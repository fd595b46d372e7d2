"""Turn labels and copies into a complete `Plan`. Chooses nothing.

The latency is that of the simulated timeline of a single request plus the start device's fixed cost per request; the
rate is that of the busiest device or link.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf, isfinite

import numpy as np

from taglio.cluster.devices import Cluster
from taglio.cluster.planning.assemble import Assembled, behind_tensor, placements_of
from taglio.cluster.planning.costs import Costs
from taglio.cluster.planning.problem import Totals
from taglio.cluster.planning.resources import request_shares
from taglio.cluster.planning.schedule import Scheduler, pipelines
from taglio.cluster.planning.simulate import ComponentTask, Pipeline, link_name, simulate
from taglio.cluster.planning.workload import Workload
from taglio.error.model import ErrorModel
from taglio.model.graph import Graph
from taglio.plan.result import Crossing, DeviceUse, Interval, Plan, PlannedPiece, Status
from taglio.plan.tables import error_interval
from taglio.profile.result import Profile


def describe(
    assembled: Assembled,
    totals: Totals,
    *,
    status: Status = "optimal",
    gap: float = 0.0,
    objective: str = "latency",
) -> tuple[Plan, ...]:
    """The plans, one per model of the problem."""
    return tuple(_plan(assembled, model, totals, status, gap, objective) for model in range(len(assembled.workloads)))


def latencies(assembled: Assembled, totals: Totals) -> tuple[float, ...]:
    """Simulated seconds of a single request of each model."""
    return tuple(simulate(pipeline).end_s for pipeline in pipelines(assembled, totals))


def loads(assembled: Assembled, totals: Totals, rates: Sequence[float] | None = None) -> dict[str, float]:
    """Busy share of each device and link at `rates`, requests per second of each model; without rates, its busy seconds
    per request of the mix of all models. Includes the overhead of components."""
    return loads_of(assembled, pipelines(assembled, totals), rates)


def loads_of(
    assembled: Assembled, of_models: Sequence[Pipeline], rates: Sequence[float] | None = None
) -> dict[str, float]:
    """The same of pipelines."""
    shares, load_of = request_shares(assembled.workloads) if rates is None else rates, dict[str, float]()
    for model, pipeline in enumerate(of_models):
        busy = _busy(assembled, model, pipeline)
        for name, seconds in _periods(assembled.cluster, pipeline, busy).items():
            load_of[name] = load_of.get(name, 0.0) + float(shares[model]) * seconds
    return {name: share for name, share in load_of.items() if share > 0.0}


def period_s(assembled: Assembled, totals: Totals, rates: Sequence[float] | None = None) -> float:
    """The largest of the `loads`: without rates, the seconds between requests that a stream of the mix can keep up."""
    return max(loads(assembled, totals, rates).values(), default=0.0)


def amounts(assembled: Assembled, of_models: Sequence[Pipeline]) -> np.ndarray:
    """What requests of all models take, by resource of the problem, with the overhead of components."""
    devices, total = assembled.problem.devices, np.zeros(len(assembled.problem.resources))
    for model, pipeline in enumerate(of_models):
        busy_s, (copies, sent) = np.zeros(len(devices)), np.zeros((2, len(devices), len(devices)))
        for task in pipeline.tasks:
            busy_s[devices.index(task.device)] += task.seconds
        for transfer in pipeline.transfers:
            link = devices.index(transfer.link[0]), devices.index(transfer.link[1])
            copies[link] += link[0] != link[1]
            sent[link] += transfer.bytes * (link[0] != link[1])
        for index, resource in enumerate(assembled.problem.resources):
            amount = resource.device @ busy_s + (resource.link * copies + resource.byte * sent).sum()
            total[index] += resource.models[model] * amount
    return total


def _plan(assembled: Assembled, model: int, totals: Totals, status: Status, gap: float, objective: str) -> Plan:
    work, cluster, names = assembled.workloads[model], assembled.cluster, assembled.problem.values.names
    pipeline = Scheduler(assembled, model).placed(totals)
    timeline = simulate(pipeline)
    places = placements_of(assembled, model, totals.labels, totals.levels)
    width = max(work.profiles[name].interval_ratio for name in {placement.device for placement in places})
    joules = _joules(assembled, pipeline)
    busy = _busy(assembled, model, pipeline)
    periods = _periods(cluster, pipeline, busy)
    busiest = max(periods, key=periods.__getitem__)
    rate = 1.0 / periods[busiest] if periods[busiest] > 0.0 else inf
    usage = _usage(assembled, totals, busy, pipeline, work)
    notes: tuple[str, ...] = ()
    assumed = [use.device for use in usage if use.assumed and use.predicted_busy_s > 0.0]
    if assumed:
        notes = (f"assumed, not measured: the times of {', '.join(assumed)}",)
    unknown = [use.device for use in usage if not cluster.device(use.device).active_watts]
    if joules > 0.0 and unknown:
        notes = (*notes, f"energy unknown, not counted: {', '.join(unknown)} (no active_watts in the cluster file)")
    is_sent = any(source != target for source, target in (transfer.link for transfer in pipeline.transfers))
    if is_sent and "throughput" in objective and not cluster.messages_cost:
        free = "the predicted rate ignores the CPU cost of messages, so a stream may be far slower"
        notes = (*notes, f"{free}: measure it with taglio cluster probe, and plan with the file that it writes")
    first = next(iter(work.profiles.values()))
    plan = Plan(
        model_sha256=work.graph.model_sha256,
        scheme=first.scheme,
        precisions=first.precisions,
        limits=work.limits,
        placements=places,
        status=status,
        gap=gap,
        predicted_latency_s=Interval.around(timeline.end_s, width),
        predicted_error=Interval(0.0, float("nan"), float("nan")),
        measured_error=None,
        notes=notes,
        objective=objective,
        start=cluster.start,
        crossings=tuple(
            Crossing(names[t.value], *t.link, "int8" if t.int8 else "float32", t.bytes, t.busy_s + t.delay_s)
            for t in pipeline.transfers
        ),
        pieces=tuple(
            PlannedPiece(task.name, task.device, len(task.nodes), task.seconds, waking_s(work.profiles, cluster, task))
            for task in pipeline.tasks
        ),
        usage=usage,
        summed_s=sum(task.seconds for task in pipeline.tasks) + sum(s.busy_s + s.delay_s for s in pipeline.transfers),
        predicted_joules=Interval.around(joules, width) if joules > 0.0 else None,
        predicted_rate_per_s=Interval.around(rate, width) if isfinite(rate) else None,
        busiest=busiest,
        timeline=timeline.spans,
        binding=_binding(assembled, totals),
    )
    if work.error is None:
        return plan
    guess = predicted_error(work.error, work.graph, plan)
    return replace(plan, predicted_error=error_interval(work.error, guess))


def waking_s(profiles: Mapping[str, Profile], cluster: Cluster, task: ComponentTask) -> float:
    """Seconds by which a component is slower because its device was idle before; the start device was not."""
    return 0.0 if task.device == cluster.start else min(task.seconds, profiles[task.device].conditions.waking_s)


def predicted_error(error: ErrorModel, graph: Graph, plan: Plan) -> float:
    """Predicted error of a plan, including tensors quantised only for the wire."""
    assignment, wired, worst = plan.assignment(), wired_flows(graph, plan), 0.0
    for output in error.outputs:
        extra = sum(edge.noise for edge in output.edges if (edge.flow, edge.reader) in wired)
        worst = max(worst, output.from_noise(output.noise(graph, assignment) + extra))
    return error.after_steps(worst)


def wired_flows(graph: Graph, plan: Plan) -> frozenset[tuple[str, str]]:
    """Each flow that is quantised only for the wire, with each float block that computes with it."""
    flow_of = {tensor: flow.name for flow in graph.flows for tensor in flow.tensors}
    return frozenset(
        (flow_of[tensor], behind)
        for tensor, reader in plan.wire_only(graph)
        if reader
        for behind in behind_tensor(graph, tensor, reader)
        if behind not in plan.assignment()
    )


def _busy(assembled: Assembled, model: int, pipeline: Pipeline) -> dict[str, float]:
    """Busy seconds per streamed request of each link, and of each place, including its handling of messages; of devices
    that take turns, those of the one whose turn it is."""
    profiles, busy, cluster = assembled.workloads[model].profiles, pipeline.busy_s(), assembled.cluster
    for transfer in pipeline.transfers:
        source, target = (cluster.device(end) for end in transfer.link)
        if source.name != target.name:
            busy[source.name] = busy.get(source.name, 0.0) + source.sending_s(transfer.bytes)
            busy[target.name] = busy.get(target.name, 0.0) + target.receiving_s(transfer.bytes)
    return {on: seconds * (profiles[on].sustained() if on in profiles else 1.0) for on, seconds in busy.items()}


def _periods(cluster: Cluster, pipeline: Pipeline, busy: Mapping[str, float]) -> dict[str, float]:
    """Seconds between requests that each link and device can keep up with; devices that take turns share them."""
    links = {link_name(transfer.link): transfer.link for transfer in pipeline.transfers}
    return {name: seconds / cluster.turns(*links.get(name, (name,))) for name, seconds in busy.items()}


def _joules(assembled: Assembled, pipeline: Pipeline) -> float:
    """Joules of a request: watts times busy seconds, plus joules of every byte sent."""
    cluster = assembled.cluster
    total = sum(cluster.device(task.device).active_watts * task.seconds for task in pipeline.tasks)
    for transfer in pipeline.transfers:
        link = cluster.link(*transfer.link)
        total += transfer.bytes * link.joules_per_byte if link is not None else 0.0
    return total


def _usage(
    assembled: Assembled,
    totals: Totals,
    busy: Mapping[str, float],
    pipeline: Pipeline,
    work: Workload,
) -> tuple[DeviceUse, ...]:
    """Use of each device by a request of one model; memory is that of all models together."""
    computing_s, usage = pipeline.busy_s(), []
    for index, device in enumerate(assembled.cluster.devices):
        if device.name not in computing_s:
            continue
        usage.append(
            DeviceUse(
                device=device.name,
                predicted_busy_s=busy.get(device.name, 0.0),
                predicted_joules=computing_s[device.name] * device.active_watts,
                weight_bytes=float(totals.weight_bytes[index]),
                peak_bytes=float(totals.peak_bytes[index]),
                memory_bytes=device.memory_bytes if isfinite(device.memory_bytes) else None,
                assumed=device.assumed,
                runtime=work.profiles[device.name].conditions.runtime,
                replicas=device.replicas,
            )
        )
    return tuple(usage)


def _binding(assembled: Assembled, totals: Totals) -> tuple[str, ...]:
    """Limits of which 97 % or more are used, each with that share."""
    amounts = np.concatenate([[totals.objective], totals.resources, totals.noises, totals.peak_bytes])
    rows = (row for row in Costs(assembled.problem).rows if row.upper > 0.0)
    shares = ((row.name, float(amounts[row.column]) / row.unit) for row in rows)
    return tuple(f"{name}: {share:.1%} of its limit" for name, share in shares if share >= 0.97)
