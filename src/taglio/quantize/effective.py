"""Which blocks a runtime really runs in int8 or bfloat16 under an assignment. Pure; changes no model.

1. A movement operator has its producer's type: int8 is moved as int8, float as float. Quantising before or after it
   counts as part of the boundary (ONNX Runtime moves pairs past movement operators by itself).
2. A float operator without weights that reads only int8 and is read only as int8 runs in its int8 kernel: the pairs
   around it are all that fusion needs, and its inputs and output are int8 already. A Relu behind it is part of it.
3. OpenVINO adds a residual in the convolution before it. So what only a sum reads computes in the sum's precision,
   float32 or bfloat16, and a sum that only a block in bfloat16 reads computes in bfloat16.
"""

from taglio.model.graph import Block, Graph
from taglio.quantize.precision import BFLOAT16, FLOAT32, Assignment, Precision


def fuses_when_surrounded(block: Block) -> bool:
    """Whether rule 2 can apply to `block`."""
    tail = block.kind.partition("+")[2]
    return block.quantizable and not block.movement and not block.weights and tail in ("", "Relu")


def only_readers(graph: Graph) -> dict[str, str]:
    """By block, the block that alone reads what it writes, directly and once, where one of the two is a sum: rule 3."""
    moved = {flow.producer for flow in graph.flows if flow.moves}
    alone = {block: readers[0] for block, readers in graph.readers.items() if len(readers) == 1 and readers[0]}
    return {
        block: reader
        for block, reader in alone.items()
        if block not in moved
        if is_sum(graph.block(block)) or is_sum(graph.block(reader))
        if BFLOAT16.fits(graph.block(block))
    }


def is_sum(block: Block) -> bool:
    """Whether a block adds two computed tensors."""
    return block.anchor == "Add" and len(block.inputs) == 2


def effective(graph: Graph, assignment: Assignment, int8: Precision) -> dict[str, Precision]:
    """Precision by block under the rules, in graph order, without the blocks in float32."""
    tensors = graph.tensor_map()
    forms = {
        block.name: assignment[block.name]
        for block in graph.blocks
        if block.name in assignment and assignment[block.name] != FLOAT32 and not block.movement
    }

    def joins(block: Block) -> bool:
        producers = (tensors[name].producer for name in block.inputs)
        written = (producer in forms and forms[producer].int8_output for producer in producers)
        if block.carries:
            return next(written, False)
        readers = graph.readers.get(block.name, [])  # "" for the caller, which is never in `forms`
        int8_readers = (reader in forms and forms[reader].scheme is not None for reader in readers)
        return all(written) and bool(readers) and all(int8_readers)

    undecided = [
        block for block in graph.blocks if block.name not in forms and (block.carries or fuses_when_surrounded(block))
    ]
    left = len(undecided) + 1
    while len(undecided) < left:
        left = len(undecided)
        for block in undecided:
            if joins(block):
                forms[block.name] = int8
        undecided = [block for block in undecided if block.name not in forms]
    if BFLOAT16 in forms.values():
        _follow_sums(graph, forms)
    return {block.name: forms[block.name] for block in graph.blocks if block.name in forms}


def _follow_sums(graph: Graph, forms: dict[str, Precision]) -> None:
    """Apply rule 3 to `forms`, readers first."""
    readers = only_readers(graph)
    for block in reversed(graph.blocks):
        if block.name not in readers:
            continue
        form, ahead = (forms.get(name, FLOAT32) for name in (block.name, readers[block.name]))
        if not {form, ahead} <= {FLOAT32, BFLOAT16} or form == ahead:
            continue
        if ahead == BFLOAT16:
            forms[block.name] = BFLOAT16
        elif is_sum(graph.block(readers[block.name])):
            del forms[block.name]
