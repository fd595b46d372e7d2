"""Terminal tables for running devices and runs on them. Rounds and aligns; computes nothing."""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from taglio.cluster.engine.handling import Handling
from taglio.cluster.engine.optimize import ClusterOutcome
from taglio.cluster.engine.probe import LinkProbe
from taglio.cluster.engine.resident import Facts
from taglio.cluster.engine.result import ClusterRun
from taglio.report import terminal_cluster
from taglio.report.terminal import say
from taglio.runtimes.session import package

_MBIT = 8e-6


def status(address: str, alive: Mapping[str, bool], found: Mapping[str, Facts]) -> None:
    """Print one row per device."""
    table = _table("device", "state", "threads", "taglio", "ray", "runtimes", "machine")
    for name, up in alive.items():
        if name in found:
            each = found[name]
            runtimes = ", ".join(f"{runtime} {each.versions[package(runtime)]}" for runtime in each.runtimes)
            versions = (each.versions["taglio"], each.versions["ray"])
            table.add_row(name, "alive", str(each.threads), *versions, runtimes, escape(str(each.machine)))
        else:
            table.add_row(name, "alive" if up else "gone", *[""] * 5)
    Console(highlight=False).print(table)
    say(f"the cluster at {address}: {sum(alive.values())} of {len(alive)} devices alive")


def links(found: Sequence[LinkProbe], handled: Mapping[str, Handling]) -> None:
    """Print the measured links, with the cluster file's values in brackets, and the CPU cost per message."""
    table = _table("from", "to", "latency\nms (file)", "5 … 95 %", "bandwidth\nMbit/s (file)", "5 … 95 %", "gap\nms")
    for each in found:
        latency, speed, known = each.latency_s, each.bandwidth_bytes_per_s, each.planned
        table.add_row(
            each.source,
            each.target,
            f"{latency.value * 1e3:.3g}" + ("" if known is None else f" ({known.latency_s * 1e3:.3g})"),
            f"{latency.low * 1e3:.3g} … {latency.high * 1e3:.3g}",
            f"{speed.value * _MBIT:.3g}" + ("" if known is None else f" ({known.bandwidth_bytes_per_s * _MBIT:.3g})"),
            f"{speed.low * _MBIT:.3g} … {speed.high * _MBIT:.3g}",
            f"{each.gap_s * 1e3:.2f}" if each.gap_s else "",
        )
    Console(highlight=False).print(table)
    table = _table("of a device's time", "sending a message", "receiving one", "starting a request")
    for name, taken in handled.items():
        ends = ((taken.send_s, taken.send_byte_s), (taken.receive_s, taken.receive_byte_s))
        cells = (f"{_ms(each)}, {_ms(byte_s * 1e6)} a megabyte" if each or byte_s else "" for each, byte_s in ends)
        table.add_row(name, *cells, _ms(taken.request_s) if taken.request_s else "")
    Console(highlight=False).print(table)


# A larger change of a machine's speed is reported.
_OTHER_SPEED = 0.1


def cluster_outcome(outcome: ClusterOutcome) -> None:
    """Print the plan, the proof and the run."""
    terminal_cluster.one(outcome.plan)
    say(f"scheme {outcome.scheme} for all devices, chosen on {outcome.scheme_from} (a plan has one scheme)")
    same = "bit for bit" if outcome.proof.identical else f"within {outcome.proof.distance:.1e}"
    say(f"in one process the components equal the whole quantised model {same}; on the cluster:")
    cluster_run(outcome.run)


def cluster_run(run: ClusterRun) -> None:
    """Print predicted beside measured: components, crossings, request, energy; and what was proven."""
    table = _table("component", "device", "predicted", "measured", "±", "predicted / measured")
    for each in run.components:
        table.add_row(
            each.component, each.device, _ms(each.predicted_s), _ms(each.measured.steady_s),
            _ms(each.measured.deviation_s), f"{each.ratio:.3f}",
        )  # fmt: skip
    Console(highlight=False).print(table)
    if run.crossings:
        table = _table("from", "to", "bytes", "predicted", "measured", "±", "tensors")
        for hop in run.crossings:
            names = ", ".join(hop.tensors[:2]) + (f" and {len(hop.tensors) - 2} more" if len(hop.tensors) > 2 else "")
            table.add_row(
                hop.source, hop.target, str(hop.bytes), _ms(hop.predicted_s), _ms(hop.measured.median_s),
                _ms(hop.measured.deviation_s + hop.uncertain_s), escape(names),
            )  # fmt: skip
        Console(highlight=False).print(table)
    if run.steps:
        say(
            f"{run.requests} steps of one session: {run.rate_per_s:.4g} per second, "
            f"predicted {1.0 / run.predicted_s:.4g}"
        )
    if run.streamed:
        wanted = "" if run.predicted_rate_per_s is None else f", predicted {run.predicted_rate_per_s:.4g}"
        say(f"{run.requests} requests, {run.lanes} in flight: {run.rate_per_s:.4g} per second{wanted}")
    spread = f"(median {_ms(run.latency.median_s)}, 95 % within {_ms(run.latency.p95_s)})"
    if run.streamed:  # requests wait for each other, which the prediction for a single one does not include
        single = f"predicted for a single request {_ms(run.predicted_s)}"
        say(f"latency: {_ms(run.latency.steady_s)} {spread} with others in flight; {single}")
    else:
        say(
            f"latency: predicted {_ms(run.predicted_s)}, measured {_ms(run.latency.steady_s)} {spread}, predicted / "
            f"measured {run.ratio:.3f}"
        )
    for now in run.speeds:
        if now.slower is not None and abs(now.slower - 1.0) > _OTHER_SPEED:
            say(
                f"{now.device} takes {now.slower:.2f} x as long for a fixed computation as when it was profiled, "
                "which is more than noise: its predictions may be off by as much"
            )
    for use in run.energy:
        counted = "no energy counters" if use.counted_joules is None else f"counted {use.counted_joules:.3g} J"
        computing, sending = f"{use.modelled_joules:.3g} J computing", f"{use.sent_joules:.3g} J sending"
        say(f"energy of {use.device}: {computing}, {sending}, from its watts in the cluster file ({counted})")
    for opened in run.loaded:
        say(
            f"{opened.device} ran {opened.component} {opened.sha256[:12]}, as planned, in {opened.runtime} "
            f"{opened.version} with {opened.threads} threads"
        )
    same = "bit for bit" if run.identical == run.requests else f"within {run.distance:.1e} (relative L2)"
    say(f"{run.requests} answers in order, each equal to the single-process answer {same}")
    for broke in run.interruptions:
        resent = f"{broke.resent} sent again after {broke.recovery_s:.2f} s"
        say(f"request {broke.request} failed ({broke.reason}): {resent}")
    for switch in run.switches:
        before, after = _ms(switch.before_s), _ms(switch.after_s)
        say(
            f"another plan from request {switch.request} on ({switch.reason}): predicted {before} before, {after} after"
        )
    for note in run.notes:
        say(note)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, name in enumerate(columns):
        left = index == 0 or name in ("device", "state", "to", "taglio", "ray", "runtimes", "machine", "tensors")
        table.add_column(name, justify="left" if left else "right", overflow="fold")
    return table


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-4 else f"{seconds * 1e6:.1f} us"
