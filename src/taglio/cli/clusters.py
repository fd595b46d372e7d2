"""Commands for several machines: plans and fronts, running clusters, and runs on them."""

import argparse
from pathlib import Path

from taglio import artifact
from taglio.cli import cluster_tables
from taglio.cli.options import fraction, positive_float
from taglio.cli.output import Shown
from taglio.cli.parser import LIMITS, arguments
from taglio.cluster import file as cluster_file
from taglio.cluster.engine.connect import connect, gather
from taglio.cluster.engine.optimize import optimize_on_cluster
from taglio.cluster.engine.probe import probe as probe_cluster
from taglio.cluster.engine.run import run_on_cluster
from taglio.errors import BadOption
from taglio.flow import placing
from taglio.report import page, placement, terminal
from taglio.report.console import say, show
from taglio.report.written import offer

# Arguments of `plan` that this machine's plans have, or that are parsed here.
_NOT_PASSED = ("with_model", "effort")


def plan(options: argparse.Namespace) -> Shown:
    """Run `taglio plan OUT --cluster FILE`."""
    if options.axes is not None:
        return _front(options)
    keywords = arguments(options, (*_NOT_PASSED, "axes"))
    other_models = [_other(text, options) for text in options.with_model]
    placed = placing.place(options.folder, options.cluster, others=other_models, **keywords)
    answer = placed.answer
    value = {
        "objective": str(placed.objective),
        "value": answer.value,
        "bound": answer.bound,
        "gap": answer.gap,
        "plans": answer.plans,
        "loads": answer.loads(),
    }
    remark = offer(lambda: page.write(options.folder))
    return Shown(value, lambda: terminal.plans(answer, placed.names, placed.objective), remark)


def _front(options: argparse.Namespace) -> Shown:
    """Run `taglio plan OUT --cluster FILE --axes A,B`."""
    if options.objective != "latency":
        raise BadOption("--objective is for one plan: leave it or --axes out")
    keywords = arguments(options, (*_NOT_PASSED, "objective"))
    other_models = [_other(text, options) for text in options.with_model]
    front = placing.pareto(options.folder, options.cluster, others=other_models, **keywords)
    remark = offer(lambda: page.write(options.folder))
    return Shown(front, lambda: show(placement.points(front)), remark)


def _other(text: str, options: argparse.Namespace) -> placing.Wanted:
    """Another model from the text of --with-model; without limits of its own it has the unnamed ones of the first."""
    folder, *words = text.split(",")
    rate, limits = None, dict[str, float]()
    for word in words:
        name, _, value = word.partition("=")
        try:
            if name == "rate":
                rate = positive_float(value)
            elif (argument := name.replace("-", "_")) in LIMITS and "_" not in name:
                limits[argument] = fraction(value)
            else:
                raise ValueError
        except (ValueError, argparse.ArgumentTypeError):
            raise BadOption(f'--with-model "{text}": write OUT,rate=5,max-error=1%') from None
    if not limits:
        shared = {name: getattr(options, name) for name in LIMITS}
        limits = {name: value for name, value in shared.items() if isinstance(value, float)}
    if not limits:
        raise BadOption(f'--with-model "{text}" has no error limit: write OUT,max-error=1%')
    return placing.Wanted(Path(folder), limits, rate)


def status(options: argparse.Namespace) -> Shown:
    """Run `taglio cluster status`."""
    del options
    with connect() as connection:
        address, alive, facts_of = connection.here.address, connection.alive(), gather(connection)
    value = {"address": address, "alive": alive, "devices": facts_of}
    return Shown(value, lambda: show(cluster_tables.status(address, alive, facts_of)))


def probe(options: argparse.Namespace) -> Shown:
    """Run `taglio cluster probe`."""
    cluster = cluster_file.load(options.file)
    with connect(cluster.start) as connection:
        probes = probe_cluster(connection, cluster, options.progress)
    text = cluster_file.written(probes.measured(cluster))
    cluster_file.parse(text)
    if options.write is not None:
        artifact.write_bytes(options.write, text.encode())

    def tables() -> None:
        show(cluster_tables.links(probes, cluster))
        if options.write is not None:
            say(f"wrote {options.write}")

    return Shown({"links": probes.links, "devices": probes.handling, "cluster": text}, tables)


def optimize(options: argparse.Namespace) -> Shown:
    """Run `taglio optimize MODEL --cluster FILE`."""
    positional = (options.out, options.model, options.data, options.cluster)
    outcome = optimize_on_cluster(*positional, **arguments(options, ("samples",)))
    remark = offer(lambda: page.write(options.out))
    return Shown(outcome, lambda: show(cluster_tables.outcome(outcome)), remark)


def run(options: argparse.Namespace) -> Shown:
    """Run `taglio run OUT --cluster FILE`."""
    cluster = cluster_file.load(options.cluster)
    count, steps = options.steps or options.runs or 100, options.steps is not None
    cluster_run = run_on_cluster(
        options.folder, cluster, count, stream=options.stream, steps=steps, progress=options.progress
    )
    return Shown(cluster_run, lambda: show(cluster_tables.run(cluster_run)))
