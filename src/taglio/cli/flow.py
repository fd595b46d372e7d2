"""Commands of the flow on one machine: as a whole, and one stage at a time."""

import argparse
from dataclasses import replace
from pathlib import Path

from taglio.cli.output import INTERRUPTED, Shown
from taglio.cli.parser import LIMITS, arguments, build_parser
from taglio.cli.words import as_flags
from taglio.embedded import digits_data, digits_model
from taglio.errors import BadOption
from taglio.flow import export as exporting
from taglio.flow import stages
from taglio.flow.check import check as check_promises
from taglio.flow.load import load as measure_load
from taglio.flow.result import Delivered, Result
from taglio.report import blocks, built, load, material, page, placement, summary, terminal
from taglio.report.console import say, show
from taglio.report.units import limit
from taglio.report.written import offer


def quickstart(options: argparse.Namespace) -> Shown:
    """Optimise the embedded model with a quarter of the effort, in less than a minute on two quiet cores."""
    words = ["optimize", str(digits_model()), "--data", str(digits_data()), "--max-error", str(options.max_error)]
    words += ["--effort", "0.25", "-o", str(options.out), *(["--verbose"] if options.verbose else [])]
    return optimize(build_parser().parse_args(words, argparse.Namespace(progress=options.progress)))


def optimize(options: argparse.Namespace) -> Shown:
    """Run `taglio optimize`."""
    written = stages.optimize(options.out, options.model, options.data, **arguments(options))
    return _answered(options.out, options.verbose, *written)


def _answered(folder: Path, verbose: bool, result: Result, delivered: Delivered) -> Shown:
    """The answer of an optimisation that was written to `folder`, and its page."""
    assert result.table is not None, "an optimisation always sets it"
    remark = offer(lambda: page.write(folder))
    value = {**terminal.outcome_object(folder, result.table), "deploy": delivered}

    def tables() -> None:
        terminal.outcome(folder, material.gather(folder), verbose=verbose)
        terminal.delivered(folder, delivered)

    return Shown(value, tables, remark, code=INTERRUPTED if result.table.interrupted else 0)


def profile(options: argparse.Namespace) -> Shown:
    """Run `taglio profile`."""
    graph, measured = stages.profile(options.out, options.model, options.data, **arguments(options))

    def tables() -> None:
        terminal.profile(material.Material(options.out.name, measured, graph))
        if options.scheme == "auto":
            say(f"{measured.scheme} was chosen for a relative L2 limit of {limit(options.max_error)} (--max-error)")

    return Shown(measured, tables)


def error(options: argparse.Namespace) -> Shown:
    """Run `taglio error`."""
    error_model = stages.error(options.folder, **arguments(options))

    def tables() -> None:
        show(blocks.ranked(material.gather(options.folder)))
        terminal.error(error_model)

    return Shown(terminal.error_object(error_model), tables)


def plan(options: argparse.Namespace) -> Shown:
    """Run `taglio plan`."""
    names = (*LIMITS, "keep_float", "force_int8", "effort", "progress")
    result = stages.plan(options.folder, **{name: getattr(options, name) for name in names})
    return Shown(terminal.plan_object(result), lambda: show(placement.decisions(result)))


def build(options: argparse.Namespace) -> Shown:
    """Run `taglio build`."""
    limits = {name: getattr(options, name) for name in LIMITS if getattr(options, name) is not None}
    if limits:
        keywords = {"samples": options.samples, "progress": options.progress, **limits}
        return _answered(options.folder, options.verbose, *stages.build_for_limit(options.folder, **keywords))
    manifest, proof, delivered = stages.build(options.folder, samples=options.samples, progress=options.progress)
    value = {"manifest": manifest, "proof": proof, "deploy": delivered}

    def tables() -> None:
        terminal.build(options.folder, manifest, proof)
        terminal.delivered(options.folder, delivered)

    return Shown(value, tables)


def export(options: argparse.Namespace) -> Shown:
    """Run `taglio export`."""
    exported = exporting.export(options.folder, options.target, options.layout)
    return Shown(exported, lambda: terminal.exported(exported))


def run(options: argparse.Namespace) -> Shown:
    """Run `taglio run`."""
    if options.load is not None:
        for name in ("runs", "steps", "runtime"):
            if getattr(options, name) is not None:
                raise BadOption(f"`load` times requests to deploy/, which has its own runtime: leave `{name}` out")
        under_load = measure_load(options.folder, options.load, options.progress)
        return Shown(under_load, lambda: show(load.load_report(under_load)))
    if options.steps is not None:
        stepped = stages.run_steps(options.folder, options.steps, options.runtime, options.progress)
        return Shown(stepped, lambda: terminal.steps(stepped))
    timed = stages.run(options.folder, options.runs, options.runtime, options.progress)
    return Shown(timed, lambda: show(built.run_report(timed)))


def check(options: argparse.Namespace) -> Shown:
    """Run `taglio check`."""
    checked = check_promises(options.folder, options.data, progress=options.progress)
    checked = replace(
        checked, promises=tuple(replace(promise, detail=as_flags(promise.detail)) for promise in checked.promises)
    )
    value = {"verdict": checked.verdict, "exit_code": checked.exit_code, "promises": checked.promises}
    return Shown(value, lambda: terminal.checked(checked), code=checked.exit_code)


def report(options: argparse.Namespace) -> Shown:
    """Run `taglio report`."""
    contents = material.gather(options.folder)
    path = page.write(options.folder, contents)

    def tables() -> None:
        show(summary.headline(contents))
        page.show(contents)
        say(f"wrote {path}")

    return Shown({"report": str(path), **blocks.sensitivity_object(contents)}, tables)
