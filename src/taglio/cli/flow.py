"""Commands of the flow on one machine: as a whole, and one stage at a time."""

import argparse
from pathlib import Path
from typing import Any

from taglio.cli.clusters import cluster_arguments, plan_on_cluster
from taglio.cli.engine import optimize_arguments, optimize_on_cluster, run_arguments, run_on_cluster
from taglio.cli.options import (
    WITHOUT,
    Some,
    bound_argument,
    calibration_argument,
    command,
    data_arguments,
    effort_argument,
    emit,
    folder_argument,
    given,
    json_argument,
    labels_argument,
    measuring_arguments,
    metric_argument,
    model_argument,
    pin_arguments,
    positive,
    provider_argument,
    refuse_others,
    remark,
    requantize_argument,
    runtime_argument,
    state_argument,
)


def add(commands: Any) -> None:
    """Add the commands of this file to the parser."""
    each = command(commands, "quickstart", "optimise the embedded digits model and show the result", _quickstart)
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

    each = command(commands, "profile", "time every block in every form, inside whole-model runs", _profile)
    model_argument(each)
    requantize_argument(each)
    state_argument(each)
    data_arguments(each)
    labels_argument(each)
    calibration_argument(each)
    measuring_arguments(each)
    bound_argument(each, 0.01)
    each.add_argument(
        "--layers",
        choices=("upstream", "downstream"),
        help="also time each layer on its own, cut before (upstream) or after (downstream) its input's QuantizeLinear",
    )
    each.add_argument("-o", "--out", type=Path, required=True, help="workspace directory")
    json_argument(each)

    each = command(commands, "error", "measure how int8 blocks change the output", _error)
    folder_argument(each)
    metric_argument(each)
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
        commands,
        "plan",
        "choose the fastest forms within an error limit and time the finalists, as optimize does; with --cluster: "
        "place blocks on several machines, using their profiles",
        _plan,
    )
    folder_argument(each)
    bound_argument(each, None)
    pin_arguments(each)
    each.add_argument(
        "--pin", action="append", default=[], metavar="DEVICE=PATTERN", help="place these blocks on DEVICE (repeatable)"
    )
    one = Some(each, WITHOUT)
    one.add_argument(
        "--cut",
        action="append",
        default=[],
        metavar="TENSOR",
        help="cut after TENSOR; the next device starts there (repeatable)",
    )
    one.add_argument("--devices", default="", metavar="A,B,...", help="devices in order, as separated by --cut")
    effort_argument(one)
    cluster_arguments(each)
    json_argument(each)

    each = command(commands, "build", "write the plan's components and prove that they equal the whole model", _build)
    folder_argument(each)
    json_argument(each)

    each = command(commands, "run", "time the built components and compare with the prediction", _run)
    folder_argument(each)
    each.add_argument("--runs", type=positive, default=100, help="number of timed runs (default 100)")
    each.add_argument(
        "--steps", type=positive, metavar="N", help="for a model with --state: time N steps of one session instead"
    )
    runtime_argument(Some(each, WITHOUT), None)
    run_arguments(each)
    json_argument(each)

    each = command(commands, "report", "write the HTML report and print its tables", _report)
    folder_argument(each)
    json_argument(each)


def _optimize_arguments(each: argparse.ArgumentParser) -> None:
    model_argument(each)
    requantize_argument(each)
    state_argument(each)
    data_arguments(each)
    labels_argument(each)
    calibration_argument(each)
    bound_argument(each, None)
    metric_argument(each)
    pin_arguments(each)
    measuring_arguments(each)
    optimize_arguments(each)
    each.add_argument("-o", "--out", type=Path, required=True, help="workspace directory")
    json_argument(each)


def _quickstart(options: argparse.Namespace) -> int:
    from taglio.embedded import digits_data, digits_model

    arguments = [str(digits_model()), "--data", str(digits_data()), "--max-error", str(options.max_error)]
    # An eighth of the effort: under a minute on two cores, with installation.
    arguments += ["--effort", "0.12", "-o", str(options.out)] + (["--json"] if options.json else [])
    inner = argparse.ArgumentParser()
    _optimize_arguments(inner)
    return _optimize(inner.parse_args(arguments))


def _optimize(options: argparse.Namespace) -> int:
    refuse_others(options)
    if options.cluster is not None:
        return optimize_on_cluster(options)
    from taglio.flow.stages import optimize
    from taglio.report import page, terminal
    from taglio.report.material import of_result
    from taglio.report.progress import bar
    from taglio.report.written import offer

    with bar(options.json) as progress:
        asked = given(options, "scenario", "objective")
        result, manifest = optimize(options.out, options.model, options.data, progress=progress, **asked)
    remark(offer(lambda: page.write(options.out, of_result(options.out, result, manifest))))
    assert result.table is not None, "optimize always sets it"
    if options.json:
        return emit(terminal.summary(options.out, result.table))
    terminal.outcome(options.out, result.table)
    return 0


def _profile(options: argparse.Namespace) -> int:
    from taglio.flow.stages import profile
    from taglio.report import terminal
    from taglio.report.progress import bar

    with bar(options.json) as progress:
        asked = given(options)
        graph, result, layers = profile(
            options.out, options.model, options.data, layers=options.layers, progress=progress, **asked
        )
    if options.json:
        return emit({"profile": result, "layers": layers} if layers else result)
    terminal.profile(graph, result, layers)
    if options.scheme == "auto":
        terminal.say(f"{result.scheme} was chosen for a relative L2 limit of {options.max_error:.3%} (--max-error)")
    return 0


def _error(options: argparse.Namespace) -> int:
    from taglio.flow.stages import error
    from taglio.report import terminal
    from taglio.report.progress import bar

    with bar(options.json) as progress:
        graph, result, where = error(options.folder, provider=options.provider, progress=progress, **given(options))
    if options.json:
        return emit(result)
    terminal.error(graph, result)
    if options.provider != "cpu":
        terminal.say(f"measured on {where}")
    return 0


def _sensitivity(options: argparse.Namespace) -> int:
    from taglio.flow.stages import sensitivities
    from taglio.report import terminal

    rows, model = sensitivities(options.folder)
    if options.json:
        return emit(terminal.sensitivity_object(rows, model))
    terminal.sensitivity(rows, model, options.by)
    return 0


def _plan(options: argparse.Namespace) -> int:
    refuse_others(options)
    if options.cluster is not None:
        return plan_on_cluster(options)
    from taglio.flow.stages import plan
    from taglio.report import terminal
    from taglio.report.progress import bar

    with bar(options.json) as progress:
        names = [name for name in options.devices.split(",") if name]
        limits = {name: getattr(options, name) for name in ("max_error", "keep_float", "force_int8", "effort")}
        result = plan(options.folder, pins=options.pin, cuts=options.cut, devices=names, progress=progress, **limits)
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
    refuse_others(options)
    if options.cluster is not None:
        return run_on_cluster(options)
    from taglio.flow.stages import run, run_steps
    from taglio.report import terminal
    from taglio.report.progress import bar

    with bar(options.json) as progress:
        if options.steps is not None:
            stepped = run_steps(options.folder, options.steps, options.runtime, progress)
        else:
            result = run(options.folder, options.runs, options.runtime, progress)
    if options.json:
        return emit(result if options.steps is None else stepped)
    if options.steps is None:
        terminal.run(result)
    else:
        terminal.steps(stepped)
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
