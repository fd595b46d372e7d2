"""What happens to a worker costs the row that it was at, is said, and leaves no process behind."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from taglio.compare.row import Row
from taglio.compare.supervise import WorkerLimits, measure_rows
from tests.compare.made_up import request, wanted
from tests.end_to_end.command import ROOT

SRC = ROOT / "src"
PYTHON = Path(sys.executable)
PATIENT = WorkerLimits(timeout_s=60.0, memory_bytes=2**40)

# Speaks the protocol; what a row is called is what happens at it.
WORKER = f"""
import os, signal, subprocess, sys, time
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.insert(0, {str(SRC)!r})
from taglio.compare.row import RowCheck, Latency

connection = Connection(int(sys.argv[1]))
request = connection.recv()
folder = Path(request.folder)

def tell(*event):
    connection.send(event)

def happen(name):
    if "segfault" in name:
        sys.stderr.write("the kernel fell over\\n")
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGSEGV)
    if "exit" in name:
        os._exit(7)
    if "killed" in name:
        os.kill(os.getpid(), signal.SIGKILL)
    if "hang" in name:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        (folder / "child").write_text(str(child.pid))
        time.sleep(600)
    if "memory" in name:
        held = bytearray(400 * 2**20)
        held[:: 4096] = b"x" * len(held[:: 4096])
        time.sleep(600)
    if "daemon" in name:
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], close_fds=False)
        os._exit(7)

(folder / "starts").open("a").write("x")
(folder / "process").write_text(str(os.getpid()))
(folder / "variables").write_text(f"{{os.environ['OMP_NUM_THREADS']}} {{os.environ.get('PYTHONPATH')}}")
(folder / "rows").open("a").write(" ".join(row.id for row in request.rows) + "\\n")
os.set_inheritable(connection.fileno(), True)
ready = []
for row in request.rows:
    tell("at", row.id)
    if "opening" in row.id:
        happen(row.id)
    if "refused" in row.id:
        tell("refused", row.id, "impossible", "there is no such thing")
        continue
    if "forgotten" in row.id:
        continue
    tell("checked", row.id, RowCheck((folder / "starts").stat().st_size, 0.0, 0.0, {{}}, {{}}))
    ready.append(row.id)
if any("rounds" in name for name in ready):
    for turn in range(3):
        tell("round", turn == 0)
        connection.recv()
for name in ready:
    tell("at", name)
    if "timing" in name:
        happen(name)
    tell("timed", name, Latency(1.0, 0.0, 1.0, 1, None))
tell("done")
"""


@pytest.fixture
def worker(tmp_path: Path) -> Path:
    path = tmp_path / "worker.py"
    path.write_text(textwrap.dedent(WORKER))
    return path


def ran(worker: Path, tmp_path: Path, *keys: str, limits: WorkerLimits = PATIENT) -> dict[str, Row]:
    rows = tuple(wanted(key) for key in keys)
    found = {row.wanted.id: row for row in measure_rows(PYTHON, request(tmp_path / "work", rows), limits, main=worker)}
    assert found.keys() == {row.id for row in rows}  # none is lost
    return {name.partition("/")[2]: row for name, row in found.items()}


@pytest.mark.parametrize(
    ("name", "status", "said"),
    [
        ("opening segfault", "crashed", "SIGSEGV; last output: the kernel fell over"),
        ("opening killed", "killed", "signal 9"),
        ("timing exit", "crashed", "code 7"),
    ],
)
def test_a_death_costs_its_row_only(worker: Path, tmp_path: Path, name: str, status: str, said: str) -> None:
    rows = ran(worker, tmp_path, "a", name, "b")
    assert (rows["a"].status, rows["b"].status) == ("measured", "measured")
    assert rows[name].status == status
    assert said in rows[name].reason
    assert (tmp_path / "work" / "starts").read_text() == "xx"
    assert rows["a"].checked is not None and rows["a"].checked.size_bytes == 1  # of the first worker's check


@pytest.mark.whole
def test_a_row_that_hangs_is_stopped_with_all_it_started(worker: Path, tmp_path: Path) -> None:
    name = "timing hang"
    rows = ran(worker, tmp_path, "a", name, "b", limits=WorkerLimits(3.0, 2**40))  # to start takes a busy machine one
    assert (rows["a"].status, rows["b"].status) == ("measured", "measured")
    assert rows[name].status == "stuck"
    assert "3 s" in rows[name].reason
    child = int((tmp_path / "work" / "child").read_text())
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(child)], capture_output=True, text=True, check=False)
    assert state.stdout.strip()[:1] in ("", "Z")  # flags follow: of a session, of nice


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_a_row_that_takes_too_much_memory_is_stopped(worker: Path, tmp_path: Path) -> None:
    rows = ran(worker, tmp_path, "a", "opening memory", limits=WorkerLimits(60.0, 200 * 2**20))
    assert rows["a"].status == "measured"
    assert rows["opening memory"].status == "out of memory"
    assert "the limit is 210 MB" in rows["opening memory"].reason


def test_the_reference_runs_between_rounds_and_rows_come_as_soon_as_they_end(worker: Path, tmp_path: Path) -> None:
    rows = tuple(wanted(key) for key in ("rounds", "opening segfault", "b"))
    turns = iter([9.0, 1.0, 2.0])
    job = request(tmp_path / "work", rows)
    ended = [*measure_rows(PYTHON, job, PATIENT, main=worker, reference=lambda: next(turns))]
    assert [(row.wanted.id, row.status) for row in ended] == [
        (rows[1].id, "crashed"), (rows[0].id, "measured"), (rows[2].id, "measured"),
    ]  # fmt: skip
    assert ended[1].latency is not None
    assert ended[1].latency.reference_s == 2.0


def test_a_worker_that_takes_anothers_place_has_the_float_row(worker: Path, tmp_path: Path) -> None:
    rows = ran(worker, tmp_path, "float32", "timing exit", "b")
    assert [rows[key].status for key in ("float32", "timing exit", "b")] == ["measured", "crashed", "measured"]
    second = (tmp_path / "work" / "rows").read_text().splitlines()[1]
    assert second.split() == ["onnxruntime/float32", "onnxruntime/b"]


def test_a_row_that_is_refused_or_forgotten_has_a_reason(
    worker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker has the threads asked for, and nobody else's packages."""
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    rows = ran(worker, tmp_path, "refused", "a", "forgotten")
    refused, forgotten = rows["refused"], rows["forgotten"]
    assert (refused.status, refused.reason, refused.latency) == ("impossible", "there is no such thing", None)
    assert (forgotten.status, forgotten.reason) == ("failed", "the worker ended without a result for it")
    assert (tmp_path / "work" / "variables").read_text() == "1 None"


def test_a_process_that_a_dead_worker_left_is_no_worker(worker: Path, tmp_path: Path) -> None:
    """It holds the connection open."""
    rows = ran(worker, tmp_path, "a", "opening daemon")
    assert (rows["a"].status, rows["opening daemon"].status) == ("measured", "crashed")


def test_what_interrupts_leaves_no_worker(worker: Path, tmp_path: Path) -> None:
    def interrupt() -> float:
        raise KeyboardInterrupt

    job = request(tmp_path / "work", (wanted("rounds"),))
    with pytest.raises(KeyboardInterrupt):
        next(measure_rows(PYTHON, job, PATIENT, main=worker, reference=interrupt))
    worker_id = (tmp_path / "work" / "process").read_text()
    state = subprocess.run(["ps", "-o", "stat=", "-p", worker_id], capture_output=True, text=True, check=False)
    assert state.stdout.strip()[:1] in ("", "Z")  # flags follow: of a session, of nice


def test_every_row_of_a_back_end_that_never_starts_has_the_reason(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("raise SystemExit('cannot load libthing.so')")
    rows = tuple(wanted(key) for key in ("a", "b"))
    found = [*measure_rows(PYTHON, request(tmp_path / "work", rows), PATIENT, main=broken)]
    assert [row.status for row in found] == ["crashed", "crashed"]
    assert all("libthing" in row.reason for row in found)
