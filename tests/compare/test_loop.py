"""The loop on a back end of three lines: order, errors, groups, failures."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from taglio.compare.request import Request
from taglio.compare.row import WantedRow
from taglio.compare.workers import loop
from taglio.compare.workers.contract import Array, Opened, Refused
from taglio.error.parts import OutputParts, Part
from tests.compare.made_up import request, wanted

SAMPLES = tuple((np.array([[1.0, float(i)]], np.float32),) for i in range(3))


class Doubler:
    """Gives twice its input; rows shift it, refuse, fail, or run out of memory."""

    def __init__(self) -> None:
        self.runs: list[str] = []

    def open(self, each: WantedRow) -> Opened:
        """One row."""
        key = each.id.partition("/")[2]
        if key == "refuses":
            raise Refused("not here")
        if key == "explodes":
            return Opened(lambda sample: [np.full_like(sample[0], np.inf)], 10)
        if key == "fails":
            raise ValueError("no kernel\nfor Add")
        if key == "starves":
            raise RuntimeError("std::bad_alloc")

        def run(sample: Sequence[Array]) -> list[Array]:
            self.runs.append(key)
            if key == "fails later" and self.runs.count(key) > 3:
                raise ValueError("gave up")
            return [sample[0] * 2 * (1.01 if key == "shifted" else 1.0)]

        return Opened(run, 10, {"Mul": 1}, {})


def with_samples(job: Request, factor: float) -> Request:
    """The job with inputs and the outputs of an original that multiplies them by `factor`."""
    reference = tuple((sample[0] * np.float32(factor),) for sample in SAMPLES)
    return replace(job, calibration=SAMPLES, held_out=SAMPLES, reference=reference)


def events(tmp_path: Path, *keys: str, memory_bytes: int = 2**40) -> tuple[list[tuple[Any, ...]], Doubler]:
    heard: list[tuple[Any, ...]] = []
    backend = Doubler()
    rows = tuple(wanted(key) for key in keys)
    asked = with_samples(request(tmp_path, rows), 2.0)
    asked = replace(asked, memory_bytes=memory_bytes)
    loop.rows(asked, backend, lambda *event: heard.append(event))
    return heard, backend


def of(heard: list[tuple[Any, ...]], kind: str) -> dict[str, Any]:
    """The last value of the events of a kind, by row."""
    return {event[1].partition("/")[2]: event[-1] for event in heard if event[0] == kind}


def test_the_float_row_comes_first_and_is_what_others_are_compared_with(tmp_path: Path) -> None:
    heard, _ = events(tmp_path, "shifted", "float32")
    assert next(event[1] for event in heard if event[0] == "checked") == "onnxruntime/float32"
    checked, timed = of(heard, "checked"), of(heard, "timed")
    assert checked["shifted"].error_to_float == pytest.approx(0.01, rel=1e-3)
    assert checked["float32"].error_to_original == 0.0
    assert timed["shifted"].baseline_s == timed["float32"].median_s


@pytest.mark.parametrize(
    ("key", "status", "reason"),
    [
        ("refuses", "impossible", "not here"),
        ("fails", "failed", "ValueError: no kernel for Add"),
        ("starves", "out of memory", "std::bad_alloc"),
        ("fails later", "failed", "gave up"),
        ("explodes", "failed", "NaN or infinite"),
    ],
)
def test_a_row_that_cannot_run_costs_itself(tmp_path: Path, key: str, status: str, reason: str) -> None:
    heard, _ = events(tmp_path, "float32", key, "shifted")
    (refused,) = (event for event in heard if event[0] == "refused")
    assert refused[1:3] == (f"onnxruntime/{key}", status)
    assert reason in refused[3]
    assert set(of(heard, "timed")) == {"float32", "shifted"}


def test_when_memory_is_full_groups_are_timed_with_the_float_row_among_each(tmp_path: Path) -> None:
    heard, backend = events(tmp_path, "float32", "shifted", "other", memory_bytes=0)
    timed = [event[1] for event in heard if event[0] == "timed"]
    assert sorted(timed) == ["onnxruntime/float32", "onnxruntime/other", "onnxruntime/shifted"]  # each once
    assert all(latency.baseline_s > 0 for latency in of(heard, "timed").values())
    assert backend.runs.count("float32") > backend.runs.count("shifted") > 0  # it is timed in both groups


def test_the_reference_has_a_turn_before_each_round_that_counts_and_rows_are_timed_in_groups(tmp_path: Path) -> None:
    waits: list[bool] = []
    timed: list[str] = []

    def tell(kind: str, *values: Any) -> None:
        timed.extend(values[:1] if kind == "timed" else ())

    rows = tuple(wanted(key) for key in ("float32", *(f"row {i}" for i in range(loop.MOST_OPEN))))
    asked = replace(with_samples(request(tmp_path, rows), 2.0), budget_s=0.0)
    loop.rows(asked, Doubler(), tell, waits.append)
    assert waits == [True, False, False] * 2  # two groups of three rounds
    assert sorted(timed) == sorted(row.id for row in rows)


def test_a_conversion_that_is_not_the_original_is_said_on_every_row(tmp_path: Path) -> None:
    heard: list[tuple[Any, ...]] = []
    rows = (wanted("float32"), wanted("shifted"))
    loop.rows(with_samples(request(tmp_path, rows), 2.1), Doubler(), lambda *event: heard.append(event))
    for checked in of(heard, "checked").values():
        assert "differ from the original's by 4.76%" in " ".join(checked.notes)


def test_a_small_part_of_an_output_is_not_hidden_by_a_large_one() -> None:
    """Scores of about 1 beside boxes of hundreds of pixels."""
    labels = np.array([[0, 1]])
    parts = OutputParts(("y",), (Part(0, "boxes", 0), Part(0, "scores", 1)), {0: {(1, 2): labels}})
    reference, outputs = [(np.array([[500.0, 1.0]]),)], [(np.array([[500.0, 0.0]]),)]
    assert loop.distance(reference, outputs) < 0.01
    assert loop.distance(reference, outputs, parts) == 1.0
