"""ONNX Runtime sessions: options in one value, errors in one line. Times nothing."""

import contextlib
import shutil
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from taglio import weights
from taglio.cores import available_cores
from taglio.errors import BadData, BadModel, MeasurementFailed, one_line
from taglio.runtimes.onnxruntime_words import advice, without_sources
from taglio.runtimes.way import Way

NAME = "onnxruntime"
_PROVIDERS: list[tuple[str, dict[str, str]]] = [("CPUExecutionProvider", {})]


class Optimization(StrEnum):
    """ONNX Runtime's graph optimisation levels."""

    NONE = "none"
    BASIC = "basic"
    EXTENDED = "extended"
    ALL = "all"


_LEVELS = {
    Optimization.NONE: ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    Optimization.BASIC: ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    Optimization.EXTENDED: ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    Optimization.ALL: ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}
# ONNX Runtime compares operators in time that grows with their square: over two minutes for 100,000.
_DUPLICATES, _MOST_COMPARED = "CommonSubexpressionElimination", 10_000
# Busy-waiting within runs, and its end with each run.
_SPINNING = ("session.intra_op.allow_spinning", "session.force_spinning_stop")
# What a model's file may hold beside its weights.
_GRAPH_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """How a session is opened.

    `threads` are those of one run; 0: as many as the process may use. `at_once` runs of OpenVINO have threads of their
    own; in ONNX Runtime callers or sessions are as many as run at once, so that it changes nothing there. With
    `spinning`, threads of ONNX Runtime that wait for others busy-wait until the run ends: with two threads, runs of six
    networks then took 0.80 to 1.00 of the time. `runtime` names the place for callers that choose one (see session.py);
    this module always opens ONNX Runtime. `lean` takes less memory where nothing is timed: operators run in the order
    of the file (by default, those whose results only the caller reads run last, and what they read is held until then),
    and no memory is planned by the first run. `kernel_cache` is how many kernels OpenVINO keeps for shapes that it has
    seen (None: its default). `folded_bytes` is the size of the largest constant that may replace operators (None: ONNX
    Runtime's limit, a gigabyte).
    """

    threads: int
    optimization: Optimization = Optimization.ALL
    spinning: bool = True
    at_once: int = 1
    runtime: str = NAME
    lean: bool = False
    kernel_cache: int | None = None
    folded_bytes: int | None = None

    @property
    def spins(self) -> bool:
        """Whether threads busy-wait. One waits for nobody; of more than there are processors, one that waits would keep
        another from working."""
        cores = available_cores()
        return self.spinning and 1 < (self.threads or cores) <= cores

    @property
    def way(self) -> Way:
        """One run at a time with these options."""
        return Way(self.threads, spinning=self.spins)


def version() -> str:
    """ONNX Runtime's version string."""
    return str(ort.__version__)


def open_session(
    model: onnx.ModelProto | Path,
    options: SessionOptions,
    *,
    save_optimized: Path | None = None,
    save_weights: bool = False,
    profile_prefix: Path | None = None,
    label: str = "the model",
) -> ort.InferenceSession:
    """Open `model` with `options`; with `save_optimized` the graph that will run is written there, and with
    `save_weights` its weights beside it.

    For a message that refers to weights in files, kernels use these weights without repacking them, which saves memory
    but is slower: open the file's path to time it as it is deployed. In a large message opened with basic rewrites,
    operators that compute the same are not merged.

    Raises BadModel, naming `label`, if ONNX Runtime refuses the model.
    """
    config = ort.SessionOptions()
    config.graph_optimization_level = _LEVELS[options.optimization]
    config.intra_op_num_threads = options.threads or available_cores()
    config.inter_op_num_threads = 1
    if options.lean:
        config.execution_order = ort.ExecutionOrder.PRIORITY_BASED
        config.enable_mem_pattern = False
    config.log_severity_level = 4
    for name, value in _entries(options).items():
        config.add_session_config_entry(name, value)
    if save_optimized is not None:
        config.optimized_model_filepath = str(save_optimized)
    if profile_prefix is not None:
        config.enable_profiling = True
        config.profile_file_prefix = str(profile_prefix)
    source, folder = (str(model), None) if isinstance(model, Path) else weights.serialized(model)
    if folder is not None:
        config.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
        config.add_session_config_entry("session.disable_prepacking", "1")
    if save_weights and save_optimized is not None:
        prefix = "session.optimized_model_external_initializers_"
        config.add_session_config_entry(f"{prefix}file_name", f"{save_optimized.stem}.bin")
        config.add_session_config_entry(f"{prefix}min_size_in_bytes", str(weights.LEAST_BYTES))
    elif folder is not None and save_optimized is not None and isinstance(model, onnx.ModelProto):
        weights.link_beside(model, save_optimized)
    large = isinstance(model, onnx.ModelProto) and len(model.graph.node) > _MOST_COMPARED
    disabled = [_DUPLICATES] if large and options.optimization is Optimization.BASIC else None
    try:
        return ort.InferenceSession(
            source, config, providers=_PROVIDERS, disabled_optimizers=disabled, enable_fallback=0
        )
    except Exception as error:  # ONNX Runtime's exceptions share no useful base class
        proto = model if isinstance(model, onnx.ModelProto) else _read(model)
        hint = "" if proto is None else advice(error, proto)
        why = one_line(without_sources(error), 500).rstrip(".")
        if save_optimized is not None and proto is not None and "serialization failed" in why:
            needed = weights.weight_bytes(proto)
            if shutil.disk_usage(save_optimized.parent).free < needed + _GRAPH_BYTES:
                raise weights.no_room(save_optimized.parent, needed, "the disk is full") from None
        raise BadModel(f"{label}: ONNX Runtime {version()} cannot load it: {why}{hint}") from None


def settings(options: SessionOptions) -> dict[str, Any]:
    """The options by ONNX Runtime's own names, with which anybody gets the same answers at the same speed."""
    return {
        "graph_optimization_level": _LEVELS[options.optimization].name,
        "intra_op_num_threads": options.threads or available_cores(),
        "inter_op_num_threads": 1,
        "config_entries": _entries(options),
        "providers": _PROVIDERS,
    }


def in_way(way: Way, entries: Mapping[str, str]) -> dict[str, Any]:
    """The settings that make a run in `way`, beside other config `entries`."""
    others = {key: value for key, value in entries.items() if key not in _SPINNING}
    return {"intra_op_num_threads": way.threads, "config_entries": {**others, **_spinning_entries(way.spinning)}}


def _entries(options: SessionOptions) -> dict[str, str]:
    entries = _spinning_entries(options.spins)
    if options.folded_bytes is not None:
        entries["optimization.constant_folding_max_output_size_in_bytes"] = str(options.folded_bytes)
    return entries


def _spinning_entries(spinning: bool) -> dict[str, str]:
    """Threads that go on busy-waiting between runs would take the processor from everything else."""
    return dict.fromkeys(_SPINNING, "1") if spinning else {_SPINNING[0]: "0"}


def _read(path: Path) -> onnx.ModelProto | None:
    """The graph of a file, without external weights; None if it is no ONNX file."""
    with contextlib.suppress(Exception):  # OSError, protobuf's DecodeError
        return onnx.load(path, load_external_data=False)
    return None


def run_session(
    session: ort.InferenceSession,
    outputs: Sequence[str],
    feed: Mapping[str, np.ndarray],
    label: str,
    *,
    limit_s: float | None = None,
) -> list[np.ndarray]:
    """The named outputs of one inference (all if none is named).

    Raises BadData, naming `label`, for values that the model cannot run on, and MeasurementFailed for a run that takes
    longer than `limit_s` seconds (None: no limit).
    """
    options, late = ort.RunOptions(), threading.Event()

    def end() -> None:
        late.set()
        options.terminate = True

    clock = threading.Timer(limit_s, end) if limit_s is not None else None
    try:
        if clock is not None:
            clock.daemon = True
            clock.start()
        values: list[np.ndarray] = session.run(list(outputs) or None, dict(feed), options)
    except Exception as error:  # ONNX Runtime's exceptions share no useful base class
        if late.is_set():
            raise MeasurementFailed(
                f"{label}: one inference did not end within {limit_s:.0f} s: check the model's loops"
            ) from None
        why = one_line(without_sources(error), 300)
        raise BadData(f"{label}: ONNX Runtime cannot run these inputs: {why}") from None
    finally:
        if clock is not None:
            clock.cancel()
    return values
