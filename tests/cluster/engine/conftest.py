"""What tests on running devices share: a cluster file of two, and a workspace to plan in."""

import shutil
from pathlib import Path

import pytest

from tests.cluster.engine.devices import CLUSTER
from tests.conftest import Staged


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.toml"
    path.write_text(CLUSTER)
    return path


@pytest.fixture
def out(digits_staged: Staged, tmp_path: Path) -> Path:
    return Path(shutil.copytree(digits_staged.folder, tmp_path / "out"))
