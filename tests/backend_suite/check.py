"""One case through taglio: load, graph, calibrate, build, switchable graph, compare. Starts no process."""

import tempfile
import traceback
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from taglio.errors import TaglioError
from taglio.flow.opening import Model
from taglio.profile.measure import pure_assignments
from taglio.quantize.mixes import random_mixes
from taglio.quantize.precision import Assignment, precisions
from taglio.runtimes.onnxruntime import SessionOptions, open_session
from tests.backend_suite.case import Case, Runnable, Unrunnable, prepare
from tests.models import exact

PASSED, SKIPPED, RIGHTLY, REFUSED, WRONG, EXCEPTION, WARNING, CRASH, TIMEOUT = STATUSES = (
    "passed", "skipped", "rightly", "refused", "wrong", "exception", "warning", "crash", "timeout",
)  # fmt: skip
MIXES = 2
# Against the original: rewrites reorder float sums. float16 has 11 bits, bfloat16 8.
FLOAT_TOLERANCE = {np.dtype(np.float64): 1e-3, np.dtype(np.float32): 1e-3, np.dtype(np.float16): 1e-2}
OTHER_FLOAT_TOLERANCE = 3e-2
# Against the switchable graph, in the median over samples: one flip of an int8 rounding is in few samples, a block that
# is quantised in one of them only is in all.
FLIPS = 2e-3
FLIPS_OF_ERROR = 0.15


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a case; `detail` is the reason, one line."""

    status: str
    detail: str = ""


class Wrong(Exception):
    """An answer that is not what it must be."""


def check(case: Case) -> Outcome:
    """Run `case`; never raises."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            ready = prepare(case, Path(folder))
        except Unrunnable as why:
            return Outcome(SKIPPED, str(why))
        try:
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                compare(ready)
        except Wrong as wrong:
            return Outcome(WRONG, str(wrong))
        except TaglioError as refusal:
            text = f"{type(refusal).__name__}: {refusal}".replace(folder, "")
            if "\n" in text:
                return Outcome(REFUSED, f"of several lines: {text!r}")
            return Outcome(RIGHTLY if is_right(text, ready) else REFUSED, text)
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            ours = next((each for each in reversed(frames) if "/taglio/" in each.filename), frames[-1])
            where = f"{ours.filename.rpartition('/taglio/')[2]}, {ours.name}"
            return Outcome(EXCEPTION, f"{type(error).__name__} in {where}: {' '.join(str(error).split())[:300]}")
    if warned:  # lines on the user's screen that help nobody
        where = f"{warned[0].filename.rpartition('/taglio/')[2]}"
        return Outcome(WARNING, f"{warned[0].category.__name__} in {where}: {warned[0].message}")
    return Outcome(PASSED)


def is_right(refusal: str, ready: Runnable) -> bool:
    """Whether a refusal has a reason that holds for this case."""
    if "the model has no inputs" in refusal:
        return not ready.samples[0]
    if "NaN or infinite values as" in refusal:
        values = [value for feed in ready.samples for value in feed.values()]
        return not all(np.isfinite(value).all() for value in values if value.dtype.kind == "f")
    if "of the float model is NaN or infinite on the data" in refusal:
        answers = [ready.session.run(None, dict(feed)) for feed in ready.samples]
        arrays = [array for answer in answers for array in _arrays(answer)]
        return any(array.size and not np.isfinite(array).any() for array in arrays if array.dtype.kind == "f")
    return False


def compare(ready: Runnable) -> None:
    """Raises Wrong for a wrong answer, and what taglio raises."""
    scheme = exact()
    work = Model(ready.model, ready.data, threads=1).settled(scheme)
    if work.model.outputs != ready.outputs:
        raise Wrong(f"outputs are called {work.model.outputs}, the original's {ready.outputs}")
    builder = work.builder(scheme)
    switchable = work.switchable(scheme)
    choices = precisions(scheme)
    samples = work.data.held_out.samples
    assignments: dict[str, Assignment] = {"float": {}, **pure_assignments(work.graph, choices)}
    assignments |= random_mixes(work.graph, choices, MIXES, seed=0)
    references = [ready.session.run(None, dict(each)) for each in samples]
    for name, assignment in assignments.items():
        built = open_session(builder.build(assignment), SessionOptions(1), label=f"the {name} model")
        found = [built.run(list(work.model.outputs), dict(each)) for each in samples]
        if name == "float":
            try:
                for reference, values in zip(references, found, strict=True):
                    _same_float(ready.outputs, reference, values)
            except Wrong:  # one that is quantised already, or takes the largest, may answer so where it is optimised
                for each, values in zip(samples, found, strict=True):
                    _same_float(ready.outputs, ready.optimized.run(None, dict(each)), values)
            references = found
        switched = [switchable.run(assignment, each) for each in samples]
        _same_but_for_flips(name, ready.outputs, switched, found, references)
    work.meter(switchable, 4).error(assignments["int8"])


def _same_float(names: Sequence[str], before: Sequence[Any], after: Sequence[Any]) -> None:
    for name, one, other in zip(names, before, after, strict=True):
        for a, b in zip(_arrays(one), _arrays(other), strict=True):
            if a.shape != b.shape or a.dtype != b.dtype:
                raise Wrong(
                    f"float: output {name} is {b.dtype}{list(b.shape)}, the original's {a.dtype}{list(a.shape)}"
                )
            if a.dtype.kind not in "fV":
                if not np.array_equal(a, b):
                    raise Wrong(f"float: output {name} of {a.dtype} is not the original's")
                continue
            tolerance = FLOAT_TOLERANCE.get(a.dtype, OTHER_FLOAT_TOLERANCE)
            x, y = a.astype(np.float64), b.astype(np.float64)
            if not np.array_equal(np.isfinite(x), np.isfinite(y)):
                raise Wrong(f"float: output {name} is NaN or infinite elsewhere than the original's")
            if (distance := _relative(x, y)) > tolerance:
                raise Wrong(f"float: output {name} is {distance:.2%} off the original's")


def _same_but_for_flips(
    assignment: str,
    names: Sequence[str],
    switched: Sequence[Sequence[Any]],
    built: Sequence[Sequence[Any]],
    references: Sequence[Sequence[Any]],
) -> None:
    for index, name in enumerate(names):
        error = _distance([[each[index]] for each in references], [[each[index]] for each in built])
        limit = max(FLIPS, FLIPS_OF_ERROR * error)
        far = []
        for one, other in zip(switched, built, strict=True):
            for a, b in zip(_arrays(one[index]), _arrays(other[index]), strict=True):
                if a.dtype != b.dtype or a.ndim != b.ndim:
                    raise Wrong(
                        f"{assignment}: output {name} is {b.dtype} of rank {b.ndim}, switchable {a.dtype}, {a.ndim}"
                    )
                if a.shape != b.shape:  # a flip can change what NonZero counts
                    far.append(1.0)
                elif a.dtype.kind == "f":
                    far.append(_relative(a.astype(np.float64), b.astype(np.float64)))
                else:
                    far.append(float(np.mean(a != b)) if a.size else 0.0)
        if far and (middle := float(np.median(far))) > limit:
            raise Wrong(f"{assignment}: output {name} is {middle:.2%} off the switchable graph (limit {limit:.2%})")


def _distance(references: Sequence[Sequence[Any]], found: Sequence[Sequence[Any]]) -> float:
    """Relative L2 over all samples, the worst over outputs of floats."""
    sums: dict[tuple[int, int], np.ndarray] = {}
    for before, after in zip(references, found, strict=True):
        for index, (one, other) in enumerate(zip(before, after, strict=True)):
            for part, (a, b) in enumerate(zip(_arrays(one), _arrays(other), strict=False)):
                if a.dtype.kind == "f" and a.shape == b.shape:
                    x, y = _finite(a.astype(np.float64), b.astype(np.float64))
                    total = np.array([np.square(x - y).sum(), np.square(x).sum()])
                    sums[index, part] = sums.get((index, part), np.zeros(2)) + total
    return max((float(np.sqrt(off / max(size, 1e-60))) for off, size in sums.values() if off > 0.0), default=0.0)


def _relative(a: np.ndarray, b: np.ndarray) -> float:
    a, b = _finite(a, b)
    off = float(np.linalg.norm(a - b))
    return off / max(float(np.linalg.norm(a)), 1e-12) if off > 1e-12 else 0.0


def _finite(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    keep = np.isfinite(a) & np.isfinite(b)
    return a[keep], b[keep]


def _arrays(value: Any) -> list[np.ndarray]:
    """The arrays in an output: itself, or those of a sequence, map or optional."""
    if isinstance(value, list | tuple):
        return [array for each in value for array in _arrays(each)]
    if isinstance(value, Mapping):
        return [array for key in sorted(value) for array in _arrays(value[key])]
    return [] if value is None else [np.asarray(value)]
