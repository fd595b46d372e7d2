"""Doubts about the data are spoken where they are due, and not elsewhere."""

from collections.abc import Sequence

import numpy as np
import pytest

from taglio.data.dataset import assemble
from taglio.data.spec import InputSpec, batch_size
from taglio.error.doubts import (
    constant_outputs,
    exchanged_rows,
    few_inputs,
    no_numbers,
    saturating_sums,
    sizes_measured,
    unlike_calibration,
    values_fed,
)
from taglio.error.loss import RELATIVE, Metric
from taglio.error.tasks.task import TOP1
from taglio.notes import Kind
from taglio.quantize.scheme import parse_scheme


def digests(samples: Sequence[dict[str, np.ndarray]]) -> tuple[bytes, ...]:
    return assemble("data", samples, [str(row) for row in range(len(samples))], None).digests


def test_rows_that_may_change_places_call_for_a_task() -> None:
    assert str(exchanged_rows(RELATIVE, ["boxes"])).startswith("rows of boxes are in the order of scores")
    assert exchanged_rows(RELATIVE, []) is exchanged_rows(Metric("detection", True), ["boxes"]) is None


def test_values_beyond_the_calibrated_range_are_told_with_how_far() -> None:
    calibrated = {"image": (-1.0, 1.0), "inside": (0.0, 1.0)}
    near, far = ({"image": np.array([-1.0, top], np.float32), "ids": np.array([9])} for top in (1.1, 4.0))
    assert unlike_calibration(calibrated, [near]) is None
    line = str(unlike_calibration(calibrated, [near, far]))
    assert "held-out inputs are unlike the calibration inputs: image exceeds its calibrated range by 150%" in line


def test_an_output_that_never_changes_is_named() -> None:
    moving = [[np.array([float(i)]), np.array([7.0])] for i in range(3)]
    assert "output b is the same for all 3 inputs" in str(constant_outputs(moving, ["a", "b"]))
    assert constant_outputs(moving[:1], ["a", "b"]) is None
    nothing = [[np.zeros((0, 4))]] * 3
    assert "output found is empty for all 3 inputs" in str(constant_outputs(nothing, ["found"]))


def test_sums_that_may_saturate_are_told_where_they_do() -> None:
    line = str(saturating_sums(parse_scheme("u8s8-asym-pc"), saturates=True))
    assert "saturate at 16 bits; with the 7-bit weights of qdq-u8s8-asym-pc-rr" in line
    for scheme, saturates in (("u8s8-asym-pc", False), ("u8s8-asym-pc-rr", True)):
        assert saturating_sums(parse_scheme(scheme), saturates) is None


def test_samples_that_are_few_repeat_or_are_shared_are_told() -> None:
    zeros = [{"x": np.zeros((1, 3), np.float32)}] * 2
    notes = few_inputs(RELATIVE, digests(zeros), digests(zeros))
    assert any("1 of 2 held-out inputs repeat others (1 distinct)" in str(note) for note in notes)
    assert any("2 of 2 held-out inputs are also calibration inputs" in str(note) for note in notes)
    assert any("few inputs: 1 for the ranges and 1 for the error" in str(note) for note in notes)
    many = [{"x": np.full((1, 3), i, np.float32)} for i in range(64)]
    inputs = digests(many[:32]), digests(many[32:])
    assert few_inputs(RELATIVE, *inputs) == []
    (note,) = few_inputs(Metric(TOP1, True), *inputs)
    assert str(note).startswith("few inputs: 32 for the ranges and 32 for the error (at least 16 and 100 are needed")


def test_a_batch_counts_as_its_inputs() -> None:
    """Four batches of sixteen, as a loader gives them, were called four inputs."""
    inputs = [InputSpec("x", ("batch", 3), "float32"), InputSpec("state", (2, "batch", 8), "float32")]
    sample = {"x": np.zeros((16, 3), np.float32), "state": np.zeros((2, 16, 8), np.float32)}
    assert batch_size(inputs, sample) == 16
    assert batch_size([InputSpec("x", ("time", 3), "float32")], sample) == 1
    batches = digests([{"x": np.full((16, 3), i, np.float32)} for i in range(4)])
    assert few_inputs(RELATIVE, batches[:2], batches[2:], 16) == []
    assert any("few inputs: 2 for the ranges" in str(note) for note in few_inputs(RELATIVE, batches[:2], batches[2:]))


def test_the_sizes_of_dynamic_dimensions_are_told() -> None:
    ids, fixed = InputSpec("ids", ("batch", "length"), "int64"), InputSpec("x", (1, 3), "float32")
    samples = [{"ids": np.ones((1, length)), "x": np.ones((1, 3))} for length in (8, 32, 16)]
    assert "measured at length 8 to 32 only" in str(sizes_measured([ids, fixed], samples))
    assert "at y[1] 4 only" in str(sizes_measured([InputSpec("y", (None, None), "float32")], [{"y": np.ones((1, 4))}]))
    unnamed = InputSpec("y", ("?", "?"), "float32")  # two dimensions, not one
    assert "at y[1] 4 only" in str(sizes_measured([unnamed], [{"y": np.ones((2, 4))}]))
    assert not sizes_measured([InputSpec("y", ("batch", 4), "float32")], [{"y": np.ones((1, 4))}])
    assert not sizes_measured([fixed], samples)


def test_missing_numbers_of_the_float_model_are_told_but_no_masks() -> None:
    outputs = [[np.array([np.nan, 1.0])], [np.array([-np.inf, 1.0])]]
    assert "y for 1 of 2 inputs" in str(no_numbers(outputs, ["y"]))
    assert no_numbers(outputs[1:], ["y"]) is None


IMAGE = InputSpec("image", ("N", 3, 8, 8), "float32")


@pytest.mark.parametrize(
    ("scale", "does", "words"),
    [
        (255.0, "", "; these are pixels, and the model does not scale image first"),
        (255.0, "divides by 255", ""),
        (1.0, "divides by 255", "; the model divides by 255 first, so it takes pixels from 0 to 255"),
        (1.0, "", ""),
        (1000.0, "", ""),
    ],
)
def test_the_range_of_what_is_fed_is_told(scale: float, does: str, words: str) -> None:
    values = np.linspace(0.0, scale, 192, dtype=np.float32).reshape(1, 3, 8, 8)
    line = str(values_fed([IMAGE], [{"image": values}, {"image": values / 2}], {"image": does}))
    assert line.startswith(f"values fed: image 0 to {scale:.4g}{words}")
    assert words or line.endswith(f"{scale:.4g}")


def test_an_input_that_never_changes_is_told() -> None:
    state = InputSpec("state", (1, 4), "float32")
    samples = [{"image": np.full((1, 3, 8, 8), i, np.float32), "state": np.zeros((1, 4), np.float32)} for i in range(3)]
    note = values_fed([IMAGE, state], samples, {})
    assert note is not None and note.kind is Kind.CONSTANT_INPUT
    assert str(note).startswith("values fed: image 0 to 2, state 0 to 0; state never changes")


def test_inputs_that_are_not_float_are_not_in_the_range_of_what_is_fed() -> None:
    ids = InputSpec("ids", (1, 4), "int64")
    assert values_fed([ids], [{"ids": np.arange(4)[None]}], {}) is None
