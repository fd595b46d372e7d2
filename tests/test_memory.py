"""What waits in a file is what was put there; sizes are those of this machine."""

import numpy as np
import pytest

from taglio import memory
from taglio.memory import Shelf, free_bytes, make_room, peak_bytes, used_bytes


def lists() -> list[list[object]]:
    rng = np.random.default_rng(0)
    plain: list[list[object]] = [
        [rng.standard_normal((2, index + 1)).astype(np.float32), np.arange(index, dtype=np.int64)] for index in range(4)
    ]
    return [*plain, [np.array(["a", "bc"], object)], [[np.ones(3)], None], [np.zeros((), np.bool_)]]


@pytest.mark.parametrize("room", [None, 0, 40])
def test_a_shelf_gives_what_was_put_there(room: float | None) -> None:
    given = lists()
    shelf = Shelf(given, room)
    assert len(shelf) == len(given)
    for index, wanted in enumerate(given):
        for one, other in zip(shelf[index], wanted, strict=True):
            np.testing.assert_equal(one, other)
    assert [len(values) for values in shelf[1:3]] == [2, 2]
    assert shelf.shapes(2) == [(2, 3), (2,)]
    np.testing.assert_equal(shelf[-1][0], np.zeros((), np.bool_))
    assert sum(1 for _ in shelf) == len(given)


def test_memory_is_counted() -> None:
    make_room(0)  # else what earlier tests left may go meanwhile: 16 MB once did
    before = used_bytes()
    held = np.ones(64_000_000, np.uint8)
    assert used_bytes() >= before + 48_000_000  # other threads may give some back
    assert min(peak_bytes(), used_bytes()) > held.nbytes
    make_room(0)
    assert free_bytes() > 0


def test_a_containers_limit_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"/proc/meminfo": ["MemTotal: 9 kB", "MemAvailable:   4000 kB"], "max": ["3000000"], "now": ["1000000"]}
    monkeypatch.setattr(memory, "_lines", lambda path: files.get(path, []))
    assert free_bytes() == 4_096_000
    monkeypatch.setattr(memory, "_CGROUPS", (("max", "now"),))
    assert free_bytes() == 2_000_000
    files["max"] = ["max"]
    assert free_bytes() == 4_096_000
