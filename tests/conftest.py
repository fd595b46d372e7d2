"""Models with data and finished workspaces, made once and copied by the tests that change them."""

import fcntl
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from taglio.embedded import digits_data, digits_model
from tests.end_to_end.command import SCHEME, Case, taglio
from tests.models import pyramid, saved

# Started in the background of a shell, tests would hand an ignored Ctrl-C down to the commands that they interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Let no other process of this checkout test anything beside a test that is marked `alone`."""
    alone = item.get_closest_marker("alone") is not None
    with Path(__file__).open() as turn, Path(__file__).with_name("models.py").open() as testing:
        fcntl.flock(turn, fcntl.LOCK_EX)  # who waits for the others keeps them from starting their next
        fcntl.flock(testing, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(turn, fcntl.LOCK_UN)
        try:
            return (yield)
        finally:
            fcntl.flock(testing, fcntl.LOCK_UN)  # closing is not enough while a forked process has the file


@dataclass(frozen=True)
class Optimized:
    """A finished optimisation: where it lies, its bound, and the object that --json printed."""

    folder: Path
    max_error: float
    printed: Any


@dataclass(frozen=True)
class Staged:
    """A workspace that every stage has been through, and the object that each printed."""

    folder: Path
    max_error: float
    printed: dict[str, Any]


@pytest.fixture(scope="session")
def digits() -> Case:
    """The embedded model."""
    return Case(digits_model(), digits_data())


@pytest.fixture(scope="session")
def few_digits(digits: Case, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """The embedded model with 24 of its pictures, for what need not be exact."""
    path = tmp_path_factory.mktemp("few") / "digits.npz"
    with np.load(digits.data) as arrays:
        np.savez(path, **{name: arrays[name][:24] for name in arrays.files})
    return Case(digits.model, path)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A model that takes a moment: input `x` 1x3x8x8, and ten samples."""
    folder = tmp_path_factory.mktemp("tiny")
    data = folder / "samples.npy"
    np.save(data, np.random.default_rng(0).standard_normal((10, 3, 8, 8)).astype(np.float32))
    return Case(saved(pyramid(), folder), data)


@pytest.fixture(scope="session")
def optimized(digits: Case, tmp_path_factory: pytest.TempPathFactory) -> Optimized:
    """`taglio optimize` on the embedded model, with the scheme left to it."""
    folder, bound = tmp_path_factory.mktemp("optimized") / "out", 0.01
    asked = (*digits.arguments(), "--max-error", "1%", "--runtime", "onnxruntime")  # what tests compare with
    ran = taglio("optimize", *asked, "--effort", 0.05, "-o", folder, "--json")
    return Optimized(folder, bound, ran.json())


@pytest.fixture(scope="session")
def digits_staged(few_digits: Case, tmp_path_factory: pytest.TempPathFactory) -> Staged:
    """Every stage on the embedded model, a command each."""
    return _staged(few_digits, tmp_path_factory.mktemp("digits-staged"), 0.01, 0.05)


@pytest.fixture(scope="session")
def tiny_staged(tiny: Case, tmp_path_factory: pytest.TempPathFactory) -> Staged:
    """Every stage on the tiny model."""
    return _staged(tiny, tmp_path_factory.mktemp("tiny-staged"), 0.05, 0.01)


@pytest.fixture
def workspace(tiny_staged: Staged, tmp_path: Path) -> Path:
    """A copy of the tiny model's workspace, to damage."""
    return Path(shutil.copytree(tiny_staged.folder, tmp_path / "out"))


def _staged(case: Case, parent: Path, bound: float, effort: float) -> Staged:
    out = parent / "out"
    runs: dict[str, tuple[object, ...]] = {
        "profile": (*case.arguments(), "--scheme", SCHEME, "--effort", effort, "-o", out),
        "error": (out, "--effort", effort),
        "plan": (out, "--max-error", bound, "--effort", effort),
        "build": (out,),
        "run": (out, "--runs", 20),
        "report": (out,),
    }
    return Staged(out, bound, {name: taglio(name, *arguments, "--json").json() for name, arguments in runs.items()})
