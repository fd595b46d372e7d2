"""Workspaces that someone else prepared, with links and damaged leftovers: nothing outside is written or removed."""

from pathlib import Path

import pytest

from taglio import transaction
from taglio.errors import BadArtifact, Busy


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


def test_a_leftover_that_is_a_link_is_removed(out: Path, mine: Path) -> None:
    (out / ".taglio-new").symlink_to(mine)
    replaced(out)
    assert [entry.name for entry in mine.iterdir()] == ["letter.txt"]
    assert [entry.name for entry in out.iterdir()] == ["plan.json"]


@pytest.mark.parametrize("name", ["components", "profiles", "deploy/samples"])
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
    """Another name is the same folder."""
    (tmp_path / "alias").symlink_to(out)
    with transaction.held(out):
        with pytest.raises(Busy, match="alias is in use by another taglio"), transaction.held(tmp_path / "alias"):
            pass
        with pytest.raises(Busy), transaction.changing(tmp_path / "alias"):
            pass
    with transaction.held(out):
        pass
