"""How far the answers of one model file are from another's: nothing of the product but its reading of data."""

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

import numpy as np
import onnxruntime as ort

from taglio.data import dataset as data
from taglio.data import files
from taglio.data.dataset import Split
from taglio.data.spec import InputSpec
from tests.end_to_end.command import Case

DIGITS = (InputSpec("image", (1, 1, 32, 32), "float32"),)
# What the two sums of squares may differ by, the product's in float32 and this file's.
SAME = 1e-6

Feed = Mapping[str, np.ndarray]


def session(path: Path) -> ort.InferenceSession:
    """The file as anybody would open it."""
    return ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def difference(before: Path, after: Path, samples: Sequence[Feed], parts: Sequence[tuple[slice, ...]] = ((),)) -> float:
    """‖y − ŷ‖₂ / ‖y‖₂ pooled over `samples`, largest over outputs and over the `parts` of each."""
    one, other = session(before), session(after)
    names = [output.name for output in one.get_outputs()]
    assert [output.name for output in other.get_outputs()] == names
    pairs = [(one.run(names, sample), other.run(names, sample)) for sample in samples]
    errors = []
    for index, part in product(range(len(names)), parts):
        y = np.concatenate([np.ravel(left[index][part]).astype(np.float64) for left, _ in pairs])
        z = np.concatenate([np.ravel(right[index][part]).astype(np.float64) for _, right in pairs])
        errors.append(float(np.sqrt(np.square(y - z).sum() / np.square(y).sum())))
    return max(errors)


def held_out(case: Case, inputs: Sequence[InputSpec]) -> Split:
    return data.split(files.load(case.data, inputs), seed=0)
