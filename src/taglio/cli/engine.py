"""Commands for running devices: device and cluster, and run with --cluster."""

import argparse
from pathlib import Path
from typing import Any

from taglio.cli.clusters import cluster_argument, objective_argument
from taglio.cli.options import command, emit, given, group_of, json_argument, port, positive, remark, thread_count

_NAME = "name of the device in the cluster file"
_CLUSTER = "cluster file (TOML)"


def add(commands: Any) -> None:
    """Add the commands of this file to the parser."""
    inner = group_of(commands, "device", "start or stop a device of a cluster on this machine")
    each = command(
        inner, "start", "start a device here (the first with --head) and wait until it has joined the cluster", _start
    )
    each.add_argument("--name", required=True, help=_NAME)
    each.add_argument("--head", action="store_true", help="start the cluster; other devices join this one")
    each.add_argument("--address", metavar="HOST:PORT", help="address of the head to join")
    each.add_argument("--host", help="address to listen on (default 127.0.0.1: this machine only)")
    each.add_argument("--port", type=port, default=6379, help="port of the head (default 6379)")
    each.add_argument("--threads", type=thread_count, help="threads per session (default: all cores)")
    each.add_argument(
        "--memory-mb",
        type=positive,
        default=200,
        help="memory for tensors in transit, in MB, at least 80 (default 200)",
    )
    _lock_arguments(each)
    json_argument(each)
    each = command(inner, "stop", "stop the devices running here, or one of them", _stop)
    each.add_argument("--name", help=_NAME)
    json_argument(each)

    inner = group_of(commands, "cluster", "inspect and probe a running cluster")
    each = command(
        inner, "status", "list the devices of the running cluster: alive or not, versions, runtimes, threads", _status
    )
    json_argument(each)

    each = command(inner, "probe", "measure every link and the CPU cost per message", _probe)
    each.add_argument("file", type=Path, metavar="CLUSTER", help=_CLUSTER)
    each.add_argument("--scenario", help="named scenario of the cluster file")
    each.add_argument("--write", type=Path, metavar="FILE", help="write a cluster file with the measured links")
    json_argument(each)


def _lock_arguments(each: argparse.ArgumentParser) -> None:
    each.add_argument(
        "--token", type=Path, metavar="FILE",
        help="file with the secret shared by all devices (default ~/.ray/auth_token; the head creates it)",
    )  # fmt: skip
    each.add_argument(
        "--tls", type=Path, metavar="FOLDER", help="encrypt all traffic, with tls.crt, tls.key and ca.crt in FOLDER"
    )


def optimize_arguments(each: argparse.ArgumentParser) -> None:
    """Add the options of `taglio optimize` for several machines."""
    objective_argument(cluster_argument(each))


def run_arguments(each: argparse.ArgumentParser) -> None:
    """Add the options of `taglio run` for several machines."""
    many = cluster_argument(each)
    many.add_argument(
        "--stream", action="store_true", help="with --cluster: keep several requests in flight to measure throughput"
    )


def _start(options: argparse.Namespace) -> int:
    from taglio.cluster.engine import device
    from taglio.cluster.engine.lock import Lock, default_token
    from taglio.profile.machine import available_cores
    from taglio.report import terminal
    from taglio.report.progress import bar

    with bar(options.json) as progress:
        started = device.start(
            options.name,
            head=options.head,
            address=options.address,
            host=options.host or device.LOOPBACK,
            port=options.port,
            threads=options.threads or available_cores(),
            memory_mb=options.memory_mb,
            lock=Lock(options.token or default_token(), options.tls),
            progress=progress,
        )
    if options.json:
        return emit(started)
    terminal.say(f'device "{started.name}" joined the cluster at {started.address} with {started.threads} threads')
    if started.head:
        loopback = started.host == device.LOOPBACK
        only = "; this device listens on this machine only: start it with --host to change that" if loopback else ""
        terminal.say(f"to join from another machine: taglio device start --name NAME --address {started.address}{only}")
        terminal.say(f"other machines need the secret in {started.token}: copy the file to the same path there")
    return 0


def _stop(options: argparse.Namespace) -> int:
    from taglio.cluster.engine import local
    from taglio.report import terminal

    devices = [local.one(options.name)] if options.name else local.known()
    for each in devices:
        local.stop(each)
    if options.json:
        return emit({"stopped": [each.name for each in devices]})
    names = ", ".join(each.name for each in devices)
    terminal.say(f"stopped {names}" if names else "no device runs on this machine")
    return 0


def _status(options: argparse.Namespace) -> int:
    from taglio.cli import engine_tables
    from taglio.cluster.engine.connect import connect, gather

    with connect() as connection:
        alive, found = connection.alive(), gather(connection)
    if options.json:
        return emit({"address": connection.here.address, "alive": alive, "devices": found})
    engine_tables.status(connection.here.address, alive, found)
    return 0


def _probe(options: argparse.Namespace) -> int:
    from taglio import artifact
    from taglio.cli import engine_tables
    from taglio.cluster import file as cluster_file
    from taglio.cluster.engine.connect import connect
    from taglio.cluster.engine.handling import handling, with_handling
    from taglio.cluster.engine.probe import probe, written
    from taglio.report import terminal
    from taglio.report.progress import bar

    cluster = cluster_file.load(options.file, options.scenario)
    with bar(options.json) as progress, connect(cluster.start) as connection:
        found = probe(connection, cluster, progress)
        handled = handling(connection, cluster, progress)
    text = written(with_handling(cluster, handled), found)
    cluster_file.parse(text)
    if options.write is not None:
        artifact.write_bytes(options.write, text.encode())
    if options.json:
        return emit({"links": found, "devices": handled, "cluster": text})
    engine_tables.links(found, handled)
    if options.write is not None:
        terminal.say(f"wrote {options.write}")
    return 0


def optimize_on_cluster(options: argparse.Namespace) -> int:
    """Run `taglio optimize MODEL --cluster FILE`."""
    from taglio.cli import engine_tables
    from taglio.cluster.engine.optimize import optimize_on_cluster as optimize
    from taglio.report import page
    from taglio.report.progress import bar
    from taglio.report.written import offer

    with bar(options.json) as progress:
        outcome = optimize(
            options.out, options.model, options.data, options.cluster, progress=progress, **given(options)
        )
    remark(offer(lambda: page.write(options.out)))
    if options.json:
        return emit(outcome)
    engine_tables.cluster_outcome(outcome)
    return 0


def run_on_cluster(options: argparse.Namespace) -> int:
    """Run `taglio run OUT --cluster FILE`."""
    from taglio.cli import engine_tables
    from taglio.cluster import file as cluster_file
    from taglio.cluster.engine.run import run_on_cluster as run
    from taglio.report.progress import bar

    cluster = cluster_file.load(options.cluster, options.scenario)
    with bar(options.json) as progress:
        count, steps = options.steps or options.runs, options.steps is not None
        result = run(options.folder, cluster, count, stream=options.stream, steps=steps, progress=progress)
    if options.json:
        return emit(result)
    engine_tables.cluster_run(result)
    return 0
