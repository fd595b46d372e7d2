"""Models with data and finished workspaces, made once and copied by the tests that change them."""

import fcntl
import gc
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from taglio.confirm import race
from taglio.confirm.race import Patience
from taglio.confirm.speedup import Speedup
from taglio.embedded import digits_data
from taglio.flow import threads
from taglio.lab import budget
from taglio.profile import busy, waking
from tests.components import cases
from tests.end_to_end.command import SCHEME, Case, taglio
from tests.models import digits_model, pyramid, saved

# Started in the background of a shell, or by nohup, tests would hand ignored signals down to the commands they stop.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# An example of a property may take as long as a busy machine needs.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# A cluster file: the device of the profile, and one twice as fast.
TWO_DEVICES = """start = "camera"
[device.camera]
profile = "profile.json"
[device.server]
scale = { of = "camera", factor = 0.5 }
[[link]]
from = "camera"
to = "server"
both = true
bandwidth_mbit_s = 800
"""


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


def pytest_collection_finish() -> None:
    """Thousands of tests are there to stay: each collection of garbage would look through them again."""
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def brief() -> Iterator[None]:
    """What is timed in this process is not timed again because of the tests beside it, and seldom waits. With little
    effort, races are short too: only what decides whether errors are right keeps its least effort. Races of delivered
    files are short and believed, however wide their interval is, since tests run beside others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(busy, "STAT", Path("/nothing"))
        patch.setattr(waking, "_WAITS", 3)
        patch.setattr(budget, "_LEAST", {name: budget._LEAST[name] for name in ("alone_s", "verify_s", "plans_s")})
        patience = Patience(
            openings=4, choosing=2, half_width=inf, seconds=2.0, slow_seconds=2.0, most_pairs=5, doubt=0.5
        )
        patch.setattr(race, "USUAL", patience)
        patch.setattr(threads, "_PATIENCE", patience)
        yield


# What only the whole way from a model to a plan makes, or processes of their own.
WHOLE = frozenset({"base", "digits_staged", "optimized", "result", "server", "serving", "tiny_staged", "workspace"})
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what `make test-fast` leaves out as going the whole way."""
    for item in items:
        used = WHOLE & set(getattr(item, "fixturenames", ()))
        if used or item.path.is_relative_to(HERE / "end_to_end"):
            item.add_marker("whole")


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], Any]) -> tuple[Path, Any]:
    """The folder `name`, filled by the first process of this run that asks for it, and what `make` returned there."""
    root = factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
    folder, told = root / name, root / f"{name}.json"
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not told.exists():
            shutil.rmtree(folder, ignore_errors=True)  # of one that failed
            folder.mkdir()
            told.write_text(json.dumps(make(folder)))
    return folder, json.loads(told.read_text())


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


@pytest.fixture
def gain_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The final race shows a gain, whatever else this machine does meanwhile: for tests of what is said of a plan."""
    monkeypatch.setattr(Speedup, "replaces_float", True)


@pytest.fixture(scope="session")
def digits() -> Case:
    """The embedded model."""
    return Case(digits_model(), digits_data())


@pytest.fixture(scope="session")
def network() -> cases.Case:
    """The embedded model, opened for cutting."""
    return cases.digits()


@pytest.fixture(scope="session")
def few_digits(digits: Case, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """The embedded model with 24 of its pictures, for what need not be exact."""

    def make(folder: Path) -> None:
        with np.load(digits.data) as arrays:
            np.savez(folder / "digits.npz", **{name: arrays[name][:24] for name in arrays.files})

    folder, _ = once(tmp_path_factory, "few-digits", make)
    return Case(digits.model, folder / "digits.npz")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A model that takes a moment: input `x` 1x3x8x8, and ten samples."""

    def make(folder: Path) -> None:
        saved(pyramid(), folder)
        samples = np.random.default_rng(0).standard_normal((10, 3, 8, 8)).astype(np.float32)
        np.save(folder / "samples.npy", samples)

    folder, _ = once(tmp_path_factory, "tiny", make)
    return Case(folder / "tiny.onnx", folder / "samples.npy")


@pytest.fixture(scope="session")
def optimized(few_digits: Case, tmp_path_factory: pytest.TempPathFactory) -> Optimized:
    """`taglio optimize` on the embedded model, with the scheme left to it."""

    def make(folder: Path) -> Any:
        asked = (*few_digits.arguments(), "--max-error", "1%", "--runtime", "onnxruntime")  # what tests compare with
        return taglio("optimize", *asked, "--effort", 0.02, "-o", folder / "out", "--json").json()

    folder, printed = once(tmp_path_factory, "optimized", make)
    return Optimized(folder / "out", 0.01, printed)


@pytest.fixture(scope="session")
def digits_staged(few_digits: Case, tmp_path_factory: pytest.TempPathFactory) -> Staged:
    """Every stage on the embedded model, a command each."""
    return _staged(few_digits, tmp_path_factory, "digits-staged", 0.01, 0.02)


@pytest.fixture(scope="session")
def tiny_staged(tiny: Case, tmp_path_factory: pytest.TempPathFactory) -> Staged:
    """Every stage on the tiny model."""
    return _staged(tiny, tmp_path_factory, "tiny-staged", 0.05, 0.01)


@pytest.fixture
def workspace(tiny_staged: Staged, tmp_path: Path) -> Path:
    """A copy of the tiny model's workspace, to damage."""
    return Path(shutil.copytree(tiny_staged.folder, tmp_path / "out"))


@pytest.fixture
def digits_workspace(digits_staged: Staged, tmp_path: Path) -> Path:
    """A copy of the embedded model's workspace."""
    return Path(shutil.copytree(digits_staged.folder, tmp_path / "out"))


def _staged(case: Case, factory: pytest.TempPathFactory, name: str, bound: float, effort: float) -> Staged:
    def make(folder: Path) -> Any:
        out = folder / "out"
        how = ("--scheme", SCHEME, "--runtime", "onnxruntime", "--threads", 1, "--effort", effort, "-o", out)
        runs: dict[str, tuple[object, ...]] = {
            "profile": (*case.arguments(), *how),
            "error": (out, "--effort", effort),
            "plan": (out, "--max-error", bound, "--effort", effort),
            "build": (out,),
            "run": (out, "--runs", 20),
            "report": (out,),
        }
        return {stage: taglio(stage, *arguments, "--json").json() for stage, arguments in runs.items()}

    folder, printed = once(factory, name, make)
    return Staged(folder / "out", bound, printed)
