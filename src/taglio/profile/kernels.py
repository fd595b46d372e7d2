"""Sessions that record the seconds of their kernels; those of ONNX Runtime, from the file that its profiler writes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Protocol

import msgspec
import numpy as np
import onnx

from taglio.model.captures import bodies
from taglio.runtimes.onnxruntime import SessionOptions, open_session

_KERNEL_SUFFIX, _RUN = "_kernel_time", "model_run"


class _Event(msgspec.Struct):
    """The fields used of an event in ONNX Runtime's profile; `dur` is in microseconds."""

    cat: str = ""
    name: str = ""
    dur: float = 0.0


class KernelRecorder(Protocol):
    """A session that records the seconds of its kernels in every run from `start` on."""

    is_started: bool

    def start(self) -> None:
        """Record from now on."""

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """As Session.run."""

    def kernels(self, graph: onnx.ModelProto, together: int, longest_s: float | None) -> dict[str, float]:
        """Seconds of each kernel in an inference, by node of the `graph` that ran: the median over the means of
        `together` successive runs. Ends the session. `longest_s` is the longest time that the process works between
        pauses, if a quota pauses it (see `unpaused`)."""


class OnnxRuntimeRecorder:
    """A KernelRecorder in ONNX Runtime, by its profiler, which slows all runs."""

    def __init__(self, path: Path, options: SessionOptions, name: str) -> None:
        self._session = open_session(path, options, profile_prefix=path.with_suffix(""), label=name)
        self._runs = self._before = 0
        self.is_started = False

    def start(self) -> None:
        """Count the runs from now on."""
        self._before, self.is_started = self._runs, True

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """As Session.run."""
        outputs: list[np.ndarray] = self._session.run(output_names, input_feed)
        self._runs += 1
        return outputs

    def kernels(self, graph: onnx.ModelProto, together: int, longest_s: float | None) -> dict[str, float]:
        """As KernelRecorder.kernels."""
        del graph
        return kernel_seconds(Path(self._session.end_profiling()), self._before, together, longest_s)


def kernel_seconds(path: Path, before: int, together: int, longest_s: float | None) -> dict[str, float]:
    """Seconds by kernel, as KernelRecorder.kernels, from the profile at `path`, without the runs `before` that do not
    count."""
    durations: dict[str, list[float]] = {}
    runs = 0
    for event in msgspec.json.decode(path.read_bytes(), type=list[_Event]):
        runs += event.name == _RUN
        if event.cat == "Node" and event.name.endswith(_KERNEL_SUFFIX):
            durations.setdefault(event.name[: -len(_KERNEL_SUFFIX)], []).append(event.dur * 1e-6)
    counted_s = {}
    for name, values in durations.items():
        counted_s[name] = values[before:] or values
        # A kernel in a branch or a loop does not run exactly once per run.
        if len(values) == runs > before:
            counted_s[name] = np.reshape(values[before:], (-1, together)).mean(axis=1).tolist()
    if longest_s is not None:
        return unpaused(counted_s, longest_s)
    return {name: median(values) for name, values in counted_s.items()}


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
