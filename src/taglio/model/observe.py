"""The shape and type of every tensor, observed by running the model once.

Static shape inference stops at operators outside ONNX and at sizes computed at run time; a run does not. Only
shapes are fetched, so it takes no more memory than any other run.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from taglio.data.dataset import shapes_of
from taglio.data.spec import Shape, dtype_name
from taglio.errors import BadData, BadModel
from taglio.model.derived import inferred, with_operators, with_outputs
from taglio.model.inputs import Feed, fix_shapes, random_feeds
from taglio.model.load import Model
from taglio.model.opset import declared_opset
from taglio.runtimes.onnxruntime import Optimization, SessionOptions, open_session, run_session

_PREFIX = "taglio/shape/"
# No operator is rewritten or fused, so every tensor can be fetched; nothing is timed.
PLAIN = SessionOptions(threads=0, optimization=Optimization.NONE, lean=True)


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor's shape and type in one inference; `dtype` is a NumPy name, or "str"."""

    shape: Shape
    dtype: str


Observed = Mapping[str, TensorInfo]


def observe(model: Model, feed: Feed, label: str) -> dict[str, TensorInfo]:
    """Shape and type of every input and every tensor that an operator of the graph writes, in one inference of `feed`.

    Leaves out sequences, optionals, and types under 16 bits that NumPy lacks. Raises BadData, naming `label`, if the
    model cannot run the feed.
    """
    written = [name for node in model.proto.graph.node for name in node.output if name]
    types = tensor_types(model.proto)
    # Of many tensors, static shapes are used where they exist: ONNX Runtime takes minutes to fetch 100,000 outputs.
    static = tensor_shapes(model.proto) if len(written) > 5_000 else {}
    typed = [name for name in written if name in types and name not in static and _has_shape(types[name])]
    open_ = [name for name in written if name not in types]  # only ONNX Runtime knows whether these are tensors
    added = [helper.make_node("Shape", [name], [_PREFIX + name], name=_PREFIX + name) for name in typed]
    output_names = [*(node.name for node in added), *open_]
    values: list[np.ndarray] = []
    if output_names:
        proto = with_operators(model.proto, added, output_names)
        if not declared_opset(proto):
            proto.opset_import.append(helper.make_opsetid("", 13))
        session = open_session(proto, PLAIN, label=model.name)
        values = run_session(session, output_names, feed, label)
    seen = {name: _of_array(value) for name, value in feed.items()}
    seen |= {name: _declared(static[name], types[name]) for name in written if name in static and name in types}
    seen |= {name: _declared(shape, types[name]) for name, shape in zip(typed, values, strict=False)}
    for name, value in zip(open_, values[len(typed) :], strict=True):
        if isinstance(value, np.ndarray):
            seen[name] = _of_array(value)
    return seen


def _of_array(value: np.ndarray) -> TensorInfo:
    return TensorInfo(value.shape, dtype_name(value.dtype))


def _declared(shape: Iterable[int], kind: int) -> TensorInfo:
    return TensorInfo(tuple(map(int, shape)), dtype_name(helper.tensor_dtype_to_np_dtype(kind)))


def observe_random(model: Model) -> tuple[dict[str, TensorInfo] | None, str]:
    """Shapes and types for random inputs, with 1 for a dynamic batch; and a line that says which sizes were assumed.
    The model runs only if shape inference leaves some of them open.

    None if other dimensions are dynamic, or the model did not run on random values: only static shapes are known then.
    """
    dynamic = [spec for spec in model.inputs if spec.dynamic]
    feeds = random_feeds(model.inputs)
    observed = _inferred(model, feeds[0]) if feeds else None
    if observed is None and feeds and model.run_s > 0.0:
        with contextlib.suppress(BadData, BadModel):
            observed = observe(model, feeds[0], model.name)
    open_ = dict.fromkeys(dim or "?" for spec in dynamic for dim in spec.shape or (None,) if not isinstance(dim, int))
    which = f"{', '.join(open_)} {'are' if len(open_) > 1 else 'is'}"
    line = f"{which} taken as 1 here; set another size with `shapes`"
    if observed is None:
        line = f"{which} not known here: tensors of such sizes are not counted; set sizes with `shapes`"
    return observed, line if dynamic else ""


def _inferred(model: Model, feed: Feed) -> dict[str, TensorInfo] | None:
    """What `observe` would find for `feed`, by shape inference; None if it leaves a shape or type open."""
    proto = model.proto
    if any(spec.dynamic for spec in model.inputs):
        proto = deepcopy(model.proto)
        fix_shapes(Path(model.name), proto, shapes_of(feed))
        proto = inferred(proto, data_prop=True)
    shapes, types = tensor_shapes(proto), tensor_types(proto)
    written = [name for node in proto.graph.node for name in node.output if name]
    if not all(name in shapes and name in types for name in written):
        return None
    seen = {name: _of_array(value) for name, value in feed.items()}
    return seen | {name: _declared(shapes[name], types[name]) for name in written if _has_shape(types[name])}


def _has_shape(kind: int) -> bool:
    """Whether ONNX Runtime's Shape operator reads this type: not 4-bit types, nor float8 in old opsets."""
    return kind == onnx.TensorProto.BFLOAT16 or helper.tensor_dtype_to_np_dtype(kind).kind in "fiubO"


def tensor_types(proto: onnx.ModelProto) -> dict[str, int]:
    """The element type (an ONNX enum value) of every tensor whose type the file declares, by name."""
    types = {tensor.name: tensor.data_type for tensor in proto.graph.initializer}
    for value in [*proto.graph.input, *proto.graph.value_info, *proto.graph.output]:
        if value.type.HasField("tensor_type") and value.type.tensor_type.elem_type:
            types[value.name] = value.type.tensor_type.elem_type
        elif value.type.WhichOneof("value"):
            types.pop(value.name, None)
    return types


def tensor_shapes(proto: onnx.ModelProto, dynamic: int | None = None) -> dict[str, tuple[int, ...]]:
    """Static shapes of inputs, outputs, intermediate tensors and initialisers, by name.

    `dynamic` is the size taken for a dynamic dimension; None leaves out tensors that have one.
    """
    shapes = {tensor.name: tuple(tensor.dims) for tensor in proto.graph.initializer}
    for value in (*proto.graph.input, *proto.graph.value_info, *proto.graph.output):
        dims = value.type.tensor_type.shape.dim
        sizes = [dim.dim_value if dim.HasField("dim_value") else dynamic for dim in dims]
        static = [size for size in sizes if size is not None and size >= 0]
        if value.type.tensor_type.HasField("shape") and len(static) == len(sizes):
            shapes[value.name] = tuple(static)
    return shapes


def tensor_values(
    model: Model, names: Sequence[str], feeds: Iterable[Feed], label: str
) -> Iterator[dict[str, np.ndarray]]:
    """The values of inputs and other tensors of the float model, by name, feed by feed. Raises BadData, naming
    `label`, for a feed that the model cannot run."""
    inputs = {spec.name for spec in model.inputs}
    inside = [name for name in names if name not in inputs]
    # Without names ONNX Runtime would compute all outputs.
    session = open_session(with_outputs(model.proto, inside), PLAIN, label=model.name) if inside else None
    for feed in feeds:
        values = run_session(session, inside, feed, label) if session else []
        yield {name: feed[name] for name in names if name in inputs} | dict(zip(inside, values, strict=True))
