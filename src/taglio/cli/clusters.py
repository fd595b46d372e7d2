"""Commands for several machines: plans and fronts, running devices, and runs on them."""

import argparse
from pathlib import Path
from typing import Any

from taglio import artifact
from taglio.cli import cluster_tables
from taglio.cli.options import fraction, positive_float
from taglio.cli.output import emit, remark
from taglio.cli.parser import arguments
from taglio.cluster import file as cluster_file
from taglio.cluster.engine import device, local
from taglio.cluster.engine.calibrate import calibrate
from taglio.cluster.engine.connect import connect, gather
from taglio.cluster.engine.handling import handling, with_handling
from taglio.cluster.engine.lock import Lock, default_token
from taglio.cluster.engine.optimize import optimize_on_cluster
from taglio.cluster.engine.probe import measured
from taglio.cluster.engine.probe import probe as probe_links
from taglio.cluster.engine.run import run_on_cluster
from taglio.errors import BadOption
from taglio.flow import placing
from taglio.profile.machine import available_cores
from taglio.report import page, placement, terminal
from taglio.report.console import say, show
from taglio.report.progress import bar
from taglio.report.written import offer


def plan(options: argparse.Namespace) -> int:
    """Run `taglio plan OUT --cluster FILE`."""
    others = _others(options)
    with bar(options.json) as progress:
        asked = arguments(options, ("with_model", "cuts", "devices", "effort"))
        found = placing.place(options.folder, options.cluster, others=others, progress=progress, **asked)
    answer = found.answer
    remark(offer(lambda: page.write(options.folder)))
    if options.json:
        told = {"value": answer.value, "bound": answer.bound, "gap": answer.gap, "plans": answer.plans}
        more = {"moves": answer.moves(), "loads": answer.loads(), "alternatives": found.told}
        return emit({"objective": str(found.objective), **told, **more})
    terminal.plans(answer, found.names, found.objective, found.told)
    return 0


def pareto(options: argparse.Namespace) -> int:
    """Run `taglio pareto`."""
    path, others = options.folder / "pareto.html", _others(options)
    with bar(options.json) as progress:
        asked = arguments(options, ("with_model",))
        name, front = placing.pareto(options.folder, options.cluster, others=others, progress=progress, **asked)
    remark(offer(lambda: placement.write(path, name, front)))
    if options.json:
        return emit(front)
    show(placement.points(front))
    say(f"wrote {path}")
    return 0


def _others(options: argparse.Namespace) -> list[placing.Wanted]:
    return [_other(text, options.max_error) for text in options.with_model]


def _other(text: str, max_error: Any) -> placing.Wanted:
    """Another model from the text of --with-model."""
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
    return placing.Wanted(Path(folder), bound, rate)


def start(options: argparse.Namespace) -> int:
    """Run `taglio device start`."""
    asked = {name: getattr(options, name) for name in ("head", "address", "port", "memory_mb")}
    lock, threads = Lock(options.token or default_token(), options.tls), options.threads or available_cores()
    host = options.host or device.LOOPBACK
    with bar(options.json) as progress:
        started = device.start(options.name, host=host, threads=threads, lock=lock, progress=progress, **asked)
    if options.json:
        return emit(started)
    say(f'device "{started.name}" joined the cluster at {started.address} with {started.threads} threads')
    if started.head:
        loopback = started.host == device.LOOPBACK
        only = "; this device listens on this machine only: start it with --host to change that" if loopback else ""
        say(f"to join from another machine: taglio device start --name NAME --address {started.address}{only}")
        say(f"other machines need the secret in {started.token}: copy the file to the same path there")
    return 0


def stop(options: argparse.Namespace) -> int:
    """Run `taglio device stop`."""
    devices = [local.one(options.name)] if options.name else local.known()
    for each in devices:
        local.stop(each)
    if options.json:
        return emit({"stopped": [each.name for each in devices]})
    names = ", ".join(each.name for each in devices)
    say(f"stopped {names}" if names else "no device runs on this machine")
    return 0


def status(options: argparse.Namespace) -> int:
    """Run `taglio cluster status`."""
    with connect() as connection:
        alive, found = connection.alive(), gather(connection)
    if options.json:
        return emit({"address": connection.here.address, "alive": alive, "devices": found})
    show(cluster_tables.status(connection.here.address, alive, found))
    return 0


def probe(options: argparse.Namespace) -> int:
    """Run `taglio cluster probe`."""
    cluster = cluster_file.load(options.file, options.scenario)
    with bar(options.json) as progress, connect(cluster.start) as connection:
        found = probe_links(connection, cluster, progress)
        handled = handling(connection, cluster, progress)
    text = cluster_file.written(measured(with_handling(cluster, handled), found))
    cluster_file.parse(text)
    if options.write is not None:
        artifact.write_bytes(options.write, text.encode())
    if options.json:
        return emit({"links": found, "devices": handled, "cluster": text})
    show(cluster_tables.links(found, handled))
    if options.write is not None:
        say(f"wrote {options.write}")
    return 0


def calibrate_energy(options: argparse.Namespace) -> int:
    """Run `taglio calibrate-energy`."""
    with bar(options.json) as progress:
        found = calibrate(options.threads or available_cores(), progress)
    if options.json:
        return emit(found)
    show(cluster_tables.watts(found))
    return 0


def optimize(options: argparse.Namespace) -> int:
    """Run `taglio optimize MODEL --cluster FILE`."""
    with bar(options.json) as progress:
        given = (options.out, options.model, options.data, options.cluster)
        outcome = optimize_on_cluster(*given, progress=progress, **arguments(options))
    remark(offer(lambda: page.write(options.out)))
    if options.json:
        return emit(outcome)
    show(cluster_tables.outcome(outcome))
    return 0


def run(options: argparse.Namespace) -> int:
    """Run `taglio run OUT --cluster FILE`."""
    cluster = cluster_file.load(options.cluster, options.scenario)
    count, steps = options.steps or options.runs, options.steps is not None
    with bar(options.json) as progress:
        result = run_on_cluster(options.folder, cluster, count, stream=options.stream, steps=steps, progress=progress)
    if options.json:
        return emit(result)
    show(cluster_tables.run(result))
    return 0
