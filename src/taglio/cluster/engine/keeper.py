"""Keep one device running: python -m taglio.cluster.engine.keeper FOLDER COMMAND... Does not manage other devices.

Restarts the engine's process when it ends, so that a device rejoins after its head restarts. A process that never
started up is not retried. SIGTERM ends both.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

from taglio.cluster.engine.local import LOG

STARTED = "Ray runtime started"
# Where Ray records the cluster that it started last. With this file, and any process of the cluster on this machine
# (such as another device), Ray believes that a killed head is still running, and does not start.
_LAST = "ray_current_cluster"


def main(folder: Path, command: list[str]) -> int:
    """Run `command`, restarting it, until SIGTERM."""
    stopping = False

    def end(_signal: int, _frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    log, up = folder / LOG, False
    while not stopping:
        (folder / _LAST).unlink(missing_ok=True)
        with log.open("wb") as file:
            child = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
            while child.poll() is None:
                time.sleep(0.1)
                if stopping:
                    _end(child)
        up = up or STARTED in log.read_text(errors="replace")
        if not up:
            return 1
        if not stopping:
            time.sleep(1.0)
    return 0


def _end(child: "subprocess.Popen[bytes]") -> None:
    """End a process and everything that it started."""
    child.terminate()
    try:
        child.wait(timeout=8.0)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    with contextlib.suppress(OSError):
        os.killpg(child.pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
