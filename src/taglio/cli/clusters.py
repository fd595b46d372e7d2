"""Commands about several machines: pareto; and what plan does with --cluster."""

import argparse
from pathlib import Path
from typing import Any

from taglio.cli.options import (
    bound_argument,
    command,
    emit,
    folder_argument,
    fraction,
    json_argument,
    pin_arguments,
    positive,
    positive_float,
    read_limits,
    remark,
)
from taglio.errors import BadOption

_CLUSTER = "cluster file (TOML): devices to plan for or to run on"


def add(commands: Any) -> None:
    """Add the commands of this file to the parser."""
    each = command(
        commands, "pareto", "show the trade-off between latency and error, energy or throughput on a cluster", _pareto
    )
    folder_argument(each)
    each.add_argument("--cluster", type=Path, required=True, help=_CLUSTER)
    each.add_argument("--scenario", help="named scenario of the cluster file")
    each.add_argument(
        "--axes",
        default="latency,error",
        help="what to trade: latency,error (default), latency,energy or latency,throughput",
    )
    each.add_argument("--points", type=positive, default=8, help="number of plans on the front (default 8)")
    _time_limit(each)
    bound_argument(each, None)
    pin_arguments(each)
    limit_arguments(each)
    json_argument(each)


def cluster_argument(each: argparse.ArgumentParser) -> None:
    """--cluster and --scenario."""
    each.add_argument("--cluster", type=Path, help=_CLUSTER)
    each.add_argument("--scenario", help="named scenario of the cluster file")


def objective_argument(each: argparse.ArgumentParser) -> None:
    """--objective."""
    each.add_argument(
        "--objective",
        default="latency",
        metavar="AIM",
        help="what to optimise: latency (default), throughput, energy, sum (total compute seconds), weights such as "
        "latency=1,energy=0.5, or an order such as throughput,energy",
    )


def cluster_arguments(each: argparse.ArgumentParser) -> None:
    """What `taglio plan` takes for several machines."""
    cluster_argument(each)
    objective_argument(each)
    limit_arguments(each)
    each.add_argument("--rate", type=positive_float, metavar="PER_S", help="request rate of this model, per second")
    each.add_argument(
        "--with-model",
        action="append",
        default=[],
        metavar="OUT,rate=5,max-error=1%",
        help="place another model on the same devices (repeatable)",
    )
    each.add_argument(
        "--what-if",
        action="append",
        default=[],
        metavar="CHANGE",
        help='also plan for a change: "link A->B bandwidth x2", "link A->B cut", "device A x2", "without A", "no int8"',
    )
    each.add_argument("--explain", action="store_true", help="also show what each limit costs and the runner-up plan")
    each.add_argument(
        "--from", dest="running", metavar="PLAN", help="deployed plan.json; move blocks only where that pays"
    )
    each.add_argument(
        "--switching-cost-ms",
        type=positive_float,
        default=1.0,
        help="cost of moving one block, with --from (default 1)",
    )
    _time_limit(each)


def limit_arguments(each: argparse.ArgumentParser) -> None:
    """Limits on what a request takes, and devices kept from blocks."""
    each.add_argument("--max-latency-ms", type=positive_float, help="limit on predicted latency")
    each.add_argument("--max-energy-j", type=positive_float, help="limit on energy per request, in joules")
    each.add_argument(
        "--min-rate",
        type=positive_float,
        metavar="PER_S",
        help="least request rate that the plan must sustain, per second",
    )
    each.add_argument(
        "--keep-off",
        action="append",
        default=[],
        metavar="DEVICE=PATTERN",
        help="never place these blocks on DEVICE (repeatable)",
    )


def _time_limit(each: argparse.ArgumentParser) -> None:
    each.add_argument(
        "--time-limit",
        type=positive_float,
        metavar="S",
        help="time limit per solve, in seconds; one plan takes up to five solves (default 20; 4 per point of a front)",
    )
    each.add_argument(
        "--gap",
        type=fraction,
        metavar="SHARE",
        help="stop once the plan is proven this close to the optimum (default 0.5%%)",
    )


def plan_on_cluster(options: argparse.Namespace) -> int:
    """`taglio plan OUT --cluster FILE`."""
    from contextlib import ExitStack

    from taglio.cluster import file as cluster_file
    from taglio.flow.place import ClusterFile, candidate, loosen_error, place_models, reread
    from taglio.flow.transaction import changing
    from taglio.plan.explain import again, limits_cost, runner_up, what_if
    from taglio.plan.objective import parse_objective
    from taglio.plan.place import GAP, Running
    from taglio.report import page, terminal_cluster
    from taglio.report.progress import bar
    from taglio.report.written import offer

    if options.cut or options.devices:
        raise BadOption("--cut and --devices place by hand: leave them out with --cluster, or use --pin")
    objective = parse_objective(options.objective)
    cluster = cluster_file.load(options.cluster, options.scenario)
    with ExitStack() as stack:
        progress = stack.enter_context(bar(options.json))
        staged = stack.enter_context(changing(options.folder))
        candidates = [candidate(staged, lambda graph: _limits(graph, options), options.rate)]
        for text in options.with_model:
            folder, rate, bound = _also(text, options.max_error)
            folder = stack.enter_context(changing(folder))
            candidates.append(candidate(folder, lambda graph, bound=bound: _limits(graph, options, bound), rate))  # type: ignore[misc]
        running = None
        if options.running:
            plans = tuple(reread(each.folder, each.work, options.running) for each in candidates[:1])
            running = Running(plans, options.switching_cost_ms / 1e3)
        used = ClusterFile(str(options.cluster), options.cluster.read_text(encoding="utf-8"), options.scenario)
        answer = place_models(
            candidates,
            cluster,
            objective,
            running=running,
            gap=GAP if options.gap is None else options.gap,
            time_limit_s=options.time_limit or 20.0,
            used=used,
            progress=progress,
        )
        quickly = again(objective, min(3.0, options.time_limit or 20.0))
        told = []
        if options.explain:
            held = answer.assembled.workloads
            told += list(limits_cost(held, cluster, objective, quickly, loosen_error))
            second = runner_up(held, cluster, objective, quickly, answer.plans)
            told += [second] if second is not None else []
        for text in options.what_if:
            told.append(what_if(text, lambda c: [each.workload(c) for each in candidates], cluster, objective, quickly))
    remark(offer(lambda: page.write(options.folder)))
    if options.json:
        return emit(
            {
                "objective": str(objective),
                "value": answer.value,
                "bound": answer.bound,
                "gap": answer.gap,
                "moves": answer.moves(),
                "plans": answer.plans,
                "loads": answer.loads(),
                "alternatives": told,
            }
        )
    terminal_cluster.plans(answer, [each.work.model.name for each in candidates], objective, told)
    return 0


def refuse_without_cluster(options: argparse.Namespace) -> None:
    """Raise BadOption for what only means something with --cluster."""
    given = {
        "--scenario": options.scenario,
        "--objective": None if options.objective == "latency" else options.objective,
        "--max-latency-ms": options.max_latency_ms,
        "--max-energy-j": options.max_energy_j,
        "--min-rate": options.min_rate,
        "--keep-off": options.keep_off,
        "--gap": options.gap,
        "--rate": options.rate,
        "--with-model": options.with_model,
        "--what-if": options.what_if,
        "--explain": options.explain,
        "--from": options.running,
    }
    for name, value in given.items():
        if value:
            raise BadOption(f"{name} is about several machines: give a cluster file with --cluster")


def _limits(graph: Any, options: argparse.Namespace, max_error: float | None = None) -> Any:
    """The limits that the options ask for."""
    from dataclasses import replace

    from taglio.flow.stages import matches

    limits = read_limits(graph, options)
    first = max_error is None
    return replace(
        limits,
        max_error=limits.max_error if first else max_error,
        device_pins=tuple(
            (name, device)
            for device, names in matches(graph, "--pin", getattr(options, "pin", []) if first else [])
            for name in names
        ),
        device_exclusions=tuple(
            (name, device)
            for device, names in matches(graph, "--keep-off", options.keep_off if first else [])
            for name in names
        ),
        max_latency_s=None if options.max_latency_ms is None else options.max_latency_ms / 1e3,
        max_energy_joules=options.max_energy_j,
        min_rate_per_s=options.min_rate,
    )


def _also(text: str, max_error: float) -> tuple[Path, float | None, float]:
    """Folder, rate and error bound of --with-model."""
    folder, *words = text.split(",")
    rate, bound = None, max_error
    for word in words:
        name, _, value = word.partition("=")
        try:
            if name == "rate":
                rate = positive_float(value)
            elif name == "max-error":
                bound = fraction(value)
            else:
                raise ValueError
        except (ValueError, argparse.ArgumentTypeError):
            raise BadOption(f'--with-model "{text}": write OUT,rate=5,max-error=1%') from None
    return Path(folder), rate, bound


def _pareto(options: argparse.Namespace) -> int:
    from dataclasses import replace

    from taglio import artifact
    from taglio.cluster import file as cluster_file
    from taglio.flow.place import candidate, with_error
    from taglio.flow.transaction import changing
    from taglio.plan.pareto import AXES, front
    from taglio.plan.place import GAP, place
    from taglio.report import placement, terminal_cluster
    from taglio.report.progress import bar
    from taglio.report.written import offer

    first, _, axis = options.axes.partition(",")
    if first != "latency" or axis not in AXES:
        raise BadOption(f'--axes "{options.axes}": give latency,error, latency,energy or latency,throughput')
    cluster = cluster_file.load(options.cluster, options.scenario)
    path = options.folder / "pareto.html"
    gap = GAP if options.gap is None else options.gap
    with bar(options.json) as progress, changing(options.folder) as staged:
        each = candidate(staged, lambda graph: _limits(graph, options))
        work = replace(each.workload(cluster), name=each.work.model.name)
        result = front(
            work,
            axis,
            lambda w, objective: place([w], cluster, objective, gap=gap, time_limit_s=options.time_limit or 4.0),
            with_error,
            points=options.points,
            progress=progress,
        )
        artifact.save(staged / "pareto.json", "pareto", each.work.model.sha256, result)
        lacks = offer(lambda: placement.write(staged / path.name, each.work.model.name, result))
    remark(lacks.replace(str(staged), str(options.folder)))
    if options.json:
        return emit(result)
    terminal_cluster.front(result, path)
    return 0
