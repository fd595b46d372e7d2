"""A race of delivered folders in a process without taglio."""

import json
import shutil
import time
from collections.abc import Iterator
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from taglio.confirm.bench import Bench
from taglio.confirm.race import Patience, compared, confirm
from taglio.deploy import verify
from taglio.deploy.write import write_source
from taglio.errors import MeasurementFailed
from taglio.profile.busy import BusyWatch
from tests.models import parsed

QUICK = Patience(openings=4, seconds=2.0, most_pairs=9)


def network(layers: int) -> onnx.ModelProto:
    """So many products of a 300 x 300 matrix."""
    weights = np.random.default_rng(0).standard_normal((300, 300)) / 20
    names = ["x", *(f"t{index}" for index in range(layers))]
    nodes = " ".join(f"{after} = MatMul ({before}, w)" for before, after in pairwise(names))
    nodes += f" y = Identity ({names[-1]})"
    return parsed(f"(float[300, 300] x) => (float[300, 300] y) {{ {nodes} }}", {"w": weights})


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path, Path]:
    """Delivered models of eight layers, of one, and of four."""
    made = []
    for layers in (8, 1, 4):
        folder = tmp_path / str(layers)
        folder.mkdir()
        write_source(folder, network(layers), ["x"], ["y"], 1)
        made.append(folder)
    return made[0], made[1], made[2]


@pytest.fixture
def race() -> Iterator[Bench]:
    """A running process with one input."""
    with Bench([{"x": np.ones((300, 300), np.float32)}]) as opened:
        yield opened


def test_a_model_of_an_eighth_of_the_work_is_clearly_faster(race: Bench, folders: tuple[Path, Path, Path]) -> None:
    result = confirm(race, folders[0], folders[1], 0.01, QUICK)
    assert result.openings >= QUICK.fewest
    assert result.ratio > 2.0
    assert result.float_s > result.plan_s > 0.0


class Disturbed:
    """A race of openings of a second, in which other programs use all processors."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def opening(self, *_: object) -> list[list[float]]:
        self.now_s += 1.0
        return [[2.0], [1.0]]

    def watch(self) -> BusyWatch:
        return BusyWatch(lambda: (self.now_s, 0.0, self.now_s))


@pytest.mark.parametrize(("most_seconds", "openings"), [(inf, 20), (13.0, 13)])
def test_a_race_that_others_disturb_takes_twice_its_time_but_never_more_than_it_may(
    most_seconds: float, openings: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    race: Any = Disturbed()
    monkeypatch.setattr(time, "monotonic", lambda: race.now_s)
    confirm(race, Path(), Path(), 0.01, Patience(openings=4, seconds=10.0, most_seconds=most_seconds))
    assert race.now_s == openings


def test_candidates_are_compared_in_the_same_openings(race: Bench, folders: tuple[Path, Path, Path]) -> None:
    eight, one, four = folders
    ratios = [result.ratio for result in compared(race, eight, [four, eight, one], QUICK)]
    assert ratios[2] > ratios[0] > ratios[1]


def test_a_model_that_cannot_be_opened_is_named_and_the_race_goes_on(
    race: Bench, folders: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    broken = shutil.copytree(folders[0], tmp_path / "broken")
    (broken / "damaged.onnx").write_bytes(b"no model")
    manifest = json.loads((broken / verify.MANIFEST).read_text())
    manifest["components"][0]["model"] = "damaged.onnx"
    (broken / verify.MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(
        MeasurementFailed, match=r"the measuring process, which runs without taglio, failed: .*damaged\.onnx"
    ):
        race.opening([folders[0], broken], 0.1, (1, 1))
    assert len(race.opening([folders[0], folders[1]], 0.1, (1, 1))) == 2


def test_a_model_of_which_the_runtime_warns_at_length_does_not_stop_the_race(race: Bench, tmp_path: Path) -> None:
    """Some exporters declare weights as inputs too. ONNX Runtime warns of each: here more than a pipe holds."""
    names = [f"weight{index}" for index in range(400)]
    inputs = ", ".join(f"float[300, 1] {name}" for name in names)
    text = f"(float[300, 300] x, {inputs}) => (float[300, 300] y) {{ y = Sum (x, {', '.join(names)}) }}"
    model = parsed(text, {name: np.ones((300, 1)) for name in names})
    folder = tmp_path / "old"
    folder.mkdir()
    write_source(folder, model, ["x"], ["y"], 1)
    for _ in range(3):
        (seconds,) = race.opening([folder], 0.01, (1, 1))
        assert len(seconds) == 1


def test_a_process_that_ends_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "__file__", "no_verify.py")
    with (
        Bench([]) as race,
        pytest.raises(MeasurementFailed, match=r"ended with exit code 1: .*no_verify"),
    ):
        race.close()
