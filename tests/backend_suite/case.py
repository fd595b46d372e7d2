"""One model with feeds that it runs on, and several distinct samples made of one feed. Knows no harness."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx
import onnxruntime as ort
from onnx import numpy_helper

SAMPLES = 12
Feed = Mapping[str, Any]


class Unrunnable(Exception):
    """ONNX Runtime itself cannot load or run the model, or its answers are random: nothing to compare with."""


@dataclass(frozen=True, slots=True)
class Case:
    """`feeds` hold one feed, of which samples are made, or all samples."""

    name: str
    model: bytes
    feeds: tuple[Feed, ...]

    def proto(self) -> onnx.ModelProto:
        """The model, a copy of its own."""
        return onnx.load_model_from_string(self.model)


@dataclass(frozen=True, slots=True)
class Runnable:
    """A case on disk: the model, data as a user has it, and what ONNX Runtime answers to each sample."""

    model: Path
    data: Path
    samples: tuple[Feed, ...]
    outputs: tuple[str, ...]
    session: ort.InferenceSession
    optimized: ort.InferenceSession  # as the user runs it


def prepare(case: Case, folder: Path) -> Runnable:
    """Write the model and samples that ONNX Runtime runs it on. Raises Unrunnable."""
    try:
        # The reference must not depend on the processor: what fused kernels round does.
        session = _session(case, ort.GraphOptimizationLevel.ORT_DISABLE_ALL)
        optimized = _session(case, ort.GraphOptimizationLevel.ORT_ENABLE_ALL)
        first = session.run(None, dict(case.feeds[0]))
    except Exception as error:
        raise Unrunnable(" ".join(str(error).split())[:200]) from None
    if not same(first, session.run(None, dict(case.feeds[0]))):
        raise Unrunnable("its answers are random")
    samples = case.feeds if len(case.feeds) > 1 else _samples(case, session)
    model = folder / "model.onnx"
    model.write_bytes(case.model)
    return Runnable(
        model,
        _write(folder, samples),
        tuple(samples),
        tuple(each.name for each in session.get_outputs()),
        session,
        optimized,
    )


def _session(case: Case, level: ort.GraphOptimizationLevel) -> ort.InferenceSession:
    config = ort.SessionOptions()
    config.intra_op_num_threads, config.log_severity_level = 1, 4
    config.graph_optimization_level = level
    return ort.InferenceSession(case.model, config, providers=["CPUExecutionProvider"])


def same(one: Any, other: Any) -> bool:
    """Whether two values of outputs (arrays, sequences, optionals, maps) are equal; NaN equals NaN."""
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        return bool(np.array_equal(one, other, equal_nan=one.dtype.kind in "fc"))
    return bool(one == other)


def _samples(case: Case, session: ort.InferenceSession) -> tuple[Feed, ...]:
    """The feed and shuffled copies of it: with integers and noise where the model runs on that, else the floats only,
    else the floats that are no scalars of a handful of values (scales, limits, regions)."""
    rng = np.random.default_rng(0)
    first = dict(case.feeds[0])
    for integers, least in ((True, 1), (False, 1), (False, 9)):
        found = [first, *(_shuffled(first, rng, integers, least) for _ in range(SAMPLES - 1))]
        try:
            for feed in found:
                for value in session.run(None, dict(feed)):
                    if isinstance(value, np.ndarray) and value.dtype.kind == "f" and not np.isfinite(value).all():
                        raise ValueError
        except Exception:
            continue
        return tuple(found)
    return (first,) * SAMPLES


def _shuffled(feed: Feed, rng: np.random.Generator, integers: bool, least: int) -> Feed:
    result = {}
    for name, value in feed.items():
        result[name] = value
        if not isinstance(value, np.ndarray) or value.size < max(1, least):
            continue
        if value.dtype.kind == "f":
            low, high = value.min(), value.max()
            noise = rng.normal(0.0, 0.1, value.shape) * (high - low)
            mixed = rng.permutation(value.reshape(-1)).reshape(value.shape)
            result[name] = np.clip(mixed + noise, low, high).astype(value.dtype)
        elif integers and value.size > 1:
            result[name] = rng.permutation(value.reshape(-1)).reshape(value.shape)
    return result


def _write(folder: Path, samples: tuple[Feed, ...]) -> Path:
    """An .npz, or a folder of one an input where the samples differ in shape."""
    for feed in samples:
        for name, value in feed.items():
            if not isinstance(value, np.ndarray):
                raise Unrunnable(f"input {name} is a {type(value).__name__}, which no array holds")
    if len({tuple(value.shape for value in feed.values()) for feed in samples}) == 1:
        path = folder / "data.npz"
        arrays: dict[str, Any] = {name: np.stack([_plain(feed[name]) for feed in samples]) for name in samples[0]}
        np.savez(path, **arrays)
        return path
    path = folder / "data"
    path.mkdir()
    for index, feed in enumerate(samples):
        arrays = {name: _plain(value) for name, value in feed.items()}
        np.savez(path / f"{index:02}.npz", **arrays)
    return path


def _plain(value: np.ndarray) -> np.ndarray:
    """Text as NumPy keeps it without pickle."""
    return value.astype(str) if value.dtype.kind == "O" else value


def node_cases() -> Iterator[Case]:
    """The node cases of the installed onnx package."""
    from onnx.backend.test.case.node import collect_testcases  # noqa: PLC0415 - computes all cases: seconds

    # Nobody reads the outputs that come with a case, and most of the time went into those of pools.
    with np.errstate(all="ignore"), patch("onnx.reference.ops.op_pool_common.pool", _zeros):
        found = collect_testcases("")
    for each in found:
        if each.model is not None and each.data_sets:
            feed = {}
            given: Any  # some are TensorProto, whatever the annotation says
            for value, given in zip(each.model.graph.input, each.data_sets[0][0], strict=False):
                feed[value.name] = numpy_helper.to_array(given) if isinstance(given, onnx.TensorProto) else given
            yield Case(each.name, each.model.SerializeToString(), (feed,))


def _zeros(padded: np.ndarray, x_shape: Any, _kernel: Any, _strides: Any, out_shape: Any, *_: Any, **__: Any) -> Any:
    """In place of onnx's reference of all pools: an output of the right shape and type."""
    return np.zeros((*x_shape[:2], *out_shape), padded.dtype)
