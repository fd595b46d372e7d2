"""What commands for running devices print. Arranges; computes nothing."""

from collections.abc import Mapping

from taglio.cluster.devices import Cluster
from taglio.cluster.engine.optimize import ClusterOutcome
from taglio.cluster.engine.probe import Probes
from taglio.cluster.engine.resident import DeviceFacts
from taglio.cluster.engine.result import ClusterRun
from taglio.errors import plural
from taglio.report.parts import Part, Table, Text
from taglio.report.placement import decisions
from taglio.report.units import MISSING, ms

_MBIT = 8e-6


def status(address: str, alive: Mapping[str, bool], facts_of: Mapping[str, DeviceFacts]) -> list[Part]:
    """One row per device."""
    rows = []
    for name, up in alive.items():
        if name in facts_of:
            facts = facts_of[name]
            runtimes = ", ".join(f"{runtime} {facts.versions[runtime]}" for runtime in facts.runtimes)
            versions = (facts.versions["taglio"], facts.versions["ray"])
            rows.append([name, "alive", facts.threads, *versions, runtimes, facts.machine])
        else:
            rows.append([name, "alive" if up else "gone", *[MISSING] * 5])
    head = ["device", "state", "threads", "taglio", "ray", "runtimes", "machine"]
    text = f"the cluster at {address}: {sum(alive.values())} of {plural(len(alive), 'device')} alive"
    return [Table(head, rows, words=frozenset({1, 3, 4, 5, 6})), Text(text)]


def links(probes: Probes, planned: Cluster) -> list[Part]:
    """The measured links, with the cluster file's values in brackets, and the CPU cost per message."""
    rows = []
    for link in probes.links:
        file = planned.link(link.source, link.target)
        assert file is not None, "links of the file are measured"
        latency, speed = (
            f"{value:.3g} ({before:.3g})"
            for value, before in (
                (link.latency_s * 1e3, file.latency_s * 1e3),
                (link.bandwidth_bytes_per_s * _MBIT, file.bandwidth_bytes_per_s * _MBIT),
            )
        )
        rows.append([link.source, link.target, latency, speed, f"{link.gap_s * 1e3:.2f}"])
    head = ["from", "to", "latency\nms (file)", "bandwidth\nMbit/s (file)", "gap\nms"]
    costs = []
    for name, cost in probes.handling.items():
        ends = ((cost.send_s, cost.send_byte_s), (cost.receive_s, cost.receive_byte_s))
        texts = [
            f"{ms(message_s)}, {ms(byte_s * 1e6)} per MB" if message_s or byte_s else "" for message_s, byte_s in ends
        ]
        costs.append([name, *texts])
    heading = ["CPU time of", "sending a message", "receiving a message"]
    return [Table(head, rows, words=frozenset({1})), Table(heading, costs)]


def outcome(cluster_outcome: ClusterOutcome) -> list[Part]:
    """The plan, the proof and the run."""
    same = "bit for bit" if cluster_outcome.proof.identical else f"within {cluster_outcome.proof.distance:.1e}"
    origin = "" if cluster_outcome.scheme_from is None else f", chosen on {cluster_outcome.scheme_from}"
    texts = [
        f"scheme {cluster_outcome.scheme} for all devices{origin} (a plan has one scheme)",
        f"in one process the components equal the whole quantised model {same}; on the cluster:",
    ]
    return [*decisions(cluster_outcome.plan), *map(Text, texts), *run(cluster_outcome.run)]


def run(cluster_run: ClusterRun) -> list[Part]:
    """Predicted beside measured: components, crossings, requests; and what was proven."""
    rows = []
    for component in cluster_run.components:
        wall = component.measured
        seconds = (ms(component.predicted_s), ms(wall.steady_s), ms(wall.deviation_s))
        rows.append([component.component, component.device, *seconds, f"{component.ratio:.3f}"])
    hops = []
    for hop in cluster_run.crossings:
        names = ", ".join(hop.tensors[:2]) + (f" and {len(hop.tensors) - 2} more" if len(hop.tensors) > 2 else "")
        seconds = (ms(hop.predicted_s), ms(hop.measured.median_s), ms(hop.measured.deviation_s + hop.uncertain_s))
        hops.append([hop.source, hop.target, hop.bytes, *seconds, names])
    head = ["component", "device", "predicted", "measured", "±", "predicted / measured"]
    between = ["from", "to", "bytes", "predicted", "measured", "±", "tensors"]
    tables = [Table(head, rows, words=frozenset({1})), Table(between, hops, words=frozenset({1, 6}))]
    texts = [*_latency(cluster_run), *_proof(cluster_run), *cluster_run.notes]
    return [*tables, *map(Text, texts)]


def _latency(run: ClusterRun) -> list[str]:
    lines, many_plans = [], len(run.plans) > 1
    first = " for the first plan" if many_plans else ""
    if run.steps:
        predicted = f"predicted {1.0 / run.predicted_s:.4g}{first}"
        lines.append(f"{plural(run.requests, 'step')} of one session: {run.rate_per_s:.4g} per second, {predicted}")
    if run.streamed:
        wanted = "" if run.predicted_rate_per_s is None else f", predicted {run.predicted_rate_per_s:.4g}{first}"
        lines.append(
            f"{plural(run.requests, 'request')}, {run.lanes} in flight: {run.rate_per_s:.4g} per second{wanted}"
        )
    for plan in run.plans:
        of = f" of the plan on {', '.join(plan.devices)} ({plural(plan.requests, 'request')})" if many_plans else ""
        wall, predicted = plan.measured, ms(plan.predicted_s)
        spread = f"{ms(wall.steady_s)} (median {ms(wall.median_s)}, 95 % within {ms(wall.p95_s)})"
        if run.streamed:  # requests wait for each other, which the prediction for a single one does not include
            lines.append(f"latency{of}: {spread} with others in flight; predicted for a single request {predicted}")
        else:
            ratio = f"predicted / measured {plan.ratio:.3f}"
            lines.append(f"latency{of}: predicted {predicted}, measured {spread}, {ratio}")
    return lines


def _proof(run: ClusterRun) -> list[str]:
    same = "bit for bit" if run.identical == run.requests else f"within {run.distance:.1e} (relative L2)"
    lines = [f"{run.requests} answers in order, each equal to the single-process answer {same}"]
    for broke in run.interruptions:
        resent = f"{broke.resent} sent again after {broke.recovery_s:.2f} s"
        lines.append(f"request {broke.request} failed ({broke.reason}): {resent}")
    back = "first plan again from request {} on: its devices and links are back"
    return [*lines, *map(back.format, run.returns)]
