"""Which tensors an operator reads, also in its subgraphs, and which operator writes them; renaming. Builds no blocks.

The body of an If, Loop or Scan reads tensors of the graphs around it by name. A name that a body defines itself (an
input, a weight, an operator's output) shadows an outer tensor of the same name.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping

import onnx


def node_inputs(node: onnx.NodeProto) -> list[str]:
    """Names that a node reads, including those that its subgraphs read from outside."""
    names = [name for name in node.input if name]
    for body in bodies(node):
        names += read_from_outside(body)
    return names


def read_from_outside(body: onnx.GraphProto) -> list[str]:
    """Names of enclosing graphs that a subgraph and those within it read, each as often as it is read."""
    defined = _defined(body)
    reads = [name for sub in body.node for name in node_inputs(sub)] + [value.name for value in body.output]
    return [name for name in reads if name not in defined]


def readers(nodes: Iterable[onnx.NodeProto]) -> dict[str, list[onnx.NodeProto]]:
    """The nodes that read each tensor, also in their subgraphs; a node is there as often as it reads the tensor."""
    readers_of: dict[str, list[onnx.NodeProto]] = {}
    for node in nodes:
        for name in node_inputs(node):
            readers_of.setdefault(name, []).append(node)
    return readers_of


def writers(nodes: Iterable[onnx.NodeProto]) -> dict[str, onnx.NodeProto]:
    """The node that writes each tensor."""
    return {name: node for node in nodes for name in node.output if name}


def set_operators(graph: onnx.GraphProto, nodes: Iterable[onnx.NodeProto]) -> None:
    """Give `graph`, in place, these operators instead of its own, of which they may be some."""
    nodes = [*nodes]
    del graph.node[:]
    graph.node.extend(nodes)


def ahead(
    node: onnx.NodeProto | None, writer: Mapping[str, onnx.NodeProto], kinds: Collection[str]
) -> onnx.NodeProto | None:
    """The first operator whose type is not in `kinds`, from `node` on along first inputs; None if there is none."""
    while node is not None and node.op_type in kinds:
        node = writer.get(node.input[0])
    return node


def rename_inputs(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    """Rename, in place, the tensors that `node` and its subgraphs at any depth read: old name -> new name."""
    for index, name in enumerate(node.input):
        node.input[index] = names.get(name, name)
    for graph in bodies(node):
        defined = _defined(graph)
        outer = {old: new for old, new in names.items() if old not in defined}
        if not outer:
            continue
        for sub in graph.node:
            rename_inputs(sub, outer)
        for value in graph.output:
            value.name = outer.get(value.name, value.name)


def separate(graph: onnx.GraphProto, outer: Collection[str] = ()) -> bool:
    """Rename, in place, tensors of subgraphs whose name an enclosing graph uses too; True if any was renamed.

    `outer` are the names that enclosing graphs define.
    """
    around = {*outer, *_defined(graph)}
    renamed = False
    for node in graph.node:
        for index, body in enumerate(bodies(node)):
            defined = _defined(body) & around
            names = {name: f"{name}/in/{node.name}/{index}" for name in defined if name}
            for inner in body.node:
                rename_inputs(inner, names)
                inner.output[:] = [names.get(name, name) for name in inner.output]
            for values in (body.input, body.output, body.initializer, body.value_info):
                for value in values:
                    value.name = names.get(value.name, value.name)
            renamed = separate(body, around) or bool(names) or renamed
    return renamed


def bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The subgraphs of a node."""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == onnx.AttributeProto.GRAPHS:
            yield from attribute.graphs


def graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph and all its subgraphs, at any depth."""
    yield graph
    for node in graph.node:
        for body in bodies(node):
            yield from graphs(body)


def operators(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """The operators of a model, also in subgraphs and functions."""
    for node in (*model.graph.node, *(node for function in model.functions for node in function.node)):
        yield node
        for body in bodies(node):
            yield from (inner for graph in graphs(body) for inner in graph.node)


def _defined(graph: onnx.GraphProto) -> set[str]:
    defined = {name for node in graph.node for name in node.output}
    defined |= {tensor.name for tensor in graph.initializer} | {value.name for value in graph.input}
    return defined | {tensor.values.name for tensor in graph.sparse_initializer}
