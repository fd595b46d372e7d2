"""The search over ways under a limit on latency, on made-up machines whose runs are known."""

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from taglio.confirm.bench import Bench, Burst
from taglio.deploy.verify import MANIFEST
from taglio.deploy.write import write_source
from taglio.runtimes.way import Way
from taglio.ways.choose import Contender, Goal, Tries, burst_of, choose
from taglio.ways.climb import Choice, Sides
from taglio.ways.confirm import Sized, kept_rate, opening, rate_of
from taglio.ways.replay import KEPT, PERCENTILE, ServiceTimes, highest_rate, waits
from tests.models import Sketch

RUN_S = 0.01


class MadeUp(Bench):
    """A bench whose runs are drawn: the cores are shared, memory slows runs at once down, a run of several items has a
    fixed part, and one run in twenty takes longer. `gains` says how many times as fast a folder's model is."""

    def __init__(self, seed: int, gains: dict[str, float]) -> None:  # no process: nothing of Bench is opened
        draw = random.Random(seed)
        self._memory, self._fixed = draw.uniform(0.0, 0.5), draw.uniform(0.1, 0.6)
        self._tail = draw.uniform(1.2, 2.5)
        self._gains, self._draw = gains, np.random.default_rng(seed)

    def open(self, folders: Sequence[Path]) -> list[int]:
        """A hundred bytes for each run at once."""
        return [100 * way_of(folder).at_once for folder in folders]

    def run_s(self, model: str, way: Way) -> float:
        """What a usual run takes."""
        used, amdahl = way.used_threads, 0.3 + 0.7 / way.threads
        items = self._fixed + (1.0 - self._fixed) * way.joined
        contention = (1.0 + self._memory * (min(used, 2) - 1)) * max(1.0, used / 2)
        return RUN_S * items * contention * amdahl / self._gains[model]

    def runs(self, model: str, way: Way, count: int) -> list[float]:
        """Runs as they are drawn."""
        usual = self.run_s(model, way)
        slow = np.where(self._draw.random(count) < 0.05, self._tail, 1.0)
        return [float(run) for run in usual * slow * self._draw.normal(1.0, 0.02, count)]

    def close(self) -> None:
        """Nothing is open."""

    def truth(self, choice: Choice, count: int = 2000) -> ServiceTimes:
        """The runs of a choice, many of them, for every number of items that it may join."""
        sizes = [size for size in (1, 2, 4, 8, 16, 32, 64) if size <= choice.way.joined]
        ways = {size: replace(choice.way, joined=size) for size in sizes}
        return ServiceTimes({size: self.runs(choice.model, way, count) for size, way in ways.items()})

    def open_loop(self, folder: Path, per_s: float, count: int) -> list[float]:
        """Requests over drawn runs."""
        choice = Choice(model_of(folder), way_of(folder))
        seed = int(self._draw.integers(1000, 1_000_000))
        taken: list[float] = waits(self.truth(choice), choice.way, per_s, seed, count).tolist()
        return taken

    def closed_loop(self, folders: Sequence[Path], seconds: float, rounds: int) -> list[list[Burst]]:
        """Bursts of drawn runs."""
        found = []
        for folder in folders:
            way, model = way_of(folder), model_of(folder)
            count = max(2, int(seconds / self.run_s(model, way))) * way.at_once
            some = [self.runs(model, way, count) for _ in range(rounds)]
            found.append([Burst(way.at_once * way.joined * len(runs) / sum(runs), tuple(runs)) for runs in some])
        return found


def way_of(folder: Path) -> Way:
    return Way(**json.loads((folder / MANIFEST).read_text())["way"])


def model_of(folder: Path) -> str:
    (part,) = json.loads((folder / MANIFEST).read_text())["components"]
    return Path(part["model"]).parent.name


def tries_of(folder: Path, bench: MadeUp, gains: dict[str, float], goal: Goal, memory: int | None = None) -> Tries:
    sketch = Sketch(0)
    model = sketch.model(sketch.op("Relu", sketch.input("x", 1, 4)))
    models = {}
    for name in gains:
        (folder / name).mkdir(parents=True)
        write_source(folder / name, model, ["x"], ["y"], 1)
        sides = Sides(2, 2, joined=True, pools=True)
        models[name] = Contender(name, "onnxruntime", folder / name, sides, is_float=name == "float32")
    return Tries(bench, models, folder / "tried", goal, 20.0, burst_of(RUN_S), memory)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 20))])
def test_a_rate_that_is_reported_keeps_the_limit_and_is_near_the_best(seed: int, tmp_path: Path) -> None:
    gains, limit_s = {"float32": 1.0, "plan 1": 1.6}, 0.08
    bench = MadeUp(seed, gains)
    tries = tries_of(tmp_path, bench, gains, Goal(limit_s))
    best = choose(tries)[0]
    sizes = [2**power for power in range(best.way.joined.bit_length())]
    folders = {size: tries.folder(Choice(best.model, replace(best.way, joined=size))) for size in sizes}
    openings = [opening(bench, [Sized(best.way, folders)], 0.12) for _ in range(8)]
    replayed = rate_of(openings, 0, limit_s)
    assert replayed is not None
    kept = kept_rate(bench, folders[best.way.joined], replayed, limit_s, 1e9)
    assert kept.p95_s is not None

    truth = bench.truth(best)
    took = waits(truth, best.way, 0.95 * kept.rate.value, seed=100, requests=20_000)
    assert float(np.percentile(took, PERCENTILE)) <= limit_s
    ways = [Way(*way, joined) for way in ((1, 1), (1, 2), (1, 3), (2, 1)) for joined in (4, 8, 16)]
    possible = max(highest_rate(bench.truth(Choice("plan 1", way)), way, limit_s) for way in ways)
    assert highest_rate(truth, best.way, limit_s) >= 0.9 * possible
    assert kept.rate.value >= 0.7 * possible
    by_one_load = kept_rate(bench, folders[best.way.joined], replayed, limit_s, 1e9, loads=1)
    assert 0.7 * possible <= by_one_load.rate.value <= replayed.value


def test_what_takes_too_much_memory_is_out(tmp_path: Path) -> None:
    gains = {"float32": 1.0}
    choices = choose(tries_of(tmp_path, MadeUp(0, gains), gains, Goal(), memory=100))
    assert choices
    assert {choice.way.at_once for choice in choices} == {1}


def test_a_limit_that_nothing_keeps_leaves_nothing(tmp_path: Path) -> None:
    gains = {"float32": 1.0, "plan 1": 1.2}
    assert choose(tries_of(tmp_path, MadeUp(0, gains), gains, Goal(0.001))) == []


def test_a_faster_plan_is_tried_in_the_ways_that_are_best_for_float(tmp_path: Path) -> None:
    gains = {"float32": 1.0, "plan 1": 1.3}
    tries = tries_of(tmp_path, MadeUp(3, gains), gains, Goal())
    assert choose(tries)[0].model == "plan 1"
    assert {tried.model for tried in tries.tried()} == {"float32", "plan 1"}


def test_a_tried_way_is_told_with_the_latency_at_its_rate(tmp_path: Path) -> None:
    gains, limit_s = {"float32": 1.0}, 0.08
    tries = tries_of(tmp_path, MadeUp(1, gains), gains, Goal(limit_s))
    tries.measure([Choice("float32", Way(1, 2)), Choice("float32", Way(1, 2, 2))])
    able = [tried for tried in tries.tried() if tried.rate_per_s]
    # The highest rate is where the limit is nearly reached, waiting included: a run alone takes a fraction of it.
    assert able
    assert all(0.7 * KEPT * limit_s <= tried.latency_s <= KEPT * limit_s for tried in able)
