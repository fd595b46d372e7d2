"""Damaged models, data, artifacts and cluster files end in success or in one line of refusal.

`make test-fuzz` sets FUZZ_SECONDS: each kind of damage then gets that many seconds of one core.
"""

import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.backend_suite.pool import Died, run_all
from tests.conftest import Staged
from tests.fuzz.targets import TARGETS, Attempt, Finding, attempt, make_models

SECONDS = float(os.environ.get("FUZZ_SECONDS", "0"))
ATTEMPTS, WORKERS, HANG_S = 4, 2, 60.0


@pytest.fixture(scope="module")
def base(tiny_staged: Staged, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz")
    make_models(folder)
    shutil.copytree(tiny_staged.folder, folder / "out")
    return folder


def attempts(base: Path) -> Iterator[Attempt]:
    """Attempts of all targets in turn: a few of each, and more until the time is over."""
    end_s = time.monotonic() + SECONDS * len(TARGETS) / WORKERS
    for seed in count():
        for target in TARGETS:
            if seed >= ATTEMPTS and time.monotonic() > end_s:
                return
            yield Attempt(target, seed, str(base))


def signature(target: str, what: str) -> str:
    """What tells one kind of finding from another: names, numbers and paths left out."""
    if what.startswith("traceback: "):
        return f"{target}: {what.split(': ')[1]}"
    return f"{target}: {re.sub(r'[0-9.]+', 'N', what)[:60]}"


def ending(died: Died) -> str:
    """How a process ended within an attempt."""
    return f"hang over {HANG_S:.0f} s" if died.timeout else f"crash, exit code {died.exit_code}"


def test_damages_end_in_success_or_in_one_line(base: Path) -> None:
    first: dict[str, str] = {}
    times: Counter[str] = Counter()
    for item, result in run_all(attempt, attempts(base), workers=WORKERS, timeout_s=HANG_S):
        finding = result if isinstance(result, Finding) else Finding(ending(result))
        if finding.what:
            kind = signature(item.target, finding.what)
            times[kind] += 1
            first.setdefault(kind, f"{item.target} seed {item.seed}: {finding.what} (taglio {finding.command})")
    assert [f"{times[kind]} times, first {line}" for kind, line in first.items()] == []
