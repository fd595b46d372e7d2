"""A full disk, an impatient user, a killed process: what was there stays, and the next run succeeds."""

import contextlib
import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest

from taglio import artifact, transaction
from taglio.flow.workspace import MADE_FROM, PROFILE
from tests.conftest import TWO_DEVICES, Staged
from tests.end_to_end.command import ENVIRONMENT, SCHEME, Case, quick, refused, snapshot, taglio
from tests.models import conv_relu_chain, saved

SOME = ("--scheme", SCHEME, "--runtime", "onnxruntime")
SEEDS = (0, pytest.param(1, marks=pytest.mark.slow))


def commands_that_write(case: Case, out: Path) -> list[tuple[object, ...]]:
    return [
        ("profile", *case.arguments(), *SOME, "--effort", 0.01, "-o", out),
        ("error", out, "--effort", 0.01),
        ("plan", out, "--max-error", 0.05, "--effort", 0.01),
        ("build", out),
        ("run", out, "--runs", 3),
        ("report", out),
        ("quantize", *case.arguments(), "-o", out / "components" / "model.onnx"),
    ]


@pytest.mark.parametrize("index", range(7), ids=["profile", "error", "plan", "build", "run", "report", "quantize"])
def test_a_disk_that_is_full(index: int, workspace: Path, tiny: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every write beside the artifacts fails halfway, as on a full disk."""
    before, write = snapshot(workspace), Path.write_bytes

    def full(self: Path, content: bytes) -> int:
        if workspace in self.parents:
            write(self, content[: len(content) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self))
        return write(self, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    refused(taglio(*commands_that_write(tiny, workspace)[index]), "BadArtifact", str(workspace), "the disk is full")
    assert snapshot(workspace) == before


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount, unmount = shutil.which("mount"), shutil.which("umount")
    if sys.platform != "linux" or os.geteuid() != 0 or mount is None or unmount is None:
        pytest.skip("mounting a small file system takes root on Linux")
    made = subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if made.returncode:
        pytest.skip(f"no small file system here: {made.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run([unmount, str(folder)], check=True)


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while True:
            filler.write(bytes(4096))


def test_a_real_disk_that_is_full(small_disk: Path, workspace: Path, tiny: Case) -> None:
    out = Path(shutil.copytree(workspace, small_disk / "out"))
    fill(small_disk / "filler")
    before = snapshot(out)
    for command in commands_that_write(tiny, out):
        refused(taglio(*command), "the disk is full")
        assert snapshot(out) == before
    (small_disk / "filler").unlink()
    assert taglio("build", out).code == 0


def test_a_folder_that_cannot_be_made(tiny: Case, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("here first")
    options = ("--scheme", SCHEME, "--effort", 0.01)
    refused(taglio("profile", *tiny.arguments(), *options, "-o", tmp_path / "file"), "file", "-o")
    refused(taglio("profile", *tiny.arguments(), *options, "-o", tmp_path / "file" / "out"), "file", "-o")
    assert (tmp_path / "file").read_text() == "here first"


def begun(command: tuple[object, ...]) -> "subprocess.Popen[str]":
    """A command in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "taglio", *(str(each) for each in command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )


@pytest.fixture
def other(tiny: Case, tmp_path: Path) -> Case:
    """Another model that takes the tiny one's data."""
    return Case(saved(conv_relu_chain(), tmp_path), tiny.data)


def optimizing(case: Case, out: Path) -> "subprocess.Popen[str]":
    """An optimisation that works in a copy of `out`, and will for seconds."""
    process = begun(("optimize", *case.arguments(), "--max-error", 0.01, *SOME, "--effort", 0.2, "-o", out, "--json"))
    until = time.monotonic() + 300
    while not [*out.glob(".taglio-new/*/profile.json")] and process.poll() is None and time.monotonic() < until:
        time.sleep(0.01)
    assert process.poll() is None, process.communicate()
    return process


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["interrupted", "killed"])
def test_stopped_halfway(how: signal.Signals, other: Case, workspace: Path) -> None:
    """Over the workspace of another model: it stays as it was, and the next run replaces it."""
    before = snapshot(workspace)
    process = optimizing(other, workspace)
    process.send_signal(how)
    printed, said = process.communicate(timeout=300)
    assert printed == ""
    if how is signal.SIGINT:
        assert process.returncode == 130
        assert len(said.splitlines()) == 1
        assert said.startswith("taglio: stopped")
        assert snapshot(workspace) == before
    else:
        assert process.returncode == -signal.SIGKILL
    assert taglio("run", workspace, "--runs", 3).code == 0
    assert {name for name in snapshot(workspace) if snapshot(workspace)[name] != before.get(name)} == {"run.json"}
    assert quick(other, workspace, "--max-error", 0.01, "--json").json()["plan"]["error"] <= 0.01
    assert not [*workspace.rglob(".*")]


def test_two_commands_in_one_workspace(other: Case, workspace: Path) -> None:
    process = optimizing(other, workspace)
    try:
        second = ("optimize", *other.arguments(), "--max-error", 0.01, "-o", workspace)
        for command in (second, *commands_that_write(other, workspace)[:6]):
            refused(taglio(*command), "Busy", workspace, f"process {process.pid} since 20", "taglio optimize")
    finally:
        process.kill()
        process.communicate()
    assert taglio("report", workspace).code == 0  # a dead process holds nothing


class KilledError(BaseException):
    """What a process that is killed would raise if it could."""


def dying(monkeypatch: pytest.MonkeyPatch, name: str, after: int) -> None:
    """From now on, Path's method `name` works so many times and then ends the command, as kill -9 does."""
    real, left = getattr(Path, name), [after]

    def dies(self: Path, *args: object, **options: object) -> object:
        left[0] -= 1
        if left[0] < 0:
            raise KilledError
        return real(self, *args, **options)

    monkeypatch.setattr(Path, name, dies)


def test_killed_while_files_are_replaced(
    workspace: Path, tiny: Case, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """At every single step of it: whoever comes next finds the workspace as it was, or as it was to be."""
    new = Path(shutil.copytree(workspace, tmp_path / "new"))
    assert taglio("profile", *tiny.arguments(), *SOME, "--effort", 0.01, "-o", new).code == 0
    assert not (new / "plan.json").exists()  # what was made from another profile
    before, after = snapshot(workspace), set(snapshot(new))
    steps = 0
    for name in ("replace", "unlink", "rmdir"):
        for index in range(100):
            out = Path(shutil.copytree(workspace, tmp_path / f"{name}{index}" / "out"))
            with monkeypatch.context() as patch:
                try:
                    with transaction.changing(out) as staged:
                        artifact.write_bytes(staged / "profile.json", (new / "profile.json").read_bytes())
                        transaction.drop(staged, *MADE_FROM[PROFILE])
                        dying(patch, name, index)
                except KilledError:
                    steps += 1
                else:
                    break
            with transaction.held(out):  # who comes next
                pass
            found = snapshot(out)
            assert found == before or set(found) == after
            assert not [*out.rglob(".*")]
    assert steps > 8


def test_other_folders_of_a_workspace_are_read_and_stay(workspace: Path) -> None:
    (workspace / "mine").mkdir()
    (workspace / "mine" / "far.json").write_text("1")
    with transaction.changing(workspace) as staged:
        assert (staged / "mine" / "far.json").read_text() == "1"
        artifact.write_bytes(staged / "profiles" / "near.json", b"2")
    assert (workspace / "mine" / "far.json").read_text() == "1" and not (workspace / "mine").is_symlink()
    assert (workspace / "profiles" / "near.json").read_text() == "2"
    with transaction.changing(workspace) as staged:
        transaction.drop(staged, "profiles")
    assert not (workspace / "profiles").exists()


def killed_after(process: "subprocess.Popen[str]", seconds: float) -> None:
    """Kill a process that has not ended by then."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=seconds)
    process.kill()
    process.communicate()


@pytest.mark.parametrize("index", range(6), ids=["profile", "error", "plan", "build", "run", "report"])
def test_killed_at_a_random_moment(index: int, workspace: Path, tiny: Case) -> None:
    """Each stage again over a finished workspace, killed at some point: what is there is what was, or is complete."""
    command = commands_that_write(tiny, workspace)[index]
    killed_after(begun(command), random.Random(index).uniform(0.5, 3.0 if index < 5 else 1.0))
    with transaction.held(workspace):
        pass
    assert not [*workspace.rglob(".*")]
    plan = ("plan", workspace, "--max-error", 0.05, "--effort", 0.01)
    stages = [("error", workspace, "--effort", 0.01), plan, ("build", workspace)]
    if (workspace / "components" / "manifest.json").exists():
        stages = []  # as it was: it runs
    elif (workspace / "plan.json").exists():
        stages = stages[2:]
    for each in stages:
        assert taglio(*each).code == 0
    assert taglio("run", workspace, "--runs", 3).code == 0


@pytest.mark.parametrize("front", [(), ("--axes", "latency,error")], ids=["plan", "front"])
def test_placing_killed_at_a_random_moment(front: tuple[str, ...], workspace: Path, tmp_path: Path) -> None:
    """On several machines: what was built stays, or is gone with the plan that it was built from."""
    cluster = tmp_path / "cluster.toml"
    cluster.write_text(TWO_DEVICES)
    command = ("plan", workspace, "--max-error", 0.05, "--cluster", cluster, "--time-limit", 1, *front)
    killed_after(begun(command), random.Random(str(front)).uniform(0.5, 3.0))
    with transaction.held(workspace):
        pass
    assert not [*workspace.rglob(".*")]
    assert taglio("report", workspace).code == 0
    assert taglio(*command).code == 0
    assert taglio("build", workspace).code == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_optimize_killed_at_a_random_moment(seed: int, other: Case, workspace: Path) -> None:
    """Over another model's workspace: one of the two, whole."""
    before = snapshot(workspace)
    asked = ("optimize", *other.arguments(), "--max-error", 0.05, *SOME, "--effort", 0.01, "-o", workspace)
    killed_after(begun(asked), random.Random(seed).uniform(1.0, 6.0))
    with transaction.held(workspace):
        pass
    after = snapshot(workspace)
    assert after == before or not {"run.json"} & after.keys()
    assert not [*workspace.rglob(".*")]
    assert taglio("run", workspace, "--runs", 3).code == 0


def test_compare_killed_at_a_random_moment(tiny: Case, tmp_path: Path) -> None:
    """Its workers end with it, and the same command starts anew. What lay in the folder before stays."""
    out = tmp_path / "out"
    (out / "work").mkdir(parents=True)
    (out / "work" / "mine.txt").write_text("here first")
    asked = (*tiny.arguments(), "--backends", "onnxruntime", "--effort", 0.01)
    command = ("compare", *asked, "-o", out)
    killed_after(begun(command), random.Random(1).uniform(2.0, 6.0))
    assert taglio(*command).code == 0
    assert (out / "comparison.json").exists()
    assert (out / "work" / "mine.txt").read_text() == "here first"
    assert not [*out.glob(".*")]


@pytest.mark.parametrize("seed", SEEDS)
def test_quantize_killed_at_a_random_moment(seed: int, tiny: Case, tmp_path: Path) -> None:
    """The old model, or the new one, and nothing beside it."""
    out = tmp_path / "out" / "model.onnx"
    out.parent.mkdir()
    out.write_bytes(b"old")
    killed_after(begun(("quantize", *tiny.arguments(), "-o", out)), random.Random(seed).uniform(0.5, 1.5))
    assert out.read_bytes() == b"old" or onnx.load(out).graph.node
    assert taglio("quantize", *tiny.arguments(), "-o", out).code == 0
    assert [each.name for each in out.parent.iterdir()] == [out.name]


def test_an_interrupted_run_over_an_old_one(workspace: Path, tiny: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    def impatient(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("taglio.flow.screen.race", impatient)  # nothing is known yet that could be delivered
    before = snapshot(workspace)
    ran = quick(tiny, workspace, "--max-error", 0.05)
    refused(ran, "stopped", "intact", code=130)
    assert snapshot(workspace) == before


def test_standard_output_that_closes(digits: Case) -> None:
    """`taglio inspect | head -1` says nothing about it."""
    command = [sys.executable, "-m", "taglio", "inspect", str(digits.model)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""


def test_a_workspace_is_not_changed_by_reading_it(tiny_staged: Staged, workspace: Path) -> None:
    assert snapshot(workspace) == snapshot(tiny_staged.folder)
    again, before = taglio("build", workspace, "--json").json(), dict(tiny_staged.printed["build"])
    assert again.pop("deploy")["proof"]["distance"] == before.pop("deploy")["proof"]["distance"] == 0.0
    assert again == before
    changed = {name for name, digest in snapshot(workspace).items() if snapshot(tiny_staged.folder)[name] != digest}
    assert changed <= {"deploy/README.md", "delivered.json"}  # they hold the memory that the proof took
