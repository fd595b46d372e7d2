"""Seconds per kernel from what ONNX Runtime recorded: runs are told apart also where a loop runs kernels many times."""

import json
from pathlib import Path

import onnx
import pytest

from taglio.profile.kernels import has_bodies, kernel_seconds, without_recording
from tests.models import parsed

LOOP = parsed("""(float[4] x, int64 steps, bool on) => (float[4] y) {
    [before] a = Relu (x)
    [repeats] b = Loop <body = step (int64 i, bool c, float[4] carried) => (bool same, float[4] more) {
        [goes] same = Identity (c)
        [adds] more = Add (carried, carried)
    }> (steps, on, a)
    [after] y = Relu (b)
}""")
PLAIN = parsed("(float[4] x) => (float[4] y) { [before] y = Relu (x) }")


def recorded(path: Path, *runs: dict[str, list[float]]) -> Path:
    """A profile of runs: microseconds by kernel."""
    events = [{"cat": "Node", "name": "conv_fence_before", "dur": 7}]  # of another kind
    for run in runs:
        for name, durations in run.items():
            events += [{"cat": "Node", "name": f"{name}_kernel_time", "dur": duration} for duration in durations]
        events.append({"cat": "Session", "name": "model_run", "dur": 1000.0})
    path.write_text(json.dumps(events))
    return path


def test_rounds_are_told_apart_by_runs_and_not_by_the_kernel_that_runs_most(tmp_path: Path) -> None:
    befores_us = (900.0, 5.0, 6.0, 700.0, 7.0)
    runs = [{"before": [before_us], "adds": [2.0] * 50, "repeats": [200.0]} for before_us in befores_us]
    seconds_of = kernel_seconds(recorded(tmp_path / "profile.json", *runs), 1, 1, None)
    assert seconds_of == pytest.approx({"before": 6.5e-6, "adds": 2e-6, "repeats": 200e-6})


def test_inferences_of_two_shapes_take_their_mean(tmp_path: Path) -> None:
    path = recorded(tmp_path / "profile.json", *({"conv": [duration_us]} for duration_us in (900.0, 30.0, 20.0, 40.0)))
    assert kernel_seconds(path, 2, 2, None) == {"conv": pytest.approx(3e-5)}
    assert kernel_seconds(path, 0, 2, None) == {"conv": pytest.approx((465e-6 + 30e-6) / 2)}


@pytest.mark.parametrize(
    ("model", "wall_s", "loop_s"),
    [
        (LOOP, 100e-6, 60e-6),  # what the others leave
        (LOOP, 1.0, 200e-6),  # no more than was recorded
        (LOOP, 30e-6, 0.0),  # another run was faster than all others
        (PLAIN, 1e-6, 200e-6),
    ],
)
def test_a_loop_takes_what_the_other_kernels_leave_of_a_run(
    model: onnx.ModelProto, wall_s: float, loop_s: float
) -> None:
    seconds = {"before": 30e-6, "repeats": 200e-6, "adds": 2e-6, "after": 10e-6}
    assert has_bodies(model) == (model is LOOP)
    assert without_recording(model, seconds, wall_s) == pytest.approx(seconds | {"repeats": loop_s})
