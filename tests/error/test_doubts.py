"""Doubts about the data are spoken where they are due, and not elsewhere."""

import numpy as np
import pytest

from taglio.data.spec import InputSpec, batch_size
from taglio.error.doubts import (
    coarse_metric,
    constant_inputs,
    constant_outputs,
    digests,
    few_inputs,
    no_numbers,
    nothing_changed,
    saturating_sums,
    sizes_measured,
    unlike_calibration,
    values_fed,
)
from taglio.error.loss import RELATIVE, Metric
from taglio.error.tasks.task import TOP1
from taglio.notes import Kind, Note
from taglio.quantize.scheme import parse_scheme


def test_a_metric_that_counts_answers_needs_many() -> None:
    assert coarse_metric(RELATIVE, 2) is coarse_metric(Metric(TOP1, True), 100) is None
    told = "on 8 held-out inputs: each counts for 12.5%; give more data"
    for name in (TOP1, "ctc"):  # an input of ctc has several answers
        assert str(coarse_metric(Metric(name, True), 8)) == f"{name} {told}"


def test_an_error_of_nothing_at_all_is_doubted() -> None:
    assert "any of 6 held-out inputs: up to 39% of other inputs may change" in str(nothing_changed(RELATIVE, 0.0, 1, 6))
    assert "up to 5% of" in str(nothing_changed(RELATIVE, 0.0, 1, 59))
    assert nothing_changed(RELATIVE, 1e-9, 1, 6) is nothing_changed(RELATIVE, 0.0, 0, 6) is None
    assert nothing_changed(Metric(TOP1, True), 0.0, 1, 6) is None  # of which coarse_metric speaks


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
    dynamic = str(saturating_sums(parse_scheme("u8s8-asym-pc-rr-dyn"), saturates=True))
    assert "sums of u8×s8 products saturate at 16 bits; with the 7-bit weights of qdq-u8s8-asym-pc-rr-dyn7" in dynamic
    elsewhere = str(saturating_sums(parse_scheme("u8s8-asym-pc"), saturates=False, elsewhere="EPYC 7003"))
    assert (
        elsewhere.startswith("the model was profiled on EPYC 7003, which has no VNNI: ")
        and "16 bits there" in elsewhere
    )


def test_samples_that_are_few_repeat_or_are_shared_are_told() -> None:
    zeros = [{"x": np.zeros((1, 3), np.float32)}] * 2
    notes = few_inputs(digests(zeros), digests(zeros))
    assert any("1 of 2 held-out inputs repeat others (1 distinct)" in str(note) for note in notes)
    assert any("2 of 2 held-out inputs are also calibration inputs" in str(note) for note in notes)
    assert any("few inputs: 1 for the ranges and 1 for the error" in str(note) for note in notes)
    many = [{"x": np.full((1, 3), i, np.float32)} for i in range(64)]
    assert few_inputs(digests(many[:32]), digests(many[32:])) == []


def test_a_batch_counts_as_its_inputs() -> None:
    """Four batches of sixteen, as a loader gives them, were called four inputs."""
    inputs = [InputSpec("x", ("batch", 3), "float32"), InputSpec("state", (2, "batch", 8), "float32")]
    sample = {"x": np.zeros((16, 3), np.float32), "state": np.zeros((2, 16, 8), np.float32)}
    assert batch_size(inputs, sample) == 16
    assert batch_size([InputSpec("x", ("time", 3), "float32")], sample) == 1
    batches = digests([{"x": np.full((16, 3), i, np.float32)} for i in range(4)])
    assert few_inputs(batches[:2], batches[2:], 16) == []
    assert any("few inputs: 2 for the ranges" in str(note) for note in few_inputs(batches[:2], batches[2:]))


def test_constant_inputs_are_told_but_no_masks() -> None:
    mask, varied = np.ones((1, 4), np.int64), np.arange(4, dtype=np.float32)
    assert constant_inputs([{"x": varied, "mask": mask}] * 4) == []
    assert constant_inputs([{"x": np.zeros(4, np.float32), "mask": mask}] * 4) == [
        Note(Kind.CONSTANT_INPUT, "input x is constant (0.0) in 4 of 4 samples: check the data and their preprocessing")
    ]
    assert len(constant_inputs([{"mask": mask}] * 4)) == 1
    states = {f"state{index}": np.zeros(4, np.float32) for index in range(6)}
    assert constant_inputs([{"x": varied, **states}] * 4) == [
        Note(
            Kind.CONSTANT_INPUT,
            "inputs state0, state1, state2, state3 and 2 others are constant (0.0) in 4 of 4 samples: check the data "
            "and their preprocessing",
        )
    ]
    assert constant_inputs([{"ids": np.arange(4), "mask": mask, "types": 0 * mask}] * 4) == []


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
