"""Commands that start and stop devices on this machine. Imports no runtime: they answer quickly."""

import argparse
from typing import Any

from taglio.cli.output import Shown
from taglio.cluster.engine import device, local
from taglio.cluster.engine.lock import Lock, default_token
from taglio.cores import available_cores
from taglio.errors import plural
from taglio.report.console import say


def start(options: argparse.Namespace) -> Shown:
    """Run `taglio cluster start`."""
    names = ("head", "address", "port", "memory_mb", "progress")
    arguments: dict[str, Any] = {name: getattr(options, name) for name in names}
    lock, threads = Lock(options.token or default_token(), options.tls), options.threads or available_cores()
    started = device.start(options.name, host=options.host or device.LOOPBACK, threads=threads, lock=lock, **arguments)

    def tables() -> None:
        say(f'device "{started.name}" joined the cluster at {started.address} with {plural(started.threads, "thread")}')
        if started.head:
            loopback = started.host == device.LOOPBACK
            only = "; this device listens on this machine only: start it with --host to change that" if loopback else ""
            say(f"to join from another machine: taglio cluster start --name NAME --address {started.address}{only}")
            say(f"other machines need the secret in {started.token}: copy the file to the same path there")

    return Shown(started, tables)


def stop(options: argparse.Namespace) -> Shown:
    """Run `taglio cluster stop`."""
    devices = [local.one(options.name)] if options.name else local.running()
    local.stop(devices)
    names = [device.name for device in devices]
    line = f"stopped {', '.join(names)}" if names else "no device runs on this machine"
    return Shown({"stopped": names}, lambda: say(line))
