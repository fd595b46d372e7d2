"""Joules are read and watts fitted to the counters of a powercap tree made here; no real counters have been read."""

import json
import time
from pathlib import Path

import pytest

from taglio.cluster.engine import energy
from taglio.cluster.engine.energy import Power, between, calibrate, fitted, read
from tests.end_to_end.command import refused, taglio

END_UJ = 100_000_000


def written(folder: Path, name: str, counted: int, end: int) -> None:
    (folder / name).mkdir(exist_ok=True)
    (folder / name / "energy_uj").write_text(f"{counted}\n")
    (folder / name / "max_energy_range_uj").write_text(f"{end}\n")


def test_packages_are_added_and_their_parts_are_not(tmp_path: Path) -> None:
    for name, counted in (("intel-rapl:0", 9_000_000), ("intel-rapl:1", 1_000_000), ("intel-rapl:0:0", 5_000_000)):
        written(tmp_path, name, counted, 10_000_000)
    before = read(tmp_path)
    written(tmp_path, "intel-rapl:0", 500_000, 10_000_000)
    written(tmp_path, "intel-rapl:1", 3_000_000, 10_000_000)
    assert between(before, read(tmp_path)) == pytest.approx(1.5 + 2.0)


def test_without_counters_there_is_no_answer(tmp_path: Path) -> None:
    assert read(tmp_path / "nothing") is None and between(None, None) is None
    (tmp_path / "intel-rapl:0").mkdir()
    assert read(tmp_path) is None


class Machine:
    """Two packages that take 4 W each at rest and 10 more together when computing; their counters wrap."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.counted_uj, self.now_s = folder, [90_000_000.0, 0.0], 0.0
        self.count(0.0)

    def monotonic(self) -> float:
        return self.now_s

    def count(self, joules: float) -> None:
        for index in range(2):
            self.counted_uj[index] = (self.counted_uj[index] + joules / 2 * 1e6) % END_UJ
            written(self.folder, f"intel-rapl:{index}", int(self.counted_uj[index]), END_UJ)

    def load(self, share: float, seconds: float) -> float:
        self.now_s += seconds
        self.count(8.0 * seconds + 10.0 * share * seconds)
        return share * seconds


def test_the_watts_that_the_counters_were_made_with_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(tmp_path)
    monkeypatch.setattr(energy, "time", machine)
    found = calibrate(1, load=machine.load, folder=tmp_path)
    assert (found.idle_watts, found.active_watts) == pytest.approx((8.0, 18.0), abs=1e-3)
    assert found.residual_watts < 1e-3 and len(found.measured) == 15


def test_the_residual_is_the_distance_from_the_line() -> None:
    found = fitted([Power(0.0, 5.0), Power(0.0, 7.0), Power(1.0, 19.0), Power(1.0, 21.0)])
    assert (found.idle_watts, found.active_watts, found.residual_watts) == pytest.approx((6.0, 20.0, 1.0))
    assert found.at(0.5) == pytest.approx(13.0)
    assert fitted([Power(0.0, -1.0), Power(1.0, 3.0)]).idle_watts == 0.0


@pytest.mark.whole
def test_the_command_computes_and_writes_the_keys_of_the_cluster_file(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = time.monotonic()

    def steady(_: Path) -> dict[str, tuple[float, float]]:
        """20 W whatever it does."""
        return {"intel-rapl:0": (20.0 * (time.monotonic() - begun), 1e6)}

    monkeypatch.setattr(energy, "_SECONDS", 0.05)
    monkeypatch.setattr(energy, "_CYCLE_S", 0.02)
    monkeypatch.setattr(energy, "read", steady)
    found = json.loads(taglio("calibrate-energy", "--threads", 1, "--json").out)
    assert (found["idle_watts"], found["active_watts"]) == (pytest.approx(20.0, rel=0.1), pytest.approx(20.0, rel=0.1))
    busy = [each["busy"] for each in found["measured"]]
    assert busy[0] == 0.0 and 0.5 < busy[4] <= 1.0 and busy[1] < busy[3]
    told = taglio("calibrate-energy", "--threads", 1).out
    assert "\nidle_watts = " in told and "\nactive_watts = " in told and "root mean square" in told


def test_a_machine_without_counters_says_so_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "read", lambda _: None)
    refused(taglio("calibrate-energy"), "no energy counters (RAPL)", "data sheet")
