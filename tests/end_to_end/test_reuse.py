"""A run into the workspace of an earlier one reuses its measured errors where nothing that they depend on changed."""

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest

import taglio
from taglio import artifact
from taglio.error.model import ErrorModel
from taglio.flow.outcome import Outcome
from tests.end_to_end.command import Case, quick
from tests.models import Sketch

# Blocks that are forced into int8 are studied, however slow they are; with this effort on all inputs.
STUDIED = ("--force-int8", "*", "--effort", 0.1)


@pytest.fixture(scope="module")
def studied(tiny: Case, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The workspace of a first run."""
    folder = tmp_path_factory.mktemp("studied") / "out"
    assert quick(tiny, folder, *STUDIED, "--max-error", "90%").code == 0
    assert reused(folder) == 0
    return folder


@pytest.fixture
def out(studied: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(studied, tmp_path / "out"))


def reused(folder: Path) -> int:
    return artifact.load(folder / "outcome.json", "outcome", Outcome).reused_errors


def test_a_second_run_reuses_the_errors_and_says_so(tiny: Case, out: Path) -> None:
    error = artifact.load(out / "error.json", "error", ErrorModel)
    ran = quick(tiny, out, *STUDIED, "--max-error", "80%", "--verbose")
    assert f"reused {error.evaluations} errors of blocks from the previous run" in ran.out
    again = artifact.load(out / "error.json", "error", ErrorModel)
    assert (again.alone, again.subsets) == (error.alone, error.subsets)


def test_errors_on_other_data_are_measured_again(tiny: Case, out: Path, tmp_path: Path) -> None:
    data = tmp_path / "other.npy"
    np.save(data, np.load(tiny.data) * 0.5)
    assert quick(Case(tiny.model, data), out, *STUDIED, "--max-error", "90%").code == 0
    assert reused(out) == 0


def test_errors_of_another_model_do_not_stay_where_none_are_studied(out: Path, tmp_path: Path) -> None:
    model, data = tmp_path / "softmax.onnx", tmp_path / "rows.npy"
    assert (out / "error.json").exists()
    g = Sketch()
    onnx.save(g.model(g.rename(g.op("Softmax", g.input("x", 1, 8)), "y")), model)  # has no other form
    np.save(data, np.random.default_rng(0).standard_normal((16, 1, 8)).astype(np.float32))
    ran = quick(Case(model, data), out, "--max-error", "1%")
    assert (ran.code, "error.json" in ran.err) == (0, False)
    assert not (out / "error.json").exists() and taglio.load(out).error is None
