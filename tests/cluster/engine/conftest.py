"""What tests on running devices share: two of them, a cluster file, and workspaces with and without a plan for it."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.engine.devices import (
    CLUSTER,
    DASHBOARD,
    Bench,
    made_up_times,
    planned,
    planned_with_states,
    two_devices,
)
from tests.conftest import Staged, once


@pytest.fixture(scope="session")
def running() -> Iterator[Bench]:
    """Two devices for many tests: what kills one starts it again."""
    with two_devices(DASHBOARD) as here:
        yield here


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of two devices."""
    folder, _ = once(tmp_path_factory, "two-devices", lambda folder: (folder / "cluster.toml").write_text(CLUSTER))
    return folder / "cluster.toml"


@pytest.fixture
def out(digits_workspace: Path) -> Path:
    """A workspace to plan in, whose plans do not depend on how fast this machine is."""
    made_up_times(digits_workspace)
    return digits_workspace


@pytest.fixture
def placed(digits_staged: Staged, cluster: Path, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> Path:
    """A workspace whose components are on both devices."""

    def make(folder: Path) -> None:
        planned(Path(shutil.copytree(digits_staged.folder, folder / "out")), cluster)

    folder, _ = once(tmp_path_factory, "placed", make)
    return Path(shutil.copytree(folder / "out", tmp_path / "out"))


@pytest.fixture
def with_states(cluster: Path, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> Path:
    """The same of a model with states."""
    folder, _ = once(tmp_path_factory, "with-states", lambda folder: planned_with_states(folder, cluster))
    return Path(shutil.copytree(folder / "out", tmp_path / "out"))
