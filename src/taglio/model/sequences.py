"""Join blocks that must stay together: those that exchange sequences, optionals or maps, which cannot leave a session,
and those that write and read a state."""

from collections.abc import Collection, Iterable, Sequence
from graphlib import CycleError, TopologicalSorter

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
    together with all groups between them: what a join leaves on a cycle is joined too.

    `reads` are the names that each group reads. The new groups are in no particular order.
    """
    producer = {name: index for index, group in enumerate(groups) for node in group for name in node.output}
    presents = {past: present for present, past in states}
    whole = [*range(len(groups))]  # by group, the first of those that it is joined with

    def join(members: Collection[int]) -> None:
        first = min(members)
        whole[:] = [first if index in members else index for index in whole]

    for reader, group in enumerate(reads):
        for name in group:
            # The reader must stay with the writer of such a value, or of the state that it reads.
            written = presents.get(name, name)
            if (name in names or name in presents) and written in producer:
                join({whole[producer[written]], whole[reader]})
    links = [(producer[name], reader) for reader, group in enumerate(reads) for name in group if name in producer]
    while cycle := _cycle((whole[writer], whole[reader]) for writer, reader in links):
        join(cycle)
    return [
        [node for index, group in enumerate(groups) if whole[index] == first for node in group]
        for first in dict.fromkeys(whole)
    ]


def _cycle(links: Iterable[tuple[int, int]]) -> set[int]:
    """The members of a cycle of (writer, reader) links between different ones; none if there is no cycle."""
    sorter = TopologicalSorter[int]()
    for writer, reader in links:
        if writer != reader:
            sorter.add(reader, writer)
    try:
        sorter.prepare()
    except CycleError as error:
        return {*error.args[1]}
    return set()
