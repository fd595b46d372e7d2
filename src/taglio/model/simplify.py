"""Simplify a model: ONNX Runtime's basic rewrites, scales in weights, strides where they spare work, inferred shapes,
unique names. Does not compare answers."""

import re
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from math import prod
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper
from onnxruntime import InferenceSession

from taglio import weights
from taglio.cores import available_cores
from taglio.model.captures import bodies, graphs, read_from_outside
from taglio.model.derived import inferred
from taglio.model.fold import fold
from taglio.model.operators import STANDARD, standard
from taglio.model.opset import declared_opset
from taglio.model.strides import move_strides
from taglio.runtimes.onnxruntime import Optimization, SessionOptions, open_session
from taglio.scratch import scratch

# Suffixes that taglio adds to the names of tensors and blocks.
_OURS = re.compile(
    r"(int8|int32|float16|scale|zero_point|quantize|dequantize|dequantized|kept|keep|float|half|switch|else|wire|"
    r"unwired|pass|cast|dynamic)([-/].*)?$"
)
_RESERVED = ("taglio/", "wire/")
# Constants up to this size are folded in any model: masks and position tables of usual sizes are smaller.
_FOLDED_BYTES = 1 << 20


def simplify(
    path: Path, proto: onnx.ModelProto, store: weights.WeightFiles | None = None
) -> tuple[InferenceSession, onnx.ModelProto]:
    """A session of `proto`, and `proto` simplified: constants that stay small and BatchNorm folded, scales folded
    (fold.py), dead nodes dropped, strides moved up (strides.py), shapes inferred, every node and tensor with a unique
    name.

    With a `store` the weights are in its files. Raises BadModel if ONNX Runtime cannot load `proto`.

    ONNX Runtime names the tensors that it adds, and may reuse those names when it opens the graph a second time
    (MatMulAddFusion's `gemm_input_shape`), so tensors that `proto` does not have are renamed.
    """
    with scratch() as folder:
        target = folder / "simple.onnx" if store is None else store.new("simple.onnx")
        basic = SessionOptions(available_cores(), Optimization.BASIC, folded_bytes=_folded_bytes(proto))
        session = open_session(proto, basic, save_optimized=target, save_weights=store is not None, label=str(path))
        simple = weights.load(target)
    _drop_added_opset(simple, proto)
    fold(simple.graph)
    move_strides(simple.graph)
    return session, _prepared(simple, proto.graph)


def _folded_bytes(proto: onnx.ModelProto) -> int:
    """The size of the largest constant that may be folded: any weight as float32, or a megabyte. A table that operators
    such as Expand or Range write in microseconds would otherwise be stored: 102 MB in a model of 3 kB."""
    values = max((prod(tensor.dims) for tensor in proto.graph.initializer), default=0)
    return max(_FOLDED_BYTES, 4 * values)


def _drop_added_opset(simple: onnx.ModelProto, proto: onnx.ModelProto) -> None:
    """Remove, in place, the newest opset of ONNX's own operators, which ONNX Runtime declares for a model that imports
    and uses none, such as trees: other runtimes need not know it."""
    if declared_opset(proto) or any(standard(node) for graph in graphs(simple.graph) for node in graph.node):
        return
    for index in reversed([i for i, opset in enumerate(simple.opset_import) if opset.domain in STANDARD]):
        del simple.opset_import[index]


def as_it_is(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of `proto` with shapes inferred and names made unique, for models that ONNX Runtime's rewrites break."""
    return _prepared(deepcopy(proto), proto.graph)


def _prepared(proto: onnx.ModelProto, source: onnx.GraphProto) -> onnx.ModelProto:
    """Make weights dense, infer shapes, drop unused initialisers, move others to their readers, and name every node and
    tensor. Nodes and tensors of `source` keep their names."""
    source_tensors = set(_defined(source))
    for node in (node for graph in graphs(proto.graph) for node in graph.node):
        if node.domain == "ai.onnx":  # in subgraphs ONNX Runtime knows it only as ""
            node.domain = ""
    _make_dense(proto.graph)
    proto = inferred(proto, data_prop=True)
    drop_unused_initializers(proto.graph)
    _move_into_bodies(proto.graph)
    _name_nodes(proto.graph, {node.name for node in source.node})
    _rename_tensors(proto.graph, source_tensors)
    return proto


def _defined(graph: onnx.GraphProto) -> Iterator[str]:
    """The names of all tensors that a graph and its subgraphs define."""
    for scope in graphs(graph):
        yield from (value.name for value in scope.input)
        yield from (tensor.name for tensor in scope.initializer)
        yield from (name for node in scope.node for name in node.output)


def _make_dense(graph: onnx.GraphProto) -> None:
    """Turn sparse initialisers into dense ones, in place: no other module handles sparse ones."""
    for sparse in graph.sparse_initializer:
        values, at = weights.values(sparse.values), weights.values(sparse.indices).astype(np.int64)
        dense = np.zeros(prod(sparse.dims), values.dtype)
        dense[at if at.ndim < 2 else np.ravel_multi_index(tuple(at.T), tuple(sparse.dims))] = values
        graph.initializer.append(numpy_helper.from_array(dense.reshape(tuple(sparse.dims)), sparse.values.name))
    del graph.sparse_initializer[:]


def drop_unused_initializers(graph: onnx.GraphProto) -> None:
    """Remove, in place, the initialisers that nothing reads."""
    used = {value.name for scope in graphs(graph) for value in scope.output}
    used |= {name for scope in graphs(graph) for node in scope.node for name in node.input}
    for index in range(len(graph.initializer) - 1, -1, -1):
        if graph.initializer[index].name not in used:
            del graph.initializer[index]


def _move_into_bodies(graph: onnx.GraphProto) -> None:
    """Move, in place, the initialisers that one subgraph alone reads into it: ONNX Runtime packs the weights of a
    matrix product only in the graph that holds them (a step of Silero VAD 5 takes 4 % less)."""
    read_here = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
    inside = [body for node in graph.node for body in bodies(node)]
    body_reads = [(body, name) for body in inside for name in set(read_from_outside(body))]
    counts = Counter(name for _, name in body_reads)
    only_reader = {name: body for body, name in body_reads if counts[name] == 1 and name not in read_here}
    for index in range(len(graph.initializer) - 1, -1, -1):
        tensor = graph.initializer[index]
        if tensor.name in only_reader and not weights.in_file(tensor):
            only_reader[tensor.name].initializer.append(tensor)
            del graph.initializer[index]
    for body in inside:
        _move_into_bodies(body)


def _name_nodes(graph: onnx.GraphProto, source_nodes: set[str]) -> None:
    """Name every node. Nodes of the source (`source_nodes`) keep their names, which ONNX Runtime may have extended;
    others are named after their operator and what they write."""
    names = []
    for node in graph.node:
        written = next((name for name in node.output if name), node.name)
        names.append(node.name if _prefix(node.name, source_nodes) else f"{node.op_type}:{written}")
    used, repeated = set(names), Counter[str]()
    for node, name in zip(graph.node, names, strict=True):
        repeated[name] += 1
        node.name = name if repeated[name] == 1 else _free(f"{name}'", used)


def _prefix(name: str, names: set[str]) -> str:
    """The longest of `names` that `name` is or extends, as in fc/MatMulAddFusion; "" if there is none."""
    ends = (name[:at] for at in range(len(name), 0, -1) if at == len(name) or name[at] in "_/")
    return next((end for end in ends if end in names), "")


def _free(name: str, used: set[str]) -> str:
    """`name`, with a number appended if it is in `used`; the result is added to `used`."""
    free, count = name, len(used) if name in used else 1
    while free in used:
        count += 1
        free = f"{name}{count}"
    used.add(free)
    return free


def _rename_tensors(graph: onnx.GraphProto, source_tensors: set[str]) -> None:
    """Rename tensors that are not in `source_tensors`, and tensors and nodes whose names look like taglio's own."""
    defined = set(_defined(graph))
    owners = defined | {node.name for node in graph.node}
    fixed = {value.name for value in (*graph.input, *graph.output)}
    used = set(owners)
    renamed: dict[str, str] = {}
    for name in dict.fromkeys(_defined(graph)):
        if not name or name in fixed:
            continue
        if name not in source_tensors:
            renamed[name] = _free(f"basic:{name}", used)
        elif _is_ours(name, owners):
            renamed[name] = _free(name.replace("/", ":"), used)
    for node in graph.node:
        if _is_ours(node.name, owners):
            node.name = _free(node.name.replace("/", ":"), used)
    for scope in graphs(graph) if renamed else ():
        for named in (scope.initializer, scope.value_info, scope.input, scope.output):
            for value in named:
                value.name = renamed.get(value.name, value.name)
        for node in scope.node:
            node.input[:] = [renamed.get(name, name) for name in node.input]
            node.output[:] = [renamed.get(name, name) for name in node.output]


def _is_ours(name: str, owners: set[str]) -> bool:
    if name.startswith(_RESERVED):
        return True
    at = name.rfind("/")
    while at > 0:
        if name[:at] in owners and _OURS.match(name, at + 1):
            return True
        at = name.rfind("/", 0, at)
    return False
