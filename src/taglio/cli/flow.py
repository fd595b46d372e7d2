"""The flow on one machine: whole, and a stage at a time."""

import argparse
from pathlib import Path
from typing import Any

from taglio.cli.clusters import cluster_arguments, plan_on_cluster, refuse_without_cluster
from taglio.cli.engine import optimize_arguments, optimize_on_cluster, run_arguments, run_on_cluster
from taglio.cli.options import (
    bound_argument,
    calibration_argument,
    command,
    data_arguments,
    effort_argument,
    emit,
    folder_argument,
    json_argument,
    measuring_arguments,
    metric_argument,
    model_argument,
    pin_arguments,
    positive,
    provider_argument,
    read_limits,
    read_setup,
    remark,
    requantize_argument,
    runtime_argument,
)
from taglio.errors import BadOption


def add(commands: Any) -> None:
    """Add the commands of this file to the parser."""
    each = command(commands, "quickstart", "optimise the embedded digits model and show what happened", _quickstart)
    each.add_argument("-o", "--out", type=Path, default=Path("out/quickstart"), help="workspace directory")
    bound_argument(each, 0.01)
    json_argument(each)

    each = command(
        commands,
        "optimize",
        "find the fastest form within an error limit: profile, plan, build, time, report",
        _optimize,
    )
    _optimize_arguments(each)

    each = command(commands, "profile", "time every block in every form, by whole-model runs", _profile)
    model_argument(each)
    requantize_argument(each)
    data_arguments(each)
    calibration_argument(each)
    measuring_arguments(each)
    each.add_argument(
        "--layers",
        choices=("upstream", "downstream"),
        help="also time each layer on its own, cut before (upstream) or after (downstream) its input's QuantizeLinear",
    )
    each.add_argument("-o", "--out", type=Path, required=True, help="workspace directory")
    json_argument(each)

    each = command(commands, "error", "measure how any choice of int8 blocks changes the output", _error)
    folder_argument(each)
    metric_argument(each, None)
    provider_argument(each)
    effort_argument(each)
    json_argument(each)

    each = command(
        commands, "sensitivity", "rank blocks by the error they cause and the time they save in int8", _sensitivity
    )
    folder_argument(each)
    each.add_argument(
        "--by", choices=("damage", "saved", "worth"), default="damage", help="sort order (default damage)"
    )
    json_argument(each)

    each = command(
        commands, "plan", "choose the fastest forms within an error limit, and measure the plan's error", _plan
    )
    folder_argument(each)
    bound_argument(each, None)
    pin_arguments(each)
    each.add_argument(
        "--pin", action="append", default=[], metavar="DEVICE=PATTERN", help="place these blocks on DEVICE (repeatable)"
    )
    each.add_argument(
        "--cut",
        action="append",
        default=[],
        metavar="TENSOR",
        help="cut after TENSOR; the next device starts there (repeatable)",
    )
    each.add_argument("--devices", default="", metavar="A,B,...", help="devices in order, as separated by --cut")
    cluster_arguments(each)
    json_argument(each)

    each = command(commands, "build", "write the plan's components and check that they equal the whole model", _build)
    folder_argument(each)
    json_argument(each)

    each = command(commands, "run", "time the built components beside the prediction", _run)
    folder_argument(each)
    each.add_argument("--runs", type=positive, default=100, help="number of timed runs (default 100)")
    runtime_argument(each, None)
    run_arguments(each)
    json_argument(each)

    each = command(commands, "report", "write the HTML report and print its tables", _report)
    folder_argument(each)
    json_argument(each)


def _optimize_arguments(each: argparse.ArgumentParser) -> None:
    model_argument(each)
    requantize_argument(each)
    data_arguments(each)
    calibration_argument(each)
    bound_argument(each, None)
    metric_argument(each, "relative-l2")
    pin_arguments(each)
    measuring_arguments(each)
    optimize_arguments(each)
    each.add_argument("-o", "--out", type=Path, required=True, help="workspace directory")
    json_argument(each)


def _quickstart(options: argparse.Namespace) -> int:
    from taglio.embedded import digits_data, digits_model

    arguments = [str(digits_model()), "--data", str(digits_data()), "--max-error", str(options.max_error)]
    # Half the effort: under a minute on two cores.
    arguments += ["--effort", "0.5", "-o", str(options.out)] + (["--json"] if options.json else [])
    inner = argparse.ArgumentParser()
    _optimize_arguments(inner)
    return _optimize(inner.parse_args(arguments))


def _optimize(options: argparse.Namespace) -> int:
    from taglio.flow.optimize import optimize
    from taglio.report import page, terminal
    from taglio.report.progress import bar
    from taglio.report.written import offer

    setup = read_setup(options)
    limits_of = lambda graph: read_limits(graph, options)  # noqa: E731
    if options.cluster is not None:
        return optimize_on_cluster(options, setup, limits_of)
    if options.scenario or options.objective != "latency":
        raise BadOption("--scenario and --objective are about several machines: give a cluster file with --cluster")
    with bar(options.json) as progress:
        outcome = optimize(options.out, setup, limits_of, effort=options.effort, progress=progress)
    remark(offer(lambda: page.write(options.out)))
    if options.json:
        return emit(terminal.summary(options.out, outcome))
    terminal.outcome(options.out, outcome)
    return 0


def _profile(options: argparse.Namespace) -> int:
    from dataclasses import replace

    from taglio import artifact
    from taglio.error.loss import Metric
    from taglio.flow import workspace
    from taglio.flow.choose_scheme import choose, float_where_none_loads
    from taglio.flow.optimize import layers_stage, profile_stage, refuse_layers
    from taglio.flow.transaction import changing
    from taglio.report import terminal
    from taglio.report.progress import bar

    setup = read_setup(options)
    if options.layers:
        refuse_layers(setup)
    with bar(options.json) as progress, changing(options.out, create=True) as staged:
        work = workspace.create(staged, setup)
        scheme = setup.scheme
        if scheme is None:
            scheme, schemes = choose(work, 0.01, Metric(), progress=progress)
            work = float_where_none_loads(work, schemes)
        work = work.settled(scheme, progress)
        result = profile_stage(work, scheme, work.builder(scheme, progress), options.effort, progress)
        chosen = replace(setup, scheme=scheme)
        artifact.save(staged / f"{workspace.SETUP}.json", workspace.SETUP, work.model.sha256, chosen)
        layers = layers_stage(work, scheme, options.layers, progress) if options.layers else None
    if options.json:
        return emit({"profile": result, "layers": layers} if layers else result)
    terminal.profile(work.graph, result, layers)
    return 0


def _error(options: argparse.Namespace) -> int:
    from dataclasses import replace

    from taglio import artifact
    from taglio.error.loss import parse_metric
    from taglio.flow.error import error_stage, open_switchable
    from taglio.flow.stages import reopen_profiled
    from taglio.flow.transaction import changing
    from taglio.flow.workspace import SETUP
    from taglio.report import terminal
    from taglio.report.progress import bar

    with bar(options.json) as progress, changing(options.folder) as staged:
        work, measured = reopen_profiled(staged)
        if options.metric is not None:
            parse_metric(options.metric)
            work = replace(work, setup=replace(work.setup, metric=options.metric))
            artifact.save(staged / f"{SETUP}.json", SETUP, work.model.sha256, work.setup)
        builder = work.builder(measured.scheme, progress)
        switchable = open_switchable(work, builder, measured.scheme, options.provider)
        result = error_stage(work, measured.scheme, switchable, effort=options.effort, progress=progress)
    if options.json:
        return emit(result)
    terminal.error(work.graph, result)
    if options.provider != "cpu":
        terminal.say(f"measured on {switchable.provider}")
    return 0


def _sensitivity(options: argparse.Namespace) -> int:
    from taglio.flow.sensitivity import sensitivity
    from taglio.flow.stages import error_model, reopen_profiled
    from taglio.flow.transaction import held
    from taglio.report import terminal

    with held(options.folder):
        work, measured = reopen_profiled(options.folder)
        model = error_model(work, measured)
    rows = sensitivity(work.graph, measured, model)
    if options.json:
        return emit(terminal.sensitivity_object(rows, model))
    terminal.sensitivity(rows, model, options.by)
    return 0


def _plan(options: argparse.Namespace) -> int:
    if options.cluster is not None:
        return plan_on_cluster(options)
    refuse_without_cluster(options)
    from taglio.flow.stages import plan
    from taglio.report import terminal
    from taglio.report.progress import bar

    with bar(options.json) as progress:
        names = [name for name in options.devices.split(",") if name]
        _, result = plan(
            options.folder,
            lambda graph: read_limits(graph, options),
            pins=options.pin,
            cuts=options.cut,
            devices=names,
            progress=progress,
        )
    if options.json:
        return emit(terminal.plan_object(result))
    terminal.plan(result)
    return 0


def _build(options: argparse.Namespace) -> int:
    from taglio.flow.stages import build
    from taglio.report import terminal
    from taglio.report.progress import bar

    with bar(options.json) as progress:
        manifest, proof = build(options.folder, progress)
    if options.json:
        return emit({"manifest": manifest, "proof": proof})
    terminal.build(options.folder, manifest, proof)
    return 0


def _run(options: argparse.Namespace) -> int:
    if options.cluster is not None:
        return run_on_cluster(options)
    if options.stream or options.scenario:
        raise BadOption("--stream and --scenario are about several machines: give a cluster file with --cluster")
    from taglio.flow.stages import run
    from taglio.report import terminal
    from taglio.report.progress import bar

    with bar(options.json) as progress:
        result = run(options.folder, options.runs, progress, options.runtime)
    if options.json:
        return emit(result)
    terminal.run(result)
    return 0


def _report(options: argparse.Namespace) -> int:
    from taglio.report import page, tables, terminal
    from taglio.report.material import gather

    material = gather(options.folder)
    made = page.write(options.folder, material)
    remark(made.remark)
    if options.json:
        return emit({"report": str(made.path)})
    tables.show(options.folder, material)
    terminal.say(f"wrote {made.path}")
    return 0
