"""Run workers in separate processes and survive their failures. Independent of back ends; measures nothing itself.

A worker that dies, hangs or uses too much memory loses only its current row; it is restarted for the others.
"""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

from taglio.compare.request import Request
from taglio.compare.row import Latency, Row, RowCheck, Status
from taglio.memory import resident_bytes, size_text
from taglio.progress import Progress

MAIN = Path(__file__).parent / "workers" / "__main__.py"
_POLL_S = 0.2
Event = tuple[Any, ...]
Reference = Callable[[], float]


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """`timeout_s`: longest time without an event from a worker on a row. `memory_bytes`: its largest memory."""

    timeout_s: float
    memory_bytes: int


def measure_rows(
    interpreter: Path,
    request: Request,
    limits: WorkerLimits,
    progress: Progress | None = None,
    main: Path = MAIN,
    *,
    reference: Reference | None = None,
) -> Generator[Row]:
    """Every row of `request` as soon as it ends. `reference` runs between the rounds and returns its seconds.

    After a row that ended the worker, it is restarted without that row; rows checked by then keep those results.
    """
    wanted = {row.id: row for row in request.rows}
    checks: dict[str, RowCheck] = {}
    statuses: dict[str, Status] = {}
    reference_s: list[float] = []

    def ended(row: str, status: Status, reason: str, latency: Latency | None = None) -> Row:
        statuses[row] = status
        if progress is not None:
            progress(request.backend, len(checks.keys() | statuses.keys()) + len(statuses), 2 * len(wanted))
        return Row(wanted[row], status, reason, checks.get(row), latency)

    while pending := [row for row in wanted if row not in statuses]:
        # The float row runs again beside the others, which are compared with it.
        rows = [row for row in request.rows if row.id in pending or (row.baseline and statuses[row.id] == "measured")]
        current = ""
        with contextlib.closing(_events(interpreter, replace(request, rows=tuple(rows)), limits, main)) as events:
            for kind, *values in events:
                match kind, values:
                    case "at", (row,):
                        current = row
                    case "checked", (row, checked):
                        checks.setdefault(row, checked)
                        if progress is not None:
                            progress(request.backend, len(checks.keys() | statuses.keys()), 2 * len(wanted))
                    case "round", (first,) if reference is not None:
                        reference_s = [*([] if first else reference_s), reference()]
                    case "timed", (row, latency) if row not in statuses:
                        beside_s = median(reference_s) if reference_s else None
                        yield ended(row, "measured", "", replace(latency, reference_s=beside_s))
                    case "refused", (row, status, reason) if row not in statuses:
                        yield ended(row, status, reason)
                    case "failed" | "ended" | "done", reasons:
                        status, reason = reasons or ["failed", "the worker ended without a result for it"]
                        pending = [row for row in pending if row not in statuses]
                        for row in [current] if kind == "ended" and current in pending else pending:
                            yield ended(row, status, reason)


def answer(interpreter: Path, request: Request, limits: WorkerLimits) -> tuple[Any, str]:
    """A worker's answer to a request for a conversion or for outputs (None if it failed), and the reason."""
    value, reasons = None, []
    for event in _events(interpreter, request, limits, MAIN):
        match event:
            case "answer", result:
                value = result
            case "failed", _, reason:
                reasons.append(reason)
            case "ended", status, reason:
                reasons.append(f"{status}: {reason}")
    return value, "; ".join(reasons)


def _events(interpreter: Path, request: Request, limits: WorkerLimits, main: Path) -> Generator[Event]:
    """Start a worker and yield its events; the last is ("done",) or ("ended", status, reason). Its process group is
    killed at the end."""
    folder = Path(request.folder)
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "log.txt"
    connection, theirs = multiprocessing.Pipe()
    with connection, theirs, log.open("w") as output:
        try:
            process = subprocess.Popen(
                [str(interpreter), "-P", str(main), str(theirs.fileno())],
                stdin=subprocess.PIPE,  # it closes when this process ends, and ends the worker
                stdout=output,
                stderr=output,
                pass_fds=[theirs.fileno()],
                cwd=folder,
                start_new_session=True,
                env=_variables(request.threads, folder),
            )
        except OSError as error:
            yield "ended", "failed", f"{interpreter} cannot be run: {error.strerror}"
            return
        theirs.close()
        try:
            with contextlib.suppress(ConnectionError):
                connection.send(request)
            event: Event = ("",)
            while event[0] not in ("done", "ended"):
                try:
                    event = _next(process, connection, limits)
                except (EOFError, ConnectionError):
                    event = _post_mortem(process, log)
                yield event
                if event[0] == "round":
                    with contextlib.suppress(ConnectionError):
                        connection.send(None)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def _next(process: "subprocess.Popen[bytes]", connection: Connection, limits: WorkerLimits) -> Event:
    """The next event of a worker, or why it must be stopped. Raises EOFError if it has ended."""
    quiet_s = 0.0
    while quiet_s <= limits.timeout_s:
        if (used_bytes := resident_bytes(process.pid) or 0) > limits.memory_bytes:
            reason = f"held {size_text(used_bytes)}, the limit is {size_text(limits.memory_bytes)}"
            return "ended", "out of memory", reason
        begun_s = time.monotonic()
        if connection.poll(_POLL_S):
            event: Event = connection.recv()
            return event
        # Time in which this process itself was delayed does not count as silence.
        quiet_s += min(time.monotonic() - begun_s, 5 * _POLL_S)
        if process.poll() is not None and not connection.poll():  # what it started keeps the connection open
            raise EOFError
    return "ended", "stuck", f"no response for {limits.timeout_s:.0f} s: it was stopped"


def _post_mortem(process: "subprocess.Popen[bytes]", log: Path) -> Event:
    """Why a worker ended without reporting that it was done."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=1.0)
    last = next((line.strip() for line in reversed(log.read_text(errors="replace").splitlines()) if line.strip()), "")
    output = f"; last output: {last[:200]}" if last else ""
    code = process.poll()
    if code == -signal.SIGKILL:
        return "ended", "killed", f"its process was killed (signal 9), perhaps because memory ran out{output}"
    if code is None or code >= 0:
        return "ended", "crashed", f"its process ended with exit code {code}{output}"
    name = next((number.name for number in signal.Signals if number == -code), f"signal {-code}")
    return "ended", "crashed", f"its process died from {name}{output}"


def clean_environment() -> dict[str, str]:
    """The environment without the variables that would mix another Python's packages into a process."""
    dropped = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if name not in dropped}


def _variables(threads: int, folder: Path) -> dict[str, str]:
    """The worker's environment: equal threads for all libraries, no other Python's packages, quiet TensorFlow, and
    no GPU."""
    count = str(threads)
    return {
        **clean_environment(),
        "OMP_NUM_THREADS": count,
        "OMP_WAIT_POLICY": "PASSIVE",
        "TF_NUM_INTRAOP_THREADS": count,
        "TF_NUM_INTEROP_THREADS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "TF_USE_LEGACY_KERAS": "1" if folder.name == "qkeras" else "0",
        "CUDA_VISIBLE_DEVICES": "",
        **({"CI": "true", "NNCF_CI": "1"} if folder.name == "nncf" else {}),  # so that it sends no usage data
        "TMPDIR": tempfile.gettempdir(),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
