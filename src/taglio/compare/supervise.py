"""Run workers in separate processes and survive their failures. Independent of back ends; measures nothing itself.

A worker that dies, hangs or uses too much memory loses only its current row; it is restarted for the others.
"""

import contextlib
import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from taglio.compare.request import Request
from taglio.compare.row import Checked, Latency, Row, Status
from taglio.compare.workers.marker import Marker
from taglio.memory import resident_bytes, size_text
from taglio.progress import Progress

MAIN = Path(__file__).parent / "workers" / "__main__.py"
_POLL_S = 0.2
_ON_GPU = ("onnxruntime", "pytorch")
Keep = Callable[[Row], None]
Reference = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Limits:
    """`timeout_s`: longest time without an event from a worker on a row. `memory_bytes`: its largest memory."""

    timeout_s: float
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Ended:
    """How a worker ended: status "" if it reported that it was done."""

    status: Status | str
    reason: str


def measure_rows(
    interpreter: Path,
    request: Request,
    limits: Limits,
    progress: Progress | None = None,
    main: Path = MAIN,
    *,
    keep: Keep | None = None,
    reference: Reference | None = None,
) -> tuple[tuple[Row, ...], dict[str, str]]:
    """Every row of `request`, in its order, and the versions that the back end reported.

    After a row that ended the worker, it is restarted without that row; rows checked by then keep those results. `keep`
    gets every row as soon as it is finished; `reference` runs between the rounds and returns its seconds.
    """
    collected = _Collected(request, progress, keep, reference)
    waiting = list(request.rows)
    while waiting:
        ended = run_worker(interpreter, replace(request, rows=tuple(waiting)), limits, collected.handle, main)
        left = [wanted for wanted in waiting if wanted.id not in collected.ended]
        if not ended.status or not left:
            break
        index, _ = Marker(Path(request.folder) / "marker").read()
        marked = waiting[index].id if index >= 0 else ""
        lost = [wanted.id for wanted in left if wanted.id == marked] or [wanted.id for wanted in left]
        for row in lost:
            collected.end(row, status=ended.status, reason=ended.reason)
        waiting = [wanted for wanted in left if wanted.id not in lost]
    return tuple(collected.rows.values()), collected.versions


def collect(interpreter: Path, request: Request, limits: Limits, kind: str) -> tuple[list[dict[str, Any]], str]:
    """The events of a `kind` that a worker reported, and the reason if it stopped early."""
    events: list[dict[str, Any]] = []
    failures: list[str] = []

    def handle(event: dict[str, Any]) -> None:
        name = event.pop("event")
        if name == kind:
            events.append(event)
        elif name == "failed":
            failures.append(event["reason"])

    ended = run_worker(interpreter, request, limits, handle)
    return events, "; ".join([*failures, f"{ended.status}: {ended.reason}"] if ended.status else failures)


def convert(interpreter: Path, request: Request, limits: Limits) -> tuple[dict[str, Any], str]:
    """The result of a conversion, and the reason if it failed."""
    answers, reason = collect(interpreter, request, limits, "written")
    return answers[0] if answers else {}, reason


class _Collected:
    """Events of a back end's workers so far: its `rows`, and which of them have `ended`."""

    def __init__(
        self, request: Request, progress: Progress | None, keep: Keep | None, reference: Reference | None
    ) -> None:
        lost = "the worker ended without a result for it"
        self.rows = {wanted.id: Row(wanted, "failed", lost, None, None) for wanted in request.rows}
        self.ended: set[str] = set()
        self.versions: dict[str, str] = {}
        self._backend, self._progress, self._keep, self._reference = request.backend, progress, keep, reference
        self._reference_s: list[float] = []

    def handle(self, event: dict[str, Any]) -> None:
        kind, row = event.pop("event"), event.pop("row", "")
        if kind == "versions":
            self.versions = event["versions"]
        elif kind == "checked" and self.rows[row].checked is None:
            # The first check counts: a worker that took another's place may have no float row to compare with.
            checked = Checked(**(event | {"notes": tuple(event["notes"])}))
            self.rows[row] = replace(self.rows[row], checked=checked)
        elif kind == "round" and self._reference is not None:
            self._reference_s = [*([] if event["first"] else self._reference_s), self._reference()]
        elif kind == "timed":
            beside = median(self._reference_s) if self._reference_s else None
            self.end(row, status="measured", reason="", latency=Latency(**(event | {"reference_s": beside})))
        elif kind == "refused":
            self.end(row, **event)
        elif kind == "failed":
            for lost in self.rows.keys() - self.ended:
                self.rows[lost] = replace(self.rows[lost], **event)
            self.ended = set(self.rows)
        if self._progress and kind in ("checked", "timed", "refused"):
            rows = self.rows.values()
            opened = sum(result.checked is not None or result.wanted.id in self.ended for result in rows)
            done = opened + sum(result.latency is not None for result in rows)
            self._progress(self._backend, done, 2 * len(rows))

    def end(self, row: str, **how: Any) -> None:
        """Record how a row ended; one that was timed stays measured."""
        if self.rows[row].latency is None:
            self.rows[row] = replace(self.rows[row], **how)
        self.ended.add(row)
        if self._keep is not None:
            self._keep(self.rows[row])


def run_worker(
    interpreter: Path, request: Request, limits: Limits, handle: Callable[[dict[str, Any]], None], main: Path = MAIN
) -> Ended:
    """Start a worker, pass its events to `handle`, and return how it ended. Its process group has ended by then."""
    folder = Path(request.folder)
    folder.mkdir(parents=True, exist_ok=True)
    Marker(folder / "marker").set(-1)
    path, log = folder / "request.json", folder / "log.txt"
    path.write_text(json.dumps(asdict(request)))
    before = _oom_kills()
    with log.open("w") as errors:
        process = subprocess.Popen(
            [str(interpreter), "-P", str(main), str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=folder,
            start_new_session=True,
            env=_variables(request.threads, folder),
            text=True,
        )
        try:
            ended = _listen(process, folder, limits, handle)
            if ended is None or not ended.status:  # it is about to end by itself
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=1.0)
        finally:
            _kill(process)
    return ended or _post_mortem(process.returncode, log, before)


def _listen(
    process: "subprocess.Popen[str]", folder: Path, limits: Limits, handle: Callable[[dict[str, Any]], None]
) -> Ended | None:
    """Process a worker's events until it is done; None if its standard output ended earlier."""
    assert process.stdin is not None
    assert process.stdout is not None
    lines: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=_forward, args=(process.stdout, lines), daemon=True).start()
    marker, seen, quiet_s = Marker(folder / "marker"), -1, 0.0
    while True:
        asked_s = time.monotonic()
        try:
            line = lines.get(timeout=_POLL_S)
        except queue.Empty:
            # Time in which this process itself was delayed does not count as silence.
            quiet_s += min(time.monotonic() - asked_s, 5 * _POLL_S)
            _, count = marker.read()
            if count != seen:
                seen, quiet_s = count, 0.0
            line = ""
        if (used_bytes := resident_bytes(process.pid) or 0) > limits.memory_bytes:
            reason = f"held {size_text(used_bytes)}, the limit is {size_text(limits.memory_bytes)}"
            return Ended("out of memory", reason)
        if quiet_s > limits.timeout_s:
            return Ended("stuck", f"no response for {limits.timeout_s:.0f} s: it was stopped")
        if line == "":
            continue
        if line is None:
            return None
        quiet_s = 0.0
        try:
            event = json.loads(line)
        except ValueError:
            return Ended("failed", f"the worker wrote something other than an event: {line[:80]!r}")
        kind = event.get("event")
        if kind == "done":
            return Ended("", "")
        handle(event)
        if kind == "round":
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write("\n")
                process.stdin.flush()


def _forward(stream: Any, lines: "queue.Queue[str | None]") -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)


def _kill(process: "subprocess.Popen[str]") -> None:
    """Kill the worker and everything that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):
                stream.close()


def _post_mortem(code: int, log: Path, kills_before: int) -> Ended:
    """Why a worker ended without reporting that it was done."""
    last = next((line.strip() for line in reversed(log.read_text(errors="replace").splitlines()) if line.strip()), "")
    said = f"; last output: {last[:200]}" if last else ""
    if code == -signal.SIGKILL:
        if _oom_kills() > kills_before:
            return Ended("out of memory", f"the system killed it because memory ran out{said}")
        return Ended("killed", f"its process was killed (signal 9){said}")
    if code >= 0:
        return Ended("crashed", f"its process ended with exit code {code}{said}")
    name = next((number.name for number in signal.Signals if number == -code), f"signal {-code}")
    return Ended("crashed", f"its process died from {name}{said}")


def _oom_kills() -> int:
    """Number of processes that the system has killed for lack of memory; 0 if it does not count them."""
    path = Path("/proc/vmstat")
    if not path.exists():
        return 0
    return next((int(line.split()[1]) for line in path.read_text().splitlines() if line.startswith("oom_kill ")), 0)


def limits_memory() -> bool:
    """Whether this system reports the memory of a process; if not, `memory_bytes` has no effect."""
    return resident_bytes(os.getpid()) is not None


def clean_environment() -> dict[str, str]:
    """The environment without the variables that would mix another Python's packages into a process."""
    dropped = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if name not in dropped}


def _variables(threads: int, folder: Path) -> dict[str, str]:
    """The worker's environment: equal threads for all libraries, no other Python's packages, quiet TensorFlow, and
    a GPU only if the back end has rows for one."""
    count = str(threads)
    return {
        **clean_environment(),
        "OMP_NUM_THREADS": count,
        "OMP_WAIT_POLICY": "PASSIVE",
        "TF_NUM_INTRAOP_THREADS": count,
        "TF_NUM_INTEROP_THREADS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "TF_USE_LEGACY_KERAS": "1" if folder.name == "qkeras" else "0",
        **({} if folder.name in _ON_GPU else {"CUDA_VISIBLE_DEVICES": ""}),
        **({"CI": "true", "NNCF_CI": "1"} if folder.name == "nncf" else {}),  # so that it sends no usage data
        "TMPDIR": tempfile.gettempdir(),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
