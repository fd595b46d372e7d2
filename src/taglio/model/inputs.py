"""The inputs of an ONNX graph: fix their shapes, make random feeds for them. Reads no data."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx

from taglio.data.spec import TEXT, Dim, InputSpec, batch_symbol
from taglio.errors import BadModel, plural

Feed = Mapping[str, np.ndarray]
# Operators for which NaN is a missing value.
_TAKES_MISSING = frozenset({"Imputer", "IsNaN", "TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor"})


def fix_shapes(path: Path, proto: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Fix the dimensions of the inputs in `shapes`, in place. Raises BadModel if the model contradicts them."""
    inputs = {value.name: value for value in proto.graph.input}
    for name, shape in shapes.items():
        if name not in inputs:
            raise BadModel(f"{path}: `shapes` names the input {name}; the model's inputs are {', '.join(inputs)}")
        tensor = inputs[name].type.tensor_type
        if not tensor.HasField("shape"):
            tensor.shape.dim.extend(onnx.TensorShapeProto.Dimension() for _ in shape)
        dims = tensor.shape.dim
        if len(dims) != len(shape):
            raise BadModel(
                f"{path}: `shapes` {name} gives {plural(len(shape), 'dimension')}; the input has {len(dims)}"
            )
        if min(shape, default=0) < 0:
            raise BadModel(f"{path}: `shapes` {name} gives {min(shape)}: give sizes of 0 or more")
        for dim, size in zip(dims, shape, strict=True):
            if dim.HasField("dim_value") and dim.dim_value not in (size, 0, -1):
                raise BadModel(f"{path}: `shapes` {name} gives {size} where the model fixes {dim.dim_value}")
            dim.dim_value = size
    if shapes:  # inferred shapes are stale now
        del proto.graph.value_info[:]
        for value in proto.graph.output:
            value.type.tensor_type.ClearField("shape")
    for value in proto.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_value < 0:  # how some exporters write a dynamic dimension
                dim.Clear()


def free_dimensions(proto: onnx.ModelProto, names: Collection[str]) -> None:
    """Remove the `names` of dynamic dimensions, in place, also from outputs; inferred shapes, which may rest on equal
    names, are removed."""
    for value in (*proto.graph.input, *proto.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in names:
                dim.Clear()
    del proto.graph.value_info[:]


def input_specs(path: Path, proto: onnx.ModelProto) -> tuple[InputSpec, ...]:
    """The inputs of a graph. Raises BadModel for an input that is not a tensor."""
    for value in proto.graph.input:
        if not value.type.HasField("tensor_type"):
            raise BadModel(f"{path}: input {value.name} is not a tensor: taglio plans tensor models only")
    missing = any(node.op_type in _TAKES_MISSING for node in proto.graph.node)
    return tuple(replace(spec_of(value), missing=missing) for value in proto.graph.input)


def spec_of(value: onnx.ValueInfoProto) -> InputSpec:
    """A tensor's name, shape and type as the file declares them; the type is "" if it does not."""
    tensor = value.type.tensor_type
    dims: tuple[Dim, ...] | None = None
    if tensor.HasField("shape"):
        dims = tuple(
            dim.dim_value if dim.HasField("dim_value") else (dim.dim_param or None) for dim in tensor.shape.dim
        )
    if tensor.elem_type == onnx.TensorProto.STRING:
        return InputSpec(value.name, dims, TEXT)
    is_typed = tensor.elem_type != onnx.TensorProto.UNDEFINED
    return InputSpec(value.name, dims, onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).name if is_typed else "")


def keep_interface(original: onnx.ModelProto, rewritten: onnx.ModelProto) -> None:
    """Give inputs and outputs of `rewritten` the types and dimensions that `original` declares under the same names.

    If the original declares no shape for an output, sizes inferred since then stay; invented dimension names go.
    """
    for old, new in ((original.graph.input, rewritten.graph.input), (original.graph.output, rewritten.graph.output)):
        declared = {value.name: value for value in old}
        for value in new:
            original_value = declared.get(value.name)
            if original_value is None or not original_value.type.WhichOneof("value"):
                continue
            tensor = original_value.type.tensor_type
            if original_value.type.HasField("tensor_type") and not tensor.HasField("shape"):
                for dim in value.type.tensor_type.shape.dim:
                    if not dim.HasField("dim_value"):
                        dim.Clear()
                continue
            value.type.CopyFrom(original_value.type)


def random_feed(inputs: Iterable[InputSpec], seed: int) -> dict[str, np.ndarray]:
    """One feed of standard-normal (floating) or zero/one (integer, bool) values, with dynamic dimensions of size 1.
    For timing, never for measuring error."""
    rng = np.random.default_rng(seed)
    feed: dict[str, np.ndarray] = {}
    for spec in inputs:
        dtype, shape = spec.numpy_dtype(), spec.sizes()
        if dtype.kind == "f":
            feed[spec.name] = np.asarray(rng.standard_normal(shape)).astype(dtype)
        elif dtype.kind == "O":
            feed[spec.name] = np.full(shape, "", object)
        else:
            feed[spec.name] = np.asarray(rng.integers(0, 2, shape)).astype(dtype)
    return feed


def random_feeds(inputs: Sequence[InputSpec]) -> list[dict[str, np.ndarray]]:
    """One random feed if only the batch is dynamic, or first dimensions of any name, as exporters of Keras models write
    the batch of several inputs; otherwise none."""
    batch = batch_symbol(inputs)
    is_sized = all(
        spec.shape is not None
        and all(isinstance(dim, int) or dim == batch or not axis for axis, dim in enumerate(spec.shape))
        for spec in inputs
    )
    return [random_feed(inputs, seed=0)] if is_sized else []
