"""Prove that what was delivered answers as taglio does, in a process that imports NumPy and the runtime only."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from taglio.deploy.write import VERIFY, Answered, write_samples
from taglio.errors import MeasurementFailed, one_line, plural
from taglio.scratch import scratch


@dataclass(frozen=True, slots=True)
class DeployProof:
    """The largest distance of an answer from taglio's own, over `samples` inputs, and the most memory that the process
    took, in bytes (None where the system does not say)."""

    samples: int
    distance: float
    peak_memory_bytes: int | None


def prove(folder: Path, samples: Sequence[Answered]) -> DeployProof:
    """Run verify.py of `folder` on `samples`. Raises MeasurementFailed if answers differ by more than rounding, or if a
    setting has no effect on this machine."""
    with scratch() as temporary:
        write_samples(temporary, samples)
        report = verified(folder, temporary)
    if report.problems:
        raise MeasurementFailed(
            f"{folder}: run without taglio, {plural(len(report.problems), 'check')} failed: {report.problems[0]}"
        )
    return DeployProof(len(samples), report.distance, report.peak_memory_bytes)


@dataclass(frozen=True, slots=True)
class Verified:
    """What verify.py reported: its problems, a line each, the largest `distance` of an answer, and the most memory that
    its process took, in bytes (None where the system does not say)."""

    problems: tuple[str, ...]
    distance: float
    peak_memory_bytes: int | None


def verified(folder: Path, samples: Path) -> Verified:
    """Run verify.py of `folder` on a folder of samples. Raises MeasurementFailed if it crashes."""
    # Isolated from the environment, the user's packages and this checkout, but not from the environment's packages.
    command = [sys.executable, "-I", str(folder / VERIFY), "--samples", str(samples), "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        report = json.loads(ended.stdout)
    except ValueError:
        problem = one_line(ended.stderr.strip().rpartition("\n")[2] or f"exit code {ended.returncode}", 300)
        raise MeasurementFailed(f"{folder / VERIFY}: failed without taglio: {problem}") from None
    return Verified(tuple(report["problems"]), report["worst"] or 0.0, report["peak_memory_bytes"])
