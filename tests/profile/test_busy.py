"""Rounds that other programs disturbed are measured again, left out, and said; a plan must win against float."""

import time

import pytest

from taglio.profile.busy import BusyWatch, Window, doubt, kept, others_in, ticks
from taglio.profile.effort import Schedule
from taglio.profile.rounds import interleave

STAT = "cpu  100 0 100 700 100 0 0 50 0 0\ncpu0 60 0 40 300 50 0 0 50 0 0\ncpu1 40 0 60 400 50 0 0 0 0 0\nintr 1 2\n"


def test_ticks_of_the_processors_that_this_process_may_use() -> None:
    assert ticks(STAT) == (250, 1050)
    assert ticks(STAT, {0}) == (150, 500)  # what the host stole is not ours either
    assert ticks(STAT, {0, 1}) == (250, 1050)
    assert ticks(STAT, {7}) == (0, 0)


def test_rounds_of_quiet_windows_count() -> None:
    windows = [Window(0, 3, 0.0), Window(3, 5, 0.6), Window(5, 6, 0.05), Window(6, 9, 0.3)]
    assert kept(windows, 3) == [0, 1, 2, 5]
    assert kept(windows, 5) == [0, 1, 2, 5, 6, 7, 8]  # too few: the quietest of the others too
    assert others_in(windows, {0, 1, 2, 5}) == pytest.approx(0.0125)
    assert kept([Window(0, 4, 0.5)], 3) == [0, 1, 2, 3]


class Machine:
    """A session on a machine of two processors, one of which another program has until a round; and its clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, until: int) -> None:
        self.now_s, self.runs, self.worked_s, self.until = 0.0, 0, 0.0, until
        monkeypatch.setattr(time, "perf_counter", lambda: self.now_s)

    def run(self, _names: object, _feed: object) -> list[object]:
        disturbed = self.runs < self.until
        took_s = 0.6 if disturbed else 0.3
        self.now_s += took_s
        self.worked_s += 2.0 * took_s if disturbed else took_s
        self.runs += 1
        return []

    def read(self) -> tuple[float, float, float]:
        return self.worked_s, self.now_s, 2.0 * self.now_s


@pytest.mark.parametrize(("until", "rounds", "said"), [(0, 10, False), (5, 15, False), (100, 20, True)])
def test_a_measurement_that_is_disturbed(until: int, rounds: int, said: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, until)
    watch = BusyWatch(machine.read)
    schedule = Schedule(10, 0.0, {"model": 0}, {"model": 1}, 10, 10)
    samples = interleave({"model": machine}, [[{}]], schedule, watch, lambda _: None)["model"]  # type: ignore[dict-item]
    assert len(samples) == rounds
    counted = kept(watch.windows, 3)
    assert [samples[index] for index in counted] == pytest.approx([0.6 if said else 0.3] * len(counted))
    assert (doubt(others_in(watch.windows, counted)) is not None) == said
