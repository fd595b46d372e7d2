"""Commands for several machines: pareto, and plan with --cluster."""

import argparse
from pathlib import Path
from typing import Any

from taglio.cli.options import (
    WITH,
    Some,
    bound_argument,
    command,
    emit,
    folder_argument,
    fraction,
    given,
    json_argument,
    pin_arguments,
    positive,
    positive_float,
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
    models_arguments(each)
    json_argument(each)


def cluster_argument(each: argparse.ArgumentParser) -> Some:
    """Add --cluster and --scenario; returns the group for options that need --cluster."""
    each.add_argument("--cluster", type=Path, help=_CLUSTER)
    many = Some(each, WITH)
    many.add_argument("--scenario", help="named scenario of the cluster file")
    return many


def objective_argument(each: Some) -> None:
    """Add --objective."""
    each.add_argument(
        "--objective",
        default="latency",
        metavar="AIM",
        help="what to optimise: latency (default), throughput, energy, sum (total compute seconds), weights such as "
        "latency=1,energy=0.5, or an order such as throughput,energy",
    )


def cluster_arguments(each: argparse.ArgumentParser) -> None:
    """Add the options of `taglio plan` for several machines."""
    many = cluster_argument(each)
    objective_argument(many)
    limit_arguments(many)
    models_arguments(many)
    many.add_argument(
        "--what-if",
        action="append",
        default=[],
        metavar="CHANGE",
        help='also plan for a change: "link A->B bandwidth x2", "link A->B cut", "device A x2", "without A", "no int8"',
    )
    many.add_argument("--explain", action="store_true", help="also show what each limit costs and the runner-up plan")
    many.add_argument(
        "--from", dest="running", metavar="PLAN", help="deployed plan.json; move blocks only if that pays"
    )
    many.add_argument(
        "--switching-cost-ms",
        type=positive_float,
        default=1.0,
        help="cost of moving one block, with --from; energy: at the largest device power (default 1)",
    )
    _time_limit(many)


def models_arguments(each: argparse.ArgumentParser | Some) -> None:
    """Add --rate and --with-model."""
    each.add_argument("--rate", type=positive_float, metavar="PER_S", help="request rate of this model, per second")
    each.add_argument(
        "--with-model",
        action="append",
        default=[],
        metavar="OUT,rate=5,max-error=1%",
        help="place another model on the same devices (repeatable)",
    )


def limit_arguments(each: argparse.ArgumentParser | Some) -> None:
    """Add limits on a request's latency, energy and rate, and devices to keep blocks off."""
    each.add_argument("--max-latency-ms", type=positive_float, help="limit on predicted latency")
    each.add_argument("--max-energy-j", type=positive_float, help="limit on energy per request, in joules")
    each.add_argument(
        "--min-rate",
        type=positive_float,
        metavar="PER_S",
        help="lowest request rate that the plan must sustain, per second",
    )
    each.add_argument(
        "--max-steps",
        type=positive,
        default=1,
        metavar="N",
        help="for a model with --state: longest session that devices must have memory for, in steps (default 1)",
    )
    each.add_argument(
        "--keep-off",
        action="append",
        default=[],
        metavar="DEVICE=PATTERN",
        help="never place these blocks on DEVICE (repeatable)",
    )


def _time_limit(each: argparse.ArgumentParser | Some) -> None:
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
    """Run `taglio plan OUT --cluster FILE`."""
    from taglio.flow.placing import Wanted, place
    from taglio.report import page, terminal_cluster
    from taglio.report.progress import bar
    from taglio.report.written import offer

    others = [Wanted(*_also(text, options.max_error)) for text in options.with_model]
    with bar(options.json) as progress:
        found = place(
            options.folder, options.cluster, others=others, progress=progress, **given(options, "cut", "effort")
        )
    answer = found.answer
    remark(offer(lambda: page.write(options.folder)))
    if options.json:
        return emit(
            {
                "objective": str(found.objective),
                "value": answer.value,
                "bound": answer.bound,
                "gap": answer.gap,
                "moves": answer.moves(),
                "plans": answer.plans,
                "loads": answer.loads(),
                "alternatives": found.told,
            }
        )
    terminal_cluster.plans(answer, found.names, found.objective, found.told)
    return 0


def _also(text: str, max_error: Any) -> tuple[Path, float, float | None]:
    """Folder, error limit and rate of --with-model."""
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
    if not isinstance(bound, float):
        raise BadOption(f'--with-model "{text}" has no error limit: write OUT,max-error=1%')
    return Path(folder), bound, rate


def _pareto(options: argparse.Namespace) -> int:
    from taglio.flow.placing import Wanted, pareto
    from taglio.report import placement, terminal_cluster
    from taglio.report.progress import bar
    from taglio.report.written import offer

    path = options.folder / "pareto.html"
    others = [Wanted(*_also(text, options.max_error)) for text in options.with_model]
    with bar(options.json) as progress:
        asked = {"axes": options.axes, "points": options.points, **given(options)}
        name, result = pareto(options.folder, options.cluster, others=others, progress=progress, **asked)
    remark(offer(lambda: placement.write(path, name, result)))
    if options.json:
        return emit(result)
    terminal_cluster.front(result, path)
    return 0
