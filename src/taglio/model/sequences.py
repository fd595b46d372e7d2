"""Join blocks that must stay together: those that exchange sequences, optionals or maps, which cannot leave a session,
and those that write and read a state."""

from collections.abc import Sequence

import onnx


def not_tensors(graph: onnx.GraphProto) -> frozenset[str]:
    """Names of the values that are not tensors."""
    return frozenset(
        value.name for value in graph.value_info if value.type.WhichOneof("value") not in (None, "tensor_type")
    )


def joined(
    groups: Sequence[list[onnx.NodeProto]],
    reads: Sequence[Sequence[str]],
    names: frozenset[str],
    states: Sequence[tuple[str, str]],
) -> list[list[onnx.NodeProto]]:
    """`groups`, with those joined that share a value in `names`, or write and read a state of `states` (output, input),
    together with all groups between them.

    `reads` are the names that each group reads. A reverse edge for every such value makes a cycle of what must stay
    together: the strongly connected components are the new groups, in no particular order.
    """
    producer = {name: index for index, group in enumerate(groups) for node in group for name in node.output}
    readers = [(name, reader) for reader, group in enumerate(reads) for name in group]
    after = [(producer[name], reader) for name, reader in readers if name in producer]
    presents = {past: present for present, past in states}
    # Each reader must stay with the writer of such a value, or of the state that it reads.
    tied = [(presents.get(name, name), reader) for name, reader in readers if name in names or name in presents]
    pairs = [(producer[name], reader) for name, reader in tied if name in producer]
    ahead: list[list[int]] = [[] for _ in groups]
    back: list[list[int]] = [[] for _ in groups]
    for source, target in [*after, *pairs, *((reader, writer) for writer, reader in pairs)]:
        ahead[source].append(target)
        back[target].append(source)
    # Kosaraju's algorithm: strongly connected components by two depth-first walks.
    left, order = set(range(len(groups))), list[int]()
    for start in range(len(groups)):
        if start in left:
            order += _walk(start, ahead, left)
    ordered, left = [], set(order)
    for start in reversed(order):
        if start in left:
            members = sorted(_walk(start, back, left))
            ordered.append([node for index in members for node in groups[index]])
    return ordered


def _walk(start: int, edges: Sequence[Sequence[int]], left: set[int]) -> list[int]:
    """What `start` reaches within `left`, in depth-first postorder; removed from `left`."""
    left.discard(start)
    postorder, path = [], [(start, iter(edges[start]))]
    while path:
        at, further = path[-1]
        following = next((successor for successor in further if successor in left), None)
        if following is None:
            postorder.append(at)
            path.pop()
        else:
            left.discard(following)
            path.append((following, iter(edges[following])))
    return postorder
