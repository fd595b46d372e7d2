"""The command cluster emulate: a cluster file's devices and links on this machine."""

import argparse
import signal
import sys

from taglio.cluster.emulate import emulation
from taglio.cores import available_cores
from taglio.report.progress import bar


def emulate(options: argparse.Namespace) -> int:
    """Run `taglio cluster emulate`."""
    with emulation.emulated(options.cluster) as emulated:
        if (processors := emulation.processors(emulated.cluster)) > (cores := available_cores()):
            text = f"the devices have {processors:g} processors together, but this machine has {cores}"
            sys.stderr.write(f"{text}: streams are slower here than on separate machines\n")
        try:
            if not options.bare:
                with bar() as progress:
                    emulation.start_devices(emulated, progress)
            if options.after:
                return emulated.start(options.on or emulated.cluster.start, options.after).wait()
            sys.stderr.write(
                f"emulating {', '.join(f'{a} {b}' for a, b in emulated.addresses.items())}; Ctrl-C ends it\n"
            )
            while True:
                signal.pause()
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C must not interrupt the removal
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
