"""How busy the machine is that emulates all devices is read, and told where it had no time left."""

import time
from pathlib import Path

import pytest

from taglio.cluster.devices import EMULATION
from taglio.cluster.engine.load import busy_from_now, crowded
from taglio.profile.busy import STAT

INSIDE = {EMULATION: "/run/somewhere"}


def test_idle_ticks_are_those_that_wait_for_a_disk_too_and_stolen_ones_are_not(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 0 100 800 0 0 0 0 50 0\ncpu0 100 0 100 800 0 0 0 0 50 0\n")
    load = busy_from_now(stat, INSIDE)
    assert load() is None  # no time has passed
    stat.write_text("cpu  160 0 110 810 10 0 0 10 90 0\n")
    assert load() == pytest.approx(80 / 100)


def test_outside_an_emulation_there_is_no_answer() -> None:
    load = busy_from_now(environment={})
    assert load() is None and crowded(load()) is None


@pytest.mark.skipif(not STAT.exists(), reason=f"this system has no {STAT}")
def test_a_machine_that_works_is_busy() -> None:
    load, begun = busy_from_now(environment=INSIDE), time.process_time()
    while time.process_time() - begun < 0.2:  # twenty of the kernel's ticks, of which the first may be an idle one
        pass
    assert 0.0 < (load() or 0.0) <= 1.0


def test_only_a_machine_without_time_left_is_told_of() -> None:
    assert crowded(0.5) is None
    assert "busy for 97% of the time" in (crowded(0.97) or "")
