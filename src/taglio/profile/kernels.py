"""Seconds per kernel from the file that ONNX Runtime's profiler writes. Opens no session."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import msgspec
import numpy as np
import onnx

from taglio.model.captures import bodies

_KERNEL_SUFFIX, _RUN = "_kernel_time", "model_run"


class _Event(msgspec.Struct):
    """The fields used of an event in ONNX Runtime's profile; `dur` is in microseconds."""

    cat: str = ""
    name: str = ""
    dur: float = 0.0


def kernel_seconds(
    path: Path, warmup: int, longest_s: float | None, counted: Sequence[int], at_once: int = 1, refills: int = 0
) -> dict[str, float]:
    """Seconds by kernel: the median over the rounds `counted`. A round is the mean of `at_once` inferences, after
    `refills` times as many that do not count. `longest_s` is the longest time that the process works between pauses, if
    a quota pauses it (see `unpaused`)."""
    durations: dict[str, list[float]] = {}
    runs = 0
    for event in msgspec.json.decode(path.read_bytes(), type=list[_Event]):
        runs += event.name == _RUN
        if event.cat == "Node" and event.name.endswith(_KERNEL_SUFFIX):
            durations.setdefault(event.name[: -len(_KERNEL_SUFFIX)], []).append(event.dur * 1e-6)
    # The first runs allocate memory, which a served model does not pay again.
    visit = (1 + refills) * at_once
    rounds = runs // visit
    later = {}
    for name, values in durations.items():
        # A kernel in a branch or a loop does not run exactly once per inference.
        steady = len(values) == rounds * visit and rounds > max(counted)
        means = np.reshape(values, (rounds, visit))[:, -at_once:].mean(axis=1).tolist() if steady else []
        counted_means = [means[index] for index in counted if index >= warmup] if steady else []
        later[name] = counted_means or values[warmup * visit :] or values
    if longest_s is not None:
        return unpaused(later, longest_s)
    return {name: median(values) for name, values in later.items()}


def has_bodies(graph: onnx.ModelProto) -> bool:
    """Whether an operator, such as a loop, runs a graph of its own."""
    return any(any(bodies(node)) for node in graph.graph.node)


def without_recording(graph: onnx.ModelProto, seconds: Mapping[str, float], wall_s: float) -> dict[str, float]:
    """Seconds by kernel, less what recording the kernels inside a loop or branch adds to it: it takes at most what the
    other kernels leave of `wall_s`, the time of a run that records nothing. A table reader's loop of 500 steps took 2.5
    times as long when it was recorded."""
    outer = {node.name: seconds[node.name] for node in graph.graph.node if node.name in seconds}
    loops = {node.name: outer.pop(node.name) for node in graph.graph.node if node.name in outer and any(bodies(node))}
    loops_s = sum(loops.values())
    share = min(1.0, max(0.0, wall_s - sum(outer.values())) / loops_s) if loops_s else 1.0
    return {**seconds, **{name: share * loop_s for name, loop_s in loops.items()}}


def unpaused(seconds: Mapping[str, Sequence[float]], longest_s: float) -> dict[str, float]:
    """Sustained seconds by kernel, from wall seconds in several runs, if a quota pauses the process whenever it has
    worked for `longest_s`.

    A quota pauses whichever kernel uses it up, and pauses are long compared to kernels. A few runs of equal length are
    paused at the same kernels, so neither mean nor median is right. A kernel shorter than `longest_s` mostly runs
    without a pause; its unpaused time is divided by the share that unpaused time has in the mean time of all short
    kernels. A longer kernel has pauses in proportion to its length, so its mean is right.
    """
    free = {name: float(np.percentile(values, 20)) for name, values in seconds.items()}
    mean = {name: float(np.mean(values)) for name, values in seconds.items()}
    short = dict.fromkeys(name for name, free_s in free.items() if free_s <= longest_s)
    share = sum(free[name] for name in short) / max(sum(mean[name] for name in short), 1e-12)
    return {name: free[name] / share if name in short else mean[name] for name in seconds}
