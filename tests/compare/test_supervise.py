"""What happens to a worker costs the row that it was at, is said, and leaves no process behind."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from taglio.compare import supervise
from taglio.compare.row import Row
from taglio.compare.supervise import Limits, measure_rows
from tests.compare.made_up import request, wanted

PATIENT = Limits(timeout_s=60.0, memory_bytes=2**40)

# Speaks the protocol; what a row is called is what happens at it.
WORKER = """
import json, mmap, os, signal, struct, subprocess, sys, time
from pathlib import Path

request = json.loads(Path(sys.argv[1]).read_text())
folder = Path(request["folder"])
count = 0

def tell(event, **fields):
    print(json.dumps({"event": event, **fields}), flush=True)

def mark(index):
    global count
    count += 1
    with (folder / "marker").open("r+b") as file:
        file.write(struct.pack("<qq", index, count))

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
    if "noise" in name:
        print("hello", flush=True)

tell("versions", versions={"fake": "1"})
(folder / "starts").open("a").write("x")
(folder / "process").write_text(str(os.getpid()))
ready = []
for index, row in enumerate(request["rows"]):
    mark(index)
    if "opening" in row["id"]:
        happen(row["id"])
    if "refused" in row["id"]:
        tell("refused", row=row["id"], status="impossible", reason="there is no such thing")
        continue
    tell("checked", row=row["id"], size_bytes=(folder / "starts").stat().st_size, error_to_float=0.0,
         error_to_original=0.0, accuracy=None, operators={}, int8_operators={}, notes=[])
    ready.append((index, row["id"]))
for index, name in ready:
    mark(index)
    if "timing" in name:
        happen(name)
if any("rounds" in name for _, name in ready):
    for turn in range(3):
        tell("round", first=turn == 0)
        assert sys.stdin.readline() == "\\n"
for index, name in ready:
    tell("timed", row=name, median_s=1.0, deviation_s=0.0, p95_s=1.0, runs=1, baseline_s=None)
tell("done")
"""


@pytest.fixture
def worker(tmp_path: Path) -> Path:
    path = tmp_path / "worker.py"
    path.write_text(textwrap.dedent(WORKER))
    return path


def ran(worker: Path, tmp_path: Path, *keys: str, limits: Limits = PATIENT) -> dict[str, Row]:
    rows = tuple(wanted(key) for key in keys)
    found, versions = measure_rows(Path(sys.executable), request(tmp_path / "work", rows), limits, main=worker)
    assert [row.wanted for row in found] == list(rows)  # none is lost, and the order stays
    assert versions == {"fake": "1"}
    return {row.wanted.id.partition("/")[2]: row for row in found}


def test_a_quiet_run(worker: Path, tmp_path: Path) -> None:
    rows = ran(worker, tmp_path, "a", "b")
    assert {row.status for row in rows.values()} == {"measured"}


@pytest.mark.parametrize("when", ["opening", "timing"])
@pytest.mark.parametrize(
    ("what", "status", "said"),
    [
        ("segfault", "crashed", "SIGSEGV"),
        ("exit", "crashed", "code 7"),
        ("killed", "killed", "signal 9"),
    ],
)
def test_a_death_costs_its_row_only(worker: Path, tmp_path: Path, when: str, what: str, status: str, said: str) -> None:
    name = f"{when} {what}"
    rows = ran(worker, tmp_path, "a", name, "b")
    assert (rows["a"].status, rows["b"].status) == ("measured", "measured")
    assert rows[name].status == status
    assert said in rows[name].reason
    assert (tmp_path / "work" / "starts").read_text() == "xx"
    assert rows["a"].checked is not None and rows["a"].checked.size_bytes == 1  # of the first worker's check


def test_the_last_words_are_quoted(worker: Path, tmp_path: Path) -> None:
    assert "the kernel fell over" in ran(worker, tmp_path, "opening segfault")["opening segfault"].reason


@pytest.mark.parametrize("when", ["opening", "timing"])
@pytest.mark.whole
def test_a_row_that_hangs_is_stopped_with_all_it_started(worker: Path, tmp_path: Path, when: str) -> None:
    name = f"{when} hang"
    rows = ran(worker, tmp_path, "a", name, "b", limits=Limits(3.0, 2**40))  # to start takes a busy machine one
    assert (rows["a"].status, rows["b"].status) == ("measured", "measured")
    assert rows[name].status == "stuck"
    assert "3 s" in rows[name].reason
    child = int((tmp_path / "work" / "child").read_text())
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(child)], capture_output=True, text=True, check=False)
    assert state.stdout.strip()[:1] in ("", "Z")  # flags follow: of a session, of nice


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_a_row_that_takes_too_much_memory_is_stopped(worker: Path, tmp_path: Path) -> None:
    rows = ran(worker, tmp_path, "a", "opening memory", limits=Limits(60.0, 200 * 2**20))
    assert rows["a"].status == "measured"
    assert rows["opening memory"].status == "out of memory"
    assert "the limit is 210 MB" in rows["opening memory"].reason


def test_a_system_that_does_not_say_what_a_process_holds_limits_nothing(
    worker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervise, "resident_bytes", lambda _: None)
    assert not supervise.limits_memory()
    rows = ran(worker, tmp_path, "a", limits=Limits(60.0, 1))
    assert rows["a"].status == "measured"


def test_the_reference_runs_between_rounds_and_rows_are_kept_at_once(worker: Path, tmp_path: Path) -> None:
    rows = tuple(wanted(key) for key in ("rounds", "opening segfault", "b"))
    kept: list[tuple[str, str]] = []
    turns = iter([9.0, 1.0, 2.0, 6.0, 3.0, 4.0, 5.0, 6.0])
    found, _ = measure_rows(
        Path(sys.executable),
        request(tmp_path / "work", rows),
        PATIENT,
        main=worker,
        keep=lambda row: kept.append((row.wanted.id, row.status)),
        reference=lambda: next(turns),
    )
    assert kept[0] == (rows[1].id, "crashed")
    assert set(kept[1:]) == {(rows[0].id, "measured"), (rows[2].id, "measured")}
    assert found[0].latency is not None
    assert found[0].latency.reference_s == 2.0  # of 9, 1 and 2: the worker's own rounds, three in each group


def test_what_interrupts_leaves_no_worker(worker: Path, tmp_path: Path) -> None:
    def interrupt() -> float:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure_rows(
            Path(sys.executable), request(tmp_path / "work", (wanted("rounds"),)), PATIENT, main=worker,
            reference=interrupt,
        )  # fmt: skip
    worker_id = (tmp_path / "work" / "process").read_text()
    state = subprocess.run(["ps", "-o", "stat=", "-p", worker_id], capture_output=True, text=True, check=False)
    assert state.stdout.strip()[:1] in ("", "Z")  # flags follow: of a session, of nice


def test_a_refusal_is_a_row(worker: Path, tmp_path: Path) -> None:
    row = ran(worker, tmp_path, "refused", "a")["refused"]
    assert (row.status, row.reason, row.latency) == ("impossible", "there is no such thing", None)


def test_what_is_no_event_ends_the_worker(worker: Path, tmp_path: Path) -> None:
    rows = ran(worker, tmp_path, "a", "opening noise")
    assert rows["a"].status == "measured"
    assert "hello" in rows["opening noise"].reason


def test_every_row_of_a_back_end_that_never_starts_has_the_reason(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("raise SystemExit('cannot load libthing.so')")
    rows = tuple(wanted(key) for key in ("a", "b"))
    found, _ = measure_rows(Path(sys.executable), request(tmp_path / "work", rows), PATIENT, main=broken)
    assert {row.status for row in found} == {"crashed"}
    assert all("libthing" in row.reason for row in found)


def test_the_worker_gets_the_threads_and_nobody_elses_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    variables = supervise._variables(3, tmp_path)
    assert variables["OMP_NUM_THREADS"] == "3"
    assert "PYTHONPATH" not in variables
    assert variables["PATH"] == os.environ["PATH"]
