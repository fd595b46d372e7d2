"""The command emulate: a cluster file's devices and links on this machine."""

import argparse
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from taglio.cli.options import command
from taglio.errors import BadOption


def add(commands: Any) -> None:
    """Add the command to the parser."""
    each = command(
        commands,
        "emulate",
        "run a command on a cluster emulated on this Linux machine (as root): each device is a network namespace with "
        "a CPU quota (cpus in the cluster file) and a running taglio device; links have their bandwidth and latency",
        _emulate,
    )
    each.add_argument("cluster", nargs="?", metavar="CLUSTER", help="cluster file (TOML)")
    each.epilog = "Write the command after --. Without one, the emulation runs until Ctrl-C."
    each.add_argument("--scenario", help="named scenario of the cluster file")
    each.add_argument("--bare", action="store_true", help="set up network and CPU quotas only; start no device")
    each.add_argument(
        "--on",
        metavar="DEVICE",
        help="run the command on this device instead of the start device; without CLUSTER: in the running emulation",
    )
    each.add_argument(
        "--set",
        dest="change",
        metavar="CHANGE",
        help='change the running emulation: "link A->B bandwidth x0.1", "link A->B cut", "device A x10" (slower), '
        '"without A"; separate several with ";"; "" restores the cluster file',
    )


def _emulate(options: argparse.Namespace) -> int:
    from taglio.cluster.emulate import devices, emulation, record
    from taglio.report.progress import bar

    here = os.environ.get(record.ENVIRONMENT)
    if options.change is not None:
        if options.cluster or options.after or options.on or options.scenario:
            raise BadOption("--set changes the running emulation: give nothing else with it")
        emulation.change(emulation.joined(here), options.change)
        return 0
    if options.cluster is None:
        if not options.on or not options.after:
            raise BadOption("give a cluster file, or --on DEVICE -- COMMAND for the running emulation")
        return emulation.start(emulation.joined(here), options.on, options.after).wait()
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGHUP, _stop)
    with emulation.Emulation(Path(options.cluster), options.scenario) as made:
        for old in made.removed:
            sys.stderr.write(f"removed the remains of a killed emulation of {old.cluster_file}\n")
        for there, back in emulation.one_way(made.cluster):
            sys.stderr.write(f"{back} can reach {there}, but not the reverse: no connection will open between them\n")
        try:
            if not options.bare:
                with bar() as progress:
                    devices.start_devices(made, progress)
            if options.after:
                return made.start(options.on or made.cluster.start, options.after).wait()
            sys.stderr.write(f"emulating {', '.join(f'{a} {b}' for a, b in made.addresses.items())}; Ctrl-C ends it\n")
            while True:
                signal.pause()
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C must not interrupt the removal
            signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    """Exit with the code that a shell reports for a process ended by a signal."""
    del frame
    sys.exit(128 + number)
