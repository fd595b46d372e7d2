"""Workspaces that someone else prepared, with links and damaged leftovers: nothing outside is written or removed."""

import json
import os
from pathlib import Path

import pytest

from taglio import transaction
from taglio.errors import BadArtifact, Busy

LOCK, NEW, READY = ".taglio-lock", ".taglio-new", ".taglio-ready"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "plan.json").write_text("old")
    return tmp_path / "out"


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A folder that is not the workspace."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    return tmp_path / "mine"


def replaced(out: Path) -> None:
    with transaction.changing(out) as staged:
        (staged / "plan.json").unlink()
        (staged / "plan.json").write_text("new")


@pytest.mark.parametrize("link", ["symbolic", "hard"])
def test_a_lock_file_that_is_a_link_is_not_followed(link: str, out: Path, mine: Path) -> None:
    if link == "symbolic":
        (out / LOCK).symlink_to(mine / "letter.txt")
    else:
        (out / LOCK).hardlink_to(mine / "letter.txt")
    replaced(out)
    assert (mine / "letter.txt").read_text() == "dear"
    assert (out / "plan.json").read_text() == "new"


def test_a_lock_file_that_is_a_pipe_holds_nobody_up(out: Path) -> None:
    os.mkfifo(out / LOCK)
    replaced(out)
    assert (out / "plan.json").read_text() == "new"


@pytest.mark.parametrize("name", [NEW, READY])
def test_leftovers_that_are_links_are_removed(name: str, out: Path, mine: Path) -> None:
    (mine / ".gone").write_text(json.dumps(["plan.json"]))
    (out / name).symlink_to(mine)
    replaced(out)
    assert {entry.name for entry in mine.iterdir()} == {"letter.txt", ".gone"}
    assert [entry.name for entry in out.iterdir()] == ["plan.json"]


@pytest.mark.parametrize(
    "gone",
    ['["components/../../mine/letter.txt"]', "absolute", "[", "[3]", "[" * 9999],
)
def test_only_files_of_the_workspace_are_removed(gone: str, out: Path, mine: Path) -> None:
    (out / READY).mkdir()
    text = json.dumps([str(mine / "letter.txt")]) if gone == "absolute" else gone
    (out / READY / ".gone").write_text(text)
    with pytest.raises(BadArtifact, match=r"\.taglio-ready: damaged: remove it"):
        replaced(out)
    assert (mine / "letter.txt").read_text() == "dear"
    assert (out / "plan.json").read_text() == "old"


def test_what_a_killed_command_removed_is_removed(out: Path) -> None:
    (out / "components").mkdir()
    (out / "components" / "model.onnx").write_text("old")
    (out / READY).mkdir()
    (out / READY / ".gone").write_text('["plan.json", "components/model.onnx"]')
    with transaction.held(out):
        pass
    assert not [*out.iterdir()]


@pytest.mark.parametrize("name", ["components", "profiles", "standby", "standby/0123", "standby/0123/components"])
def test_folders_elsewhere_are_refused(name: str, out: Path, mine: Path) -> None:
    """Files would be written through the link, into a folder that is not the workspace's."""
    (out / name).parent.mkdir(parents=True, exist_ok=True)
    (out / name).symlink_to(mine)
    with pytest.raises(BadArtifact, match=f"{name} is a symbolic link"):
        replaced(out)
    assert (mine / "letter.txt").read_text() == "dear"


def test_a_link_to_a_folder_that_is_only_read_is_kept(out: Path, mine: Path) -> None:
    (out / "images").symlink_to(mine)
    replaced(out)
    assert (out / "images").is_symlink()


def test_a_lock_is_the_kernels(out: Path, tmp_path: Path) -> None:
    """What a dead process wrote says nothing, even if its number is in use again; another name is the same folder."""
    (out / LOCK).write_text(json.dumps({"pid": os.getpid(), "since": "2026-01-01", "command": "taglio optimize"}))
    (tmp_path / "alias").symlink_to(out)
    with transaction.held(out):
        with (
            pytest.raises(Busy, match=f"in use by process {os.getpid()} since 20"),
            transaction.held(tmp_path / "alias"),
        ):
            pass
        with pytest.raises(Busy), transaction.changing(tmp_path / "alias"):
            pass
    with transaction.held(out):
        pass
