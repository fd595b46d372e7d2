"""Commands that start and stop devices on this machine. Imports no runtime: they answer quickly."""

import argparse

from taglio.cli.output import Shown
from taglio.cluster.engine import device, local
from taglio.cluster.engine.local import LocalDevice
from taglio.cluster.engine.lock import default_token
from taglio.cores import available_cores
from taglio.errors import BadOption, plural
from taglio.report.console import say


def start(options: argparse.Namespace) -> Shown:
    """Run `taglio cluster start`."""
    if options.head == (options.address is not None):
        raise BadOption("give either `head`, on the first device, or `address` HOST:PORT of the head, on the others")
    started = LocalDevice(
        name=options.name,
        host=options.host,
        address=options.address or f"{options.host}:{options.port}",
        head=options.head,
        threads=options.threads or available_cores(),
        token=str((options.token or default_token()).resolve()),
        tls=str(options.tls.resolve()) if options.tls else None,
    )
    device.start(started, options.progress)

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
