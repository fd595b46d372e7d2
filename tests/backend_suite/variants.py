"""Variants of a case: its inputs as weights, operators before and behind, free dimensions. Runs nothing."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.backend_suite.case import Case, Feed

_FLOAT = TensorProto.FLOAT


def variants(case: Case) -> Iterator[Case]:
    """The case as it is, and every variant that it can take."""
    yield case
    opsets = {entry.domain for entry in case.proto().opset_import}
    if case.proto().opset_import and opsets & {"", "ai.onnx"}:
        for name, make in _VARIANTS.items():
            model = case.proto()
            feed = make(model, dict(case.feeds[0]))
            if feed is not None:
                yield Case(f"{case.name}+{name}", model.SerializeToString(), (feed,))


def _weights(model: onnx.ModelProto, feed: Feed) -> Feed | None:
    """Every input but the first of floats becomes a weight."""
    inputs = list(model.graph.input)
    if len(inputs) < 2 or not all(isinstance(feed.get(each.name), np.ndarray) for each in inputs):
        return None
    kept = next((each for each in inputs if each.type.tensor_type.elem_type == _FLOAT), inputs[0])
    del model.graph.input[:]
    model.graph.input.append(kept)
    for each in inputs:
        if each.name != kept.name:
            value = feed[each.name]
            if value.dtype.kind in "OUS":
                strings: Any = [str(text).encode() for text in value.reshape(-1)]
                tensor = helper.make_tensor(each.name, TensorProto.STRING, value.shape, strings)
            else:
                tensor = numpy_helper.from_array(value, each.name)
            model.graph.initializer.append(tensor)
    return {kept.name: feed[kept.name]}


def _around(
    make: Callable[[str, str, np.ndarray, bool], tuple[onnx.NodeProto, np.ndarray] | None],
) -> Callable[..., Feed | None]:
    """A variant with an operator before the first input of floats and one behind every output of floats."""

    def variant(model: onnx.ModelProto, feed: Feed) -> Feed | None:
        graph = model.graph
        first = next((each for each in graph.input if each.type.tensor_type.elem_type == _FLOAT), None)
        if first is None or not isinstance(feed.get(first.name), np.ndarray):
            return None
        made = make(first.name, "suite/before", feed[first.name], True)
        if made is None:
            return None
        for node in graph.node:
            node.input[:] = ["suite/before" if name == first.name else name for name in node.input]
        graph.node.insert(0, made[0])
        graph.initializer.append(numpy_helper.from_array(made[1], made[0].input[1]))
        for index, output in enumerate(graph.output):
            shape = [dim.dim_value for dim in output.type.tensor_type.shape.dim]
            if output.type.tensor_type.elem_type == _FLOAT and 0 not in shape:
                behind = make(output.name, f"suite/behind{index}", np.zeros(shape, np.float32), False)
                if behind is not None:
                    graph.node.append(behind[0])
                    graph.initializer.append(numpy_helper.from_array(behind[1], behind[0].input[1]))
                    output.name = behind[0].output[0]
        return feed

    return variant


def _add(source: str, target: str, value: np.ndarray, before: bool) -> tuple[onnx.NodeProto, np.ndarray] | None:
    # Small, so that logarithms, roots and steps stay in their domain.
    finite = np.abs(value[np.isfinite(value)])
    size = 1e-3 * float(finite.max(initial=0.0)) if before else 0.1
    constant = np.full([1] * value.ndim, size or 1e-3, np.float32)
    return helper.make_node("Add", [source, f"{target}/w"], [target], name=target), constant


def _anchor(source: str, target: str, value: np.ndarray, _: bool) -> tuple[onnx.NodeProto, np.ndarray] | None:
    if value.ndim < 2 or 0 in value.shape:
        return None
    convolution = value.ndim in (4, 5)
    size = value.shape[1] if convolution else value.shape[-1]
    if size > 512:
        return None
    # Near the identity: values stay in the domain of what comes behind.
    noise = np.abs(np.random.default_rng(size).normal(0.0, 0.1, (size, size))) / size
    weight = (np.eye(size) * 0.9 + noise).astype(np.float32)
    if convolution:
        weight = weight.reshape(size, size, *[1] * (value.ndim - 2))
    return helper.make_node("Conv" if convolution else "MatMul", [source, f"{target}/w"], [target], name=target), weight


def _free(model: onnx.ModelProto, feed: Feed) -> Feed | None:
    """Every dimension of every input is free, as exporters leave batch and sequence."""
    if not any(isinstance(value, np.ndarray) and value.ndim > 1 for value in feed.values()):
        return None
    for each in model.graph.input:
        for index, dim in enumerate(each.type.tensor_type.shape.dim):
            dim.dim_param = f"{each.name}_{index}"
    for each in model.graph.output:
        if each.type.HasField("tensor_type"):
            for index, dim in enumerate(each.type.tensor_type.shape.dim):
                dim.dim_param = f"{each.name}_{index}"
    del model.graph.value_info[:]
    return feed


_VARIANTS: dict[str, Callable[[onnx.ModelProto, Feed], Feed | None]] = {
    "weights": _weights,
    "add": _around(_add),
    "anchor": _around(_anchor),
    "free": _free,
}
