"""Commands of the flow on one machine: as a whole, and one stage at a time."""

import argparse

from taglio.cli.output import emit, remark
from taglio.cli.parser import arguments, build_parser
from taglio.embedded import digits_data, digits_model
from taglio.flow import stages
from taglio.report import built, material, page, placement, terminal
from taglio.report.console import say, show
from taglio.report.progress import bar
from taglio.report.written import offer


def quickstart(options: argparse.Namespace) -> int:
    """Optimise the embedded model with an eighth of the effort: under a minute on two cores, with installation."""
    words = ["optimize", str(digits_model()), "--data", str(digits_data()), "--max-error", str(options.max_error)]
    words += ["--effort", "0.12", "-o", str(options.out), *(["--json"] if options.json else [])]
    return optimize(build_parser().parse_args(words))


def optimize(options: argparse.Namespace) -> int:
    """Run `taglio optimize`."""
    if options.cluster is not None:
        from taglio.cli import clusters

        return clusters.optimize(options)
    with bar(options.json) as progress:
        asked = arguments(options, ("scenario", "objective"))
        result, manifest = stages.optimize(options.out, options.model, options.data, progress=progress, **asked)
    remark(offer(lambda: page.write(options.out, material.of_result(options.out, result, manifest))))
    assert result.table is not None, "optimize always sets it"
    if options.json:
        return emit(terminal.outcome_object(options.out, result.table))
    terminal.outcome(options.out, material.of_result(options.out, result, manifest))
    return 0


def profile(options: argparse.Namespace) -> int:
    """Run `taglio profile`."""
    with bar(options.json) as progress:
        asked = arguments(options)
        graph, result, layers = stages.profile(options.out, options.model, options.data, progress=progress, **asked)
    if options.json:
        return emit({"profile": result, "layers": layers} if layers else result)
    terminal.profile(material.Material(options.out.name, result, graph=graph), layers)
    if options.scheme == "auto":
        say(f"{result.scheme} was chosen for a relative L2 limit of {options.max_error:.3%} (--max-error)")
    return 0


def error(options: argparse.Namespace) -> int:
    """Run `taglio error`."""
    with bar(options.json) as progress:
        _, result, where = stages.error(options.folder, progress=progress, **arguments(options))
    if options.json:
        return emit(result)
    terminal.error(result)
    if options.provider != "cpu":
        say(f"measured on {where}")
    return 0


def sensitivity(options: argparse.Namespace) -> int:
    """Run `taglio sensitivity`."""
    rows, model = stages.sensitivities(options.folder)
    if options.json:
        return emit(terminal.sensitivity_object(rows, model))
    terminal.sensitivity(rows, model, options.by)
    return 0


def plan(options: argparse.Namespace) -> int:
    """Run `taglio plan`."""
    if options.cluster is not None:
        from taglio.cli import clusters

        return clusters.plan(options)
    names = ("max_error", "keep_float", "force_int8", "pins", "cuts", "devices", "effort")
    with bar(options.json) as progress:
        result = stages.plan(options.folder, progress=progress, **{name: getattr(options, name) for name in names})
    if options.json:
        return emit(terminal.plan_object(result))
    show(placement.decisions(result))
    return 0


def build(options: argparse.Namespace) -> int:
    """Run `taglio build`."""
    with bar(options.json) as progress:
        manifest, proof = stages.build(options.folder, progress)
    if options.json:
        return emit({"manifest": manifest, "proof": proof})
    terminal.build(options.folder, manifest, proof)
    return 0


def run(options: argparse.Namespace) -> int:
    """Run `taglio run`."""
    if options.cluster is not None:
        from taglio.cli import clusters

        return clusters.run(options)
    with bar(options.json) as progress:
        if options.steps is not None:
            stepped = stages.run_steps(options.folder, options.steps, options.runtime, progress)
        else:
            timed = stages.run(options.folder, options.runs, options.runtime, progress)
    if options.json:
        return emit(timed if options.steps is None else stepped)
    if options.steps is None:
        show(built.run_report(timed))
    else:
        terminal.steps(stepped)
    return 0


def report(options: argparse.Namespace) -> int:
    """Run `taglio report`."""
    found = material.gather(options.folder)
    made = page.write(options.folder, found)
    remark(made.remark)
    if options.json:
        return emit({"report": str(made.path)})
    terminal.report(options.folder, found)
    say(f"wrote {made.path}")
    return 0
