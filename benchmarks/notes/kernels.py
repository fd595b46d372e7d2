"""Where a row's time goes: seconds of ONNX Runtime's kernels by type, for the reasons beside the verdicts."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np

from claims import FOLDER, row
from taglio.compare.result import Comparison
from taglio.runtimes.onnxruntime import Optimization, SessionOptions, open_session

RUNS = 7
_SUFFIX = "_kernel_time"


def kernels(name: str, result: Comparison, keys: Sequence[str]) -> dict[str, dict[str, float]]:
    """For each row, median seconds of an inference in each type of kernel, with the type of its first input, largest
    first. The rows take turns, because the machine changes speed."""
    with np.load(FOLDER / name / "work" / "arrays.npz") as arrays:
        sample = arrays["held_out_0"][0]
    with tempfile.TemporaryDirectory() as folder:
        sessions = {}
        for index, key in enumerate(keys):
            found = row(result, f"onnxruntime/{key}").wanted
            options = SessionOptions(result.threads, Optimization(found.engine.rpartition(" ")[2]))
            sessions[key] = open_session(Path(found.file), options, profile_prefix=Path(folder) / str(index))
        for _ in range(1 + RUNS):
            for session in sessions.values():
                session.run(None, {session.get_inputs()[0].name: sample})
        return {key: _by_type(Path(session.end_profiling())) for key, session in sessions.items()}


def _by_type(path: Path) -> dict[str, float]:
    runs: list[dict[str, float]] = [{} for _ in range(1 + RUNS)]
    seen: dict[str, int] = {}
    for event in json.loads(path.read_text()):
        if event.get("cat") != "Node" or not event["name"].endswith(_SUFFIX):
            continue
        turn = seen[event["name"]] = seen.get(event["name"], -1) + 1
        types = event["args"].get("input_type_shape") or [{"": []}]
        kind = f"{event['args']['op_name']} {next(iter(types[0]))}".strip()
        runs[turn][kind] = runs[turn].get(kind, 0.0) + event["dur"] * 1e-6
    middle = {kind: median(run.get(kind, 0.0) for run in runs[1:]) for kind in runs[1]}
    return dict(sorted(middle.items(), key=lambda each: -each[1]))


def within(found: dict[str, float], *kinds: str) -> float:
    """Seconds in kernels whose type begins with one of `kinds`."""
    return sum(value for kind, value in found.items() if kind.startswith(kinds))


def largest(found: dict[str, float], count: int = 4) -> str:
    """The kernels that take most, in milliseconds."""
    total = sum(found.values())
    parts = ", ".join(f"{kind} {value * 1e3:.1f}" for kind, value in list(found.items())[:count])
    return f"{parts} of {total * 1e3:.1f} ms"


def differences(first: dict[str, float], second: dict[str, float], count: int = 4) -> str:
    """Where two rows differ most: type of kernel, milliseconds in the first and in the second."""
    kinds = sorted(first.keys() | second.keys(), key=lambda kind: -abs(first.get(kind, 0.0) - second.get(kind, 0.0)))
    return ", ".join(
        f"{kind} {first.get(kind, 0.0) * 1e3:.1f} / {second.get(kind, 0.0) * 1e3:.1f}" for kind in kinds[:count]
    )
