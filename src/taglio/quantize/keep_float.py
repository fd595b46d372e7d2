"""Rewrite a model so that ONNX Runtime does not quantise operators that a plan keeps in float. Inserts no quantisation.

ONNX Runtime quantises a float Conv, ConvTranspose or Gemm by itself, per tensor, between a DequantizeLinear and a
QuantizeLinear (its WeightBiasQuantization pass), and turns a Softmax there into QLinearSoftmax, which is wrong for some
scales. It also moves a pair back past movement operators, and then the output of the model in front of them is written
by the pair. All change the error, so these patterns are broken up in the file, for all later users of it:

1. A Conv becomes ONNX Runtime's own FusedConv, without an activation: it runs the same kernels, and the pass ignores
   it. OpenVINO reads it too, but not the version in ONNX Runtime's OpenVINO provider.
2. Behind ConvTranspose, Gemm, Softmax, and MatMul with the Add of its bias (which ONNX Runtime turns into a Gemm
   first), a one-input Max is inserted, which only copies.
3. A float output of the model that an int8 block reads through a movement operator (a key cache, transposed for an int8
   MatMul): ONNX Runtime would move the pair ahead of the movement and quantise the output too, so the same one-input
   Max is inserted before the movement.
4. A MaxPool between a float operator and a QuantizeLinear: ONNX Runtime would move the pair ahead of it. The answers
   stay, but its int8 kernel is fast only in the channels-last layout of a QLinearConv before it, and took 30 times as
   long as in float: half the time of a ResNet with a float first convolution. A one-input Max is inserted behind it.
"""

from collections.abc import Collection, Iterator, Mapping

import onnx
from onnx import helper

from taglio.model.captures import ahead, operators, readers, writers
from taglio.model.operators import MOVEMENT

MICROSOFT = "com.microsoft"
_WEIGHTED = frozenset({"Conv", "ConvTranspose", "Gemm"})
_CLIPS = frozenset({"Relu", "Clip"})
# ONNX Runtime moves pairs past movement operators, and drops operators that change nothing before it matches.
_CARRIERS = MOVEMENT | {"Cast", "Dropout"}
# Readers that it folds before it matches, where shapes are fixed.
_FOLDED = frozenset({"Shape", "Size"})


def keep_float(nodes: list[onnx.NodeProto], own: Collection[str], outputs: Collection[str]) -> None:
    """Rewrite the patterns in place. `own` are the names of the float model's operators: what stands between two of the
    model's own pairs is left alone. `outputs` are the file's."""
    producer, consumers = writers(nodes), readers(node for node in nodes if node.op_type not in _FOLDED)
    before: dict[str, list[onnx.NodeProto]] = {}
    for node in nodes:
        end = _with_bias(node, producer, consumers) if node.op_type == "MatMul" else node
        if end is None:
            continue
        # A weight behind a pair of ours belongs to an int8 operator. All others count, also computed ones: ONNX Runtime
        # folds what is computed from weights alone, such as a Cast, before it matches.
        behind_weight = producer.get(node.input[1]) if node.op_type in _WEIGHTED else None
        weighted = node.op_type in _WEIGHTED and (behind_weight is None or behind_weight.name in own)
        if not (weighted or node.op_type == "Softmax" or end is not node):
            continue
        source = _dequantize_ahead(node, producer)
        path = _up_to_quantize(end.output[0], consumers)
        if source is None or path is None:
            continue
        user, quantize = path
        if source.name in own and quantize.name in own:
            continue
        if node.op_type == "Conv":
            node.op_type, node.domain = "FusedConv", MICROSOFT
            continue
        before.setdefault(user.name, []).append(_copy_ahead(user))
    for user in _behind_movement(nodes, producer, consumers, own, outputs):
        before.setdefault(user.name, []).append(_copy_ahead(user))
    nodes[:] = [operator for node in nodes for operator in (*before.get(node.name, ()), node)]


def import_domains(proto: onnx.ModelProto) -> None:
    """Import, in place, the domain of ONNX Runtime's own operators if `proto` has some."""
    declared = {entry.domain for entry in proto.opset_import}
    if MICROSOFT not in declared and any(node.domain == MICROSOFT for node in operators(proto)):
        proto.opset_import.append(helper.make_opsetid(MICROSOFT, 1))


def _with_bias(
    product: onnx.NodeProto, producer: Mapping[str, onnx.NodeProto], consumers: Mapping[str, list[onnx.NodeProto]]
) -> onnx.NodeProto | None:
    """The Add of a constant behind a MatMul by a constant; None if there is none."""
    users = consumers.get(product.output[0], [])
    if len(users) != 1 or users[0].op_type != "Add" or product.input[1] in producer:
        return None
    return users[0] if any(name not in producer for name in users[0].input) else None


def _behind_movement(
    nodes: list[onnx.NodeProto],
    producer: Mapping[str, onnx.NodeProto],
    consumers: Mapping[str, list[onnx.NodeProto]],
    own: Collection[str],
    outputs: Collection[str],
) -> Iterator[onnx.NodeProto]:
    """The nodes ahead of which rules 3 and 4 insert a copy."""
    for name in outputs:
        path, written = _up_to_quantize(name, consumers), producer.get(name)
        if path is None or written is None or written.op_type == "DequantizeLinear":
            continue
        if path[0].op_type != "QuantizeLinear" and path[0].input[0] == name:
            yield path[0]
    for node in nodes:
        if node.op_type == "MaxPool" and _dequantize_ahead(node, producer) is None:
            path = _up_to_quantize(node.output[0], consumers)
            if path is not None and path[1].name not in own:
                yield path[0]


def _dequantize_ahead(node: onnx.NodeProto, producer: Mapping[str, onnx.NodeProto]) -> onnx.NodeProto | None:
    """The DequantizeLinear that feeds `node`, directly or through operators that pairs are moved past."""
    source = ahead(producer.get(node.input[0]), producer, _CARRIERS)
    return source if source is not None and source.op_type == "DequantizeLinear" else None


def _up_to_quantize(
    tensor: str, consumers: Mapping[str, list[onnx.NodeProto]]
) -> tuple[onnx.NodeProto, onnx.NodeProto] | None:
    """The first node behind `tensor` and its Relu or Clip, and the QuantizeLinear to which an unbranched path leads
    from there; None if there is no such path."""
    first: onnx.NodeProto | None = None
    while True:
        users = consumers.get(tensor, [])
        if len(users) != 1 or len(users[0].output) != 1:
            return None
        user = users[0]
        if user.op_type not in _CLIPS:
            first = first or user
        if first is not None and user.op_type == "QuantizeLinear":
            return first, user
        if user.op_type not in _CLIPS and user.op_type not in _CARRIERS:
            return None
        tensor = user.output[0]


def _copy_ahead(user: onnx.NodeProto) -> onnx.NodeProto:
    """A Max that copies what `user` reads first, which reads the copy from now on."""
    tensor = user.input[0]
    copy = helper.make_node("Max", [tensor], [f"{tensor}/kept"], name=f"{tensor}/keep")
    user.input[0] = copy.output[0]
    return copy
