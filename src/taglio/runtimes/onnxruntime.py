"""ONNX Runtime sessions: options in one value, errors in one line. Times nothing."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

from taglio import weights
from taglio.errors import BadData, BadModel, BadOption, MeasurementFailed, one_line

NAME = "onnxruntime"
PROVIDERS = ("CPUExecutionProvider",)
CUDA = "CUDAExecutionProvider"


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


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """How a session is opened.

    `spinning` lets idle threads busy-wait: faster on a dedicated machine, very slow on a shared one. `providers` are
    ONNX Runtime's; an operator goes to the first that can run it, whose settings are `provider`. `runtime` names the
    place for callers that choose one (see session.py); this module always opens ONNX Runtime. `bfloat16` names the
    tensors that are computed in bfloat16 where a place mixes it with float32. `lean` takes less memory where
    nothing is timed: operators run in the order of the file (by default, those whose results only the caller reads run
    last, and what they read is held until then), and no memory is planned by the first run.
    """

    threads: int
    optimization: Optimization = Optimization.ALL
    spinning: bool = False
    providers: tuple[str, ...] = PROVIDERS
    provider: tuple[tuple[str, str], ...] = ()
    runtime: str = NAME
    bfloat16: tuple[str, ...] = ()
    lean: bool = False


def providers_for(device: str) -> tuple[str, ...]:
    """Providers for "cpu", "cuda", or "auto" (CUDA if available). Raises BadOption for "cuda" if it is not."""
    offered = ort.get_available_providers()
    if device == "cpu" or (device == "auto" and CUDA not in offered):
        return PROVIDERS
    if CUDA not in offered:
        raise BadOption(
            f"`provider` {device}: this ONNX Runtime offers {', '.join(offered)}: install onnxruntime-gpu, or use cpu"
        )
    return (CUDA, *PROVIDERS)


def version() -> str:
    """ONNX Runtime's version string."""
    return str(ort.__version__)


@cache
def sums_saturate() -> bool:
    """Whether 16-bit sums of u8×s8 products saturate on this processor, as on x86 before VNNI: found by computing."""
    depth, size = 32, 16
    node = helper.make_node("MatMulInteger", ["a", "b"], ["y"])
    given = [
        helper.make_tensor_value_info("a", TensorProto.UINT8, [size, depth]),
        helper.make_tensor_value_info("b", TensorProto.INT8, [depth, size]),
    ]
    wanted = [helper.make_tensor_value_info("y", TensorProto.INT32, [size, size])]
    graph = helper.make_graph([node], "largest sums", given, wanted)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    most = {"a": np.full((size, depth), 255, np.uint8), "b": np.full((depth, size), 127, np.int8)}
    (found,) = run_session(open_session(model, SessionOptions(1)), ("y",), most, "the largest u8 and s8 values")
    return bool((found != depth * 255 * 127).any())


def open_session(
    model: onnx.ModelProto | Path,
    options: SessionOptions,
    *,
    save_optimized: Path | None = None,
    save_weights: bool = False,
    profile_prefix: Path | None = None,
    label: str = "the model",
) -> ort.InferenceSession:
    """Open `model` on the providers of `options`; with `save_optimized` the graph that will run is written there, and
    with `save_weights` its weights beside it.

    For a message that refers to weights in files, kernels use these weights without repacking them, which saves memory
    but is slower: open the file's path to time it as it is deployed. In a large message opened with basic rewrites,
    operators that compute the same are not merged.

    Raises BadModel, naming `label`, if ONNX Runtime refuses the model.
    """
    config = ort.SessionOptions()
    config.graph_optimization_level = _LEVELS[options.optimization]
    config.intra_op_num_threads = options.threads
    config.inter_op_num_threads = 1
    config.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    if options.lean:
        config.execution_order = ort.ExecutionOrder.PRIORITY_BASED
        config.enable_mem_pattern = False
    config.log_severity_level = 4
    config.add_session_config_entry("session.intra_op.allow_spinning", "1" if options.spinning else "0")
    if options.providers != PROVIDERS:
        config.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
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
    providers = [(options.providers[0], dict(options.provider)), *options.providers[1:]]
    large = isinstance(model, onnx.ModelProto) and len(model.graph.node) > _MOST_COMPARED
    disabled = [_DUPLICATES] if large and options.optimization is Optimization.BASIC else None
    try:
        return ort.InferenceSession(
            source, config, providers=providers, disabled_optimizers=disabled, enable_fallback=0
        )
    except Exception as error:  # ONNX Runtime's exceptions share no useful base class
        # Most often float64 or bfloat16, for which few operators have a kernel on a CPU.
        hint = ": export it in float32" if "NOT_IMPLEMENTED" in str(error) else ""
        raise BadModel(f"{label}: ONNX Runtime {version()} cannot load it: {one_line(error, 500)}{hint}") from None


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
        raise BadData(f"{label}: ONNX Runtime cannot run these inputs: {one_line(error, 300)}") from None
    finally:
        if clock is not None:
            clock.cancel()
    return values
