"""Convert blocks to float16 with ONNX Runtime's converter. Neither calibrates nor quantises.

The file is half as large, and so is what a link carries. On a CPU without float16 arithmetic ONNX Runtime computes most
of it in float32, so it is not faster. The converter silently skips operators, and converts some that nobody asked for.
Both are errors here: every operator of a block is looked up in the result, and no other may have changed.
"""

import contextlib
import logging
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace

import onnx
from onnx import TensorProto, helper
from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST, convert_float_to_float16

from taglio import weights
from taglio.errors import BadModel, CannotQuantize, one_line, plural
from taglio.model.captures import captured, node_inputs, rename_inputs
from taglio.model.graph import Block, Graph
from taglio.model.load import Model
from taglio.model.observe import tensor_types
from taglio.model.simplify import drop_unused_initializers
from taglio.quantize.casts import in_float16, tidy_casts
from taglio.quantize.float16_range import beyond_float16
from taglio.runtimes.onnxruntime import SessionOptions, open_session


def most_in_float16(
    model: Model, graph: Graph, names: Sequence[str], low_high: Mapping[str, tuple[float, float]]
) -> tuple[onnx.ModelProto, list[str], tuple[str, ...]]:
    """The model with as many of the blocks `names` in float16 as it can be, those blocks, and a line for each reason
    why others stay in float32.

    `low_high` are the calibrated ranges of activations. If the converter refuses a block, all blocks of its kind stay.
    Raises CannotQuantize if float16 cannot hold any block, or the converter refuses more than half of them.
    """
    beyond = beyond_float16(model, graph, names, low_high)
    within = [name for name in names if name not in beyond]
    if not within:
        raise CannotQuantize(f"no block can be float16: {beyond[names[0]]}")
    kinds = {name: graph.block(name).kind for name in names}
    converted, left, refused = None, within, ""
    while converted is None:
        try:
            converted = float16(model, graph, left)
        except CannotQuantize as refusal:
            refused = refused or str(refusal)
            named = next((name for name in left if re.search(rf"blocks? {re.escape(name)}[: ]", str(refusal))), "")
            left = [name for name in left if named and kinds[name] != kinds[named]]
            if 2 * len(left) < len(within):
                raise
    reasons = ((len(beyond), next(iter(beyond.values()), "")), (len(within) - len(left), refused))
    every = plural(len(names), "block")
    return converted, left, tuple(f"{count} of {every} left in float32: {why}" for count, why in reasons if count)


def float16(model: Model, graph: Graph, blocks: Sequence[str]) -> onnx.ModelProto:
    """`model` with `blocks` in float16; inputs, outputs, the other blocks and tensors between those stay float32.

    Raises CannotQuantize for a block whose operators the converter keeps in float32, and for an If, Loop or Scan whose
    body reads tensors from outside. Weights beyond the range of float16 become infinite: see `beyond_float16`.
    """
    chosen = [graph.block(name) for name in dict.fromkeys(blocks)]
    model = _in_memory(model)
    if not chosen:
        return deepcopy(model.proto)
    nodes = model.nodes()
    block_of = {name: block for block in chosen for name in block.operators}
    for name, block in block_of.items():
        if nodes[name].op_type in DEFAULT_OP_BLOCK_LIST:
            raise CannotQuantize(f"block {block.name}: the float16 converter keeps {nodes[name].op_type} in float32")
        if captured(nodes[name]):
            raise CannotQuantize(f"block {block.name}: float16 bodies cannot read the float32 tensors around them")
    proto = _typed(_own_weights(model.proto, block_of), graph)
    outputs = [*proto.graph.output]
    written = {name for node in proto.graph.node for name in node.output}
    # The converter would write an output that is an input or a constant a second time.
    del proto.graph.output[:]
    proto.graph.output.extend(output for output in outputs if output.name in written)
    for node in proto.graph.node:  # it casts what a float32 operator reads, but not what its bodies do
        node.input.extend(captured(node))
    with _converting():
        converted = convert_float_to_float16(
            proto,
            keep_io_types=True,
            node_block_list=[node.name for node in proto.graph.node if node.name not in block_of],
        )
        converted = tidy_casts(converted, nodes)
    for node in converted.graph.node:
        if node.name in nodes and (names := captured(nodes[node.name])):
            renamed = node.input[-len(names) :]
            del node.input[-len(names) :]
            rename_inputs(node, dict(zip(names, renamed, strict=True)))
    del converted.graph.output[:]
    converted.graph.output.extend(outputs)
    _check_converted(block_of, in_float16(converted) - (in_float16(model.proto) - set(block_of)))
    _check_loads(converted, chosen)
    return converted


def _in_memory(model: Model) -> Model:
    """The model with its weights in memory, where the converter expects them. Raises CannotQuantize if too large."""
    proto = weights.in_memory(model.proto)
    if weights.refers(proto):
        raise CannotQuantize(
            f"{model.name} has {weights.size_bytes(proto) / 1e9:.1f} GB of weights; ONNX Runtime's float16 converter "
            "takes at most 2 GB: use the method static"
        )
    return replace(model, proto=proto)


def _own_weights(proto: onnx.ModelProto, operators: Collection[str]) -> onnx.ModelProto:
    """A copy in which none of `operators` shares a float constant with another operator: the converter keeps one form
    per constant."""
    copy = deepcopy(proto)
    floats = {tensor.name: tensor for tensor in copy.graph.initializer if tensor.data_type == TensorProto.FLOAT}
    uses = Counter(name for node in copy.graph.node for name in set(node_inputs(node)))
    uses.update(value.name for value in copy.graph.output)
    for node in copy.graph.node:
        for index, name in enumerate(node.input):
            if node.name in operators and name in floats and uses[name] > 1:
                own = copy.graph.initializer.add()
                own.CopyFrom(floats[name])
                own.name = node.input[index] = f"{name}/{node.name}/{index}"
    drop_unused_initializers(copy.graph)
    return copy


def _typed(proto: onnx.ModelProto, graph: Graph) -> onnx.ModelProto:
    """`proto`, with the float32 tensors between blocks declared where ONNX's inference does not know their type."""
    types = tensor_types(proto)
    tensors = graph.tensor_map()
    missing = [name for name, tensor in tensors.items() if name not in types and tensor.dtype == "float32"]
    proto.graph.value_info.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in missing)
    return proto


def _check_converted(block_of: Mapping[str, Block], done: set[str]) -> None:
    """Raises CannotQuantize if an operator of a block stayed float32, or another was converted."""
    for name, block in block_of.items():
        if name not in done:
            raise CannotQuantize(f"block {block.name}: ONNX Runtime did not convert operator {name} to float16")
    if extra := sorted(done - set(block_of)):
        raise CannotQuantize(
            f"float16: ONNX Runtime also converted {extra[0]} ({plural(len(extra), 'operator')} not requested)"
        )


def _check_loads(proto: onnx.ModelProto, chosen: Sequence[Block]) -> None:
    try:
        open_session(proto, SessionOptions(threads=1), label="float16")
    except BadModel as error:
        names = ", ".join(block.name for block in chosen[:3]) + (", …" if len(chosen) > 3 else "")
        raise CannotQuantize(f"blocks {names} ({len(chosen)} in all): {error}") from None


@contextlib.contextmanager
def _converting() -> Iterator[None]:
    """Silence the advice that the converter logs: taglio has already prepared the model. Whatever it raises becomes a
    CannotQuantize."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    except Exception as error:
        raise CannotQuantize(f"ONNX Runtime's float16 converter fails on these blocks: {one_line(error)}") from None
    finally:
        logging.disable(level)
