"""Run a command in an emulated device. A program that execs: NAMESPACE GROUP COMMAND [ARGUMENT...]."""

import ctypes
import os
import sys
from pathlib import Path

NAMESPACES = Path("/run/netns")
NOT_FOUND = 127
_CLONE_NEWNET = 0x40000000


def main() -> None:
    """Join the namespace, then the control group: last, so that this start-up does not use its quota."""
    name, group, *command = sys.argv[1:]
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(NAMESPACES / name, os.O_RDONLY)
    if libc.setns(descriptor, _CLONE_NEWNET) != 0:
        sys.exit(f"taglio: cannot enter {name}: {os.strerror(ctypes.get_errno())}")
    os.close(descriptor)
    (Path(group) / "cgroup.procs").write_text(str(os.getpid()))
    try:
        os.execvp(command[0], command)  # noqa: S606 - the user's own command, in the user's own name
    except OSError as error:
        sys.stderr.write(f"taglio: {command[0]}: {error.strerror}\n")
        sys.exit(NOT_FOUND)


if __name__ == "__main__":
    main()
