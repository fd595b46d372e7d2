"""Which of two rows is faster, by ratios of the same rounds in sessions opened anew: what a verdict stands on when a
difference is of the size of the noise. Times nothing itself: turns.py does, in the row's environment."""

import json
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from pathlib import Path
from statistics import fmean, median, stdev

from claims import CONFIRMED, FOLDER, REFUTED, UNDECIDED, row
from taglio.compare.environments import find
from taglio.compare.result import Comparison

OPENINGS = 6
_STUDENT = 2.571  # 97.5 % of Student's t with OPENINGS - 1 degrees of freedom
SAME = 0.05


@dataclass(frozen=True, slots=True)
class Ratio:
    """Seconds of one row over another's: the geometric mean over openings, and its 95 % interval."""

    middle: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.middle:.3f} ({self.low:.3f} to {self.high:.3f})"

    def below_one(self) -> str:
        """Whether the first row is the faster one; refuted where it gains less than SAME, if anything."""
        return CONFIRMED if self.high < 1.0 else REFUTED if self.low > 1.0 - SAME else UNDECIDED

    def near_one(self) -> str:
        """Whether both take the same time, within SAME."""
        if self.low > 1.0 - SAME and self.high < 1.0 + SAME:
            return CONFIRMED
        return REFUTED if self.high < 1.0 - SAME or self.low > 1.0 + SAME else UNDECIDED


@dataclass(frozen=True, slots=True)
class Turns:
    """Seconds of rows that took turns: openings, rounds, rows."""

    openings: list[list[dict[str, float]]]

    def ratio(self, first: str, second: str) -> Ratio:
        """Of the seconds of `first` over those of `second`."""
        each = [log(median(turn[first] / turn[second] for turn in rounds)) for rounds in self.openings]
        middle, half = fmean(each), _STUDENT * stdev(each) / sqrt(len(each))
        return Ratio(exp(middle), exp(middle - half), exp(middle + half))

    def seconds(self, key: str) -> float:
        """Median over all rounds."""
        return median(turn[key] for rounds in self.openings for turn in rounds)

    def best(self, keys: Sequence[str]) -> str:
        """The fastest of `keys`."""
        return min(keys, key=self.seconds)


def turns(name: str, result: Comparison, keys: Sequence[str], budget_s: float) -> Turns:
    """Time rows of ONNX Runtime (`onnxruntime/KEY`), or of its OpenVINO provider (`openvino-ep/KEY`), in turn. Rows of
    different builds cannot be in one call."""
    backend = keys[0].partition("/")[0]
    interpreter = find(backend).interpreter
    assert interpreter is not None
    assert all(key.partition("/")[0] == backend for key in keys)
    wanted = {key: row(result, key).wanted for key in keys}
    spec = {
        "models": {
            key: [each.file, "openvino" if "OpenVINO" in each.engine else "cpu"] for key, each in wanted.items()
        },
        "arrays": str((FOLDER / name / "work" / "arrays.npz").resolve()),
        "threads": result.threads,
        "openings": OPENINGS,
        "budget_s": budget_s,
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spec.json"
        path.write_text(json.dumps(spec))
        script = Path(__file__).parent / "turns.py"
        done = subprocess.run([interpreter, script, path], capture_output=True, text=True, check=True)
    return Turns(json.loads(done.stdout.splitlines()[-1]))
