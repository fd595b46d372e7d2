"""What a step may measure of a model: runs, sessions, models side by side and their rounds. Pure: runs nothing."""

from collections.abc import Mapping
from dataclasses import dataclass

from taglio.profile.refills import refills
from taglio.profile.wall_time import STRETCH_S

# Random mixes of float with one other type that tensors are written in. Nine are enough for a 90 % interval: the
# largest of nine errors bounds a tenth.
MIXES = 9
# Tensors are written in float, int8 and bfloat16 at most. With nine mixes of all three, the time of what stands between
# int8 and bfloat16 was so wrong that digits was planned at 0.66 ms instead of 0.54.
MOST_MIXES = 2 * MIXES
# The first run of a session allocates memory, and in ONNX Runtime the second, too, which plans its memory by the first:
# for yolo11s-seg each takes two to five times as long as later runs.
_WARMUP = 2
# A model of thousands of operators takes far longer to build and open than to run, in any runtime: about this many
# seconds per operator.
_OPERATOR_S = 2e-3


@dataclass(frozen=True, slots=True)
class Schedule:
    """Rounds in which every model has a turn: it runs `uncounted[name]` times, and then for a sample, which is the
    median of `counted[name]` runs, or the mean of runs for `sample_s` seconds if single runs scatter.

    Kernels are recorded in `kernel_runs` of every model, or in `paused_runs` if a quota pauses the process.
    """

    rounds: int
    sample_s: float
    uncounted: Mapping[str, int]
    counted: Mapping[str, int]
    kernel_runs: int
    paused_runs: int


@dataclass(frozen=True, slots=True)
class Effort:
    """How much may be measured of a model: its runs may take `budget_s` seconds.

    One run takes `run_s` seconds, and the model has so many `operators`, which decide how long opening takes. Zero
    means that either is negligible.

    Besides float and pure forms, a profile has at most `mixes` random mixes of forms.

    Models that are timed side by side have `minimum` to `maximum` rounds. The minimum may take `patience_s`, more than
    the budget. If it would take longer, the models are slow: they are timed once each, one after another, since
    allocation and scatter matter little in seconds.
    """

    budget_s: float = 20.0
    run_s: float = 0.0
    operators: int = 0
    minimum: int = 3
    maximum: int = 120
    mixes: int = MOST_MIXES

    @property
    def patience_s(self) -> float:
        """Seconds that the minimum of rounds may take."""
        return 6.0 * self.budget_s

    @property
    def sessions(self) -> int:
        """How many sessions may be opened: for 20 s at any effort."""
        return int(max(20.0, self.patience_s) / (_OPERATOR_S * max(1, self.operators)))

    def runs(self, most: int, fewest: int = 1) -> int:
        """How many runs, such as one for every input, the budget allows: at most `most`, at least `fewest`."""
        if self.run_s * most <= self.budget_s:
            return most
        return min(most, max(fewest, int(self.budget_s / self.run_s)))

    def models(self, runs: int = 1) -> int:
        """How many models may be opened, with `runs` runs of each."""
        return min(self.sessions, int(self.patience_s / max(1e-9, runs * self.run_s)))

    def is_slow(self, models: int) -> bool:
        """Whether `models` models, timed side by side, would exceed `patience_s`, so that each is timed once. Kernels
        are recorded in rounds of their own, at most as many as those of whole models."""
        return self._exceeds_patience(models, _WARMUP + 1 + 2 * self.minimum)

    def warmup(self, models: int) -> int:
        """Uncounted runs of a new session, if `models` models are timed."""
        return int(not self._exceeds_patience(models, 2)) if self.is_slow(models) else _WARMUP

    def _exceeds_patience(self, models: int, runs: int) -> bool:
        return runs * models * self.run_s > self.patience_s

    def schedule(self, run_s: Mapping[str, float], *, scatters: bool) -> Schedule:
        """The schedule of models by their seconds of a run; `scatters` says whether single runs differ much."""
        if self.is_slow(len(run_s)):
            return Schedule(1, 0.0, dict.fromkeys(run_s, 0), dict.fromkeys(run_s, 1), 1, 1)
        sample_s = min(STRETCH_S, self.budget_s / (self.minimum * len(run_s))) if scatters else 0.0
        uncounted, counted = dict.fromkeys(run_s, 0), dict.fromkeys(run_s, 1)
        if len(run_s) > 1 and not scatters:  # caches are as other models left them
            repeats = {name: refills(turn_s) for name, turn_s in run_s.items()}
            uncounted = {name: min(1, count) for name, count in repeats.items()}
            counted = {name: max(1, count) for name, count in repeats.items()}
        turns_s = sum(max((uncounted[name] + counted[name]) * turn_s, sample_s) for name, turn_s in run_s.items())
        runs_s = max(1e-9, sum(run_s.values()))
        kernel_runs = max(self.minimum, min(self.maximum, int(self.budget_s / runs_s)) // 2)
        return Schedule(
            rounds=max(self.minimum, min(self.maximum, int(self.budget_s / max(1e-9, turns_s)))),
            sample_s=sample_s,
            uncounted=uncounted,
            counted=counted,
            kernel_runs=kernel_runs,
            # If a quota pauses the process, thirty runs show a kernel without a pause.
            paused_runs=max(kernel_runs, min(30, int(2.0 * self.budget_s / runs_s))),
        )
