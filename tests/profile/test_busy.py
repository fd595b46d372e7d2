"""What other programs use is told; the quietest turns count."""

import pytest

from taglio.profile.busy import BusyWatch, doubt, others_share, quietest, ticks

STAT = "cpu  100 0 100 700 100 0 0 50 0 0\ncpu0 60 0 40 300 50 0 0 50 0 0\ncpu1 40 0 60 400 50 0 0 0 0 0\nintr 1 2\n"


def test_ticks_of_the_processors_that_this_process_may_use() -> None:
    assert ticks(STAT) == (250, 1050)
    assert ticks(STAT, {0}) == (150, 500)  # what the host stole is not ours either
    assert ticks(STAT, {0, 1}) == (250, 1050)
    assert ticks(STAT, {7}) == (0, 0)


def test_the_share_of_others() -> None:
    assert others_share(1.5, 1.0, 2.0) == 0.25
    assert others_share(0.9, 1.0, 2.0) == 0.0  # the kernel's ticks are coarse
    assert others_share(0.0, 0.0, 0.0) == 0.0


def test_quiet_turns_count() -> None:
    shares = [0.0, 0.6, 0.05, 0.3]
    assert quietest(shares, 1) == quietest(shares, 2) == [0, 2]
    assert quietest(shares, 3) == [0, 2, 3]  # too few: the quietest of the others too
    assert quietest([0.5], 3) == [0]


def test_each_turn_has_the_share_of_its_own_time() -> None:
    """Another program has one of two processors in the second turn."""
    readings = iter([(0.0, 0.0, 0.0), (1.0, 1.0, 2.0), (3.0, 2.0, 4.0), (4.0, 3.0, 6.0)])
    watch = BusyWatch(lambda: next(readings))
    assert [watch.look() for _ in range(3)] == watch.shares == pytest.approx([0.0, 0.5, 0.0])
    assert doubt(watch.shares[0]) is None and "used 50% of its processors" in (doubt(watch.shares[1]) or "")
