"""Decide whether the rows of a batch keep apart, by following the batch dimension through the graph. Runs nothing.

A model answers a batch as it answers each row alone if, from the inputs to every output,

1. the batch is one dimension of each tensor that depends on the rows, which a Transpose may move, a Reshape may merge
   with dimensions behind it, and a constant meets only with size 1,
2. no operator computes along it, and
3. it is the first dimension again, and whole, at every output.

What is left out is "no": operators without a rule, and sizes that are not followed. Sizes of other dimensions are
symbols, so the answer holds for all of them.
"""

from collections.abc import Mapping, Sequence
from itertools import zip_longest

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper, shape_inference
from onnx.inliner import inline_local_functions

from taglio.data.spec import Dim
from taglio.model.batch.rules import REASONS, RULES, TAKES_SIZES
from taglio.model.batch.sizes import MOST_ELEMENTS, computed, opaque
from taglio.model.batch.values import ROWS, Dims, RowsMix, Rule, Size, Step, Value
from taglio.model.captures import captured
from taglio.model.inputs import spec_of
from taglio.model.operators import RANDOM
from taglio.model.opset import declared_opset
from taglio.weights import in_file

_INTEGERS = (TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL)


def why_rows_mix(models: Sequence[onnx.ModelProto], inputs: Sequence[str], outputs: Sequence[str]) -> str:
    """Why a batch may be answered differently from its rows alone, in one line; "" if it cannot be.

    `models` run one after another: each reads inputs, or what models before it wrote, by name. All `inputs` are taken
    to have the same number of rows. Weights in files need not be read.
    """
    values: dict[str, Value] = {}
    try:
        for model in models:
            _follow(inline_local_functions(model) if model.functions else model, set(inputs), values)
        for name in outputs:
            _check_output(name, _known(values, name))
    except RowsMix as reason:
        return str(reason)
    return ""


def _known(values: Mapping[str, Value], name: str) -> Value:
    if name not in values:
        raise RowsMix(f"nothing writes tensor {name}")
    return values[name]


def _check_output(name: str, value: Value) -> None:
    if value.axis is None:
        raise RowsMix(f"output {name} is the same for every batch")
    if value.axis > 0 or value.shape is None or value.shape[0] != ROWS:
        raise RowsMix(f"output {name} does not have one entry per row along its first dimension")


def _follow(model: onnx.ModelProto, inputs: set[str], values: dict[str, Value]) -> None:
    """Add the values of a model's tensors to `values`."""
    for value in model.graph.input:
        if value.name in inputs and value.name not in values:
            values[value.name] = _input(value.name, spec_of(value).shape)
    inferred = _inferred(model, values)
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    values |= {name: _constant(tensor) for name, tensor in constants.items()}
    values |= {tensor.values.name: Value(tuple(map(Size, tensor.dims))) for tensor in model.graph.sparse_initializer}
    opset = declared_opset(model)
    for node in model.graph.node:
        constant = _held(node)
        if constant is not None:
            constants[node.output[0]] = constant
            values[node.output[0]] = _constant(constant)
            continue
        step = Step(node, [_known(values, name) if name else None for name in node.input], opset, constants)
        outside = [_known(values, name) for name in captured(node)]
        written = zip(node.output, _outputs(step, outside, inferred), strict=False)
        values |= {name: output for name, output in written if name}


def _outputs(step: Step, outside: Sequence[Value], inferred: Mapping[str, tuple[Dim, ...]]) -> list[Value]:
    """The outputs of an operator, whose subgraphs read the values `outside`. Raises RowsMix."""
    node = step.node
    if node.op_type in RANDOM:
        step.fail("is random")
    sizes = computed(step) if node.domain in ("", "ai.onnx") else None
    if sizes is not None:
        return [sizes]
    read = [*(value for value in step.values if value), *outside]
    batched, counts = any(value.axis is not None for value in read), any(value.counts for value in read)
    rule = RULES.get(node.domain, {}).get(node.op_type)
    if not batched and not counts:
        return [
            _same_for_all(name, dims, inferred.get(name))
            for name, dims in zip_longest(node.output, _dims(rule, step) if rule else ())
        ]
    if rule is None:
        step.fail(REASONS.get(node.op_type, "is not known to keep rows apart"))
    first = step.value(0)
    counted = node.op_type != "ConstantOfShape" and first is not None and first.counts
    if counts and (counted or node.op_type not in TAKES_SIZES):
        step.fail("computes with the number of rows")
    return [
        _checked(step, _named(dims, name, inferred.get(name)))
        for name, dims in zip(node.output, rule(step), strict=False)
    ]


def _checked(step: Step, value: Value) -> Value:
    sizes = [size for size in value.shape or () if size.batched]
    if len(sizes) > 1 or any(size.symbols.count("") > 1 for size in sizes):
        step.fail("combines each row with the others")
    return value


def _named(dims: Dims, tensor: str, inferred: tuple[Dim, ...] | None) -> Value:
    """A value of these dimensions; those that are None are inferred, or symbols of their own."""
    declared = inferred if inferred is not None and len(inferred) == len(dims) else (None,) * len(dims)
    return Value(
        tuple(
            size or (Size(dim) if isinstance(dim, int) else opaque(tensor, axis))
            for axis, (size, dim) in enumerate(zip(dims, declared, strict=True))
        )
    )


def _dims(rule: Rule, step: Step) -> Sequence[Dims]:
    """The dimensions by a rule of what is the same for all rows; none where the rule needs a batch."""
    try:
        return rule(step)[: len(step.node.output)]
    except RowsMix:
        return ()


def _same_for_all(tensor: str, dims: Dims | None, inferred: tuple[Dim, ...] | None) -> Value:
    if dims is None and inferred is None:
        return Value(None)
    return _named([None] * len(inferred or ()) if dims is None else dims, tensor, inferred)


def _input(name: str, dims: Sequence[Dim] | None) -> Value:
    if not dims:
        raise RowsMix(f"input {name} has no batch dimension")
    if isinstance(dims[0], int):
        raise RowsMix(f"input {name} has a fixed first dimension of {dims[0]}")
    sizes = [_size(name, axis, dim, dims[0]) for axis, dim in enumerate(dims)]
    if sum(size.batched for size in sizes) > 1:
        raise RowsMix(f"input {name} has the batch dimension twice")
    return Value(tuple(sizes))


def _size(tensor: str, axis: int, dim: Dim, batch: Dim) -> Size:
    if isinstance(dim, int):
        return Size(dim)
    return ROWS if axis == 0 or (dim and dim == batch) else Size(1, (dim,)) if dim else opaque(tensor, axis)


def _constant(tensor: TensorProto) -> Value:
    short = len(tensor.dims) <= 1 and sum(tensor.dims) <= MOST_ELEMENTS and not in_file(tensor)
    elements = (
        tuple(map(Size, numpy_helper.to_array(tensor).ravel().tolist()))
        if short and tensor.data_type in _INTEGERS
        else None
    )
    return Value(tuple(map(Size, tensor.dims)), elements)


def _held(node: onnx.NodeProto) -> TensorProto | None:
    """The tensor of a Constant operator; None for another operator, and for a constant that is not a tensor."""
    if node.op_type != "Constant" or node.domain not in ("", "ai.onnx"):
        return None
    (attribute,) = node.attribute
    if attribute.name == "value":
        return attribute.t
    values = {"value_int": attribute.i, "value_ints": [*attribute.ints]}.get(attribute.name)
    return None if values is None else numpy_helper.from_array(np.array(values, np.int64))


def _inferred(model: onnx.ModelProto, values: Mapping[str, Value]) -> dict[str, tuple[Dim, ...]]:
    """The dimensions that ONNX infers from those of the inputs; the file may state stale ones for other tensors."""
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    del bare.graph.value_info[:]
    for value in bare.graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    for value in bare.graph.input:
        traced = values.get(value.name)
        if traced is None or traced.shape is None:
            value.type.tensor_type.ClearField("shape")
            continue
        for dim, size in zip(value.type.tensor_type.shape.dim, traced.shape, strict=True):
            dim.Clear()
            if size.constant is not None:
                dim.dim_value = size.constant
    try:
        graph = shape_inference.infer_shapes(bare).graph
    except Exception:  # of a model that breaks a rule of ONNX, yet runs
        return {}
    return {
        value.name: dims for value in (*graph.value_info, *graph.output) if (dims := spec_of(value).shape) is not None
    }
