"""The terms of the error model, and their starting values from measurements of blocks and flows alone. Pure.

Quantisation noises are not independent. A block in int8 cancels part of the noise of its input's quantisation, and
rounding the same tensor twice adds nothing. To first order the change of the outputs is a sum of vectors, one per block
(its weights, its inner tensors, its output) and one per tensor that an int8 block reads from a float one:

    d(subset) = Σ_blocks o[block] + Σ_(flow, reader) e[flow, reader] · [written float, read int8]

e is measured by quantising the flow alone; o is the change by a block alone minus the e of the flows that it reads. The
squared norm of the sum has a term per pair. Those of a block and the flows that it reads are the large ones, and depend
on the same two choices as an edge, so they need no separate variable:

    own[block]         = ‖o‖²
    edge[flow, reader] = the squared error of the block alone minus own, divided among its flows by ‖e‖²

so that a block alone gets exactly the error of the vectors.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from taglio.model.graph import Graph
from taglio.profile.result import reads, writes
from taglio.quantize.precision import Assignment, Precision

_ANCHOR_SHARE = 0.5


@dataclass(frozen=True)
class Design:
    """Columns of the fit: own noise by (block, precision), then edge noise by (flow, reader). `producers` are the
    blocks that compute the flows."""

    own: tuple[tuple[str, str], ...]
    edge: tuple[tuple[str, str], ...]
    producers: Mapping[str, str | None]

    @cached_property
    def index(self) -> dict[tuple[str, str], int]:
        """Column of (block, precision)."""
        return {key: column for column, key in enumerate(self.own)}

    @cached_property
    def reading(self) -> dict[str, list[int]]:
        """Indices in `edge` of the edges that a block reads, by block."""
        edges: dict[str, list[int]] = {}
        for index, (_, reader) in enumerate(self.edge):
            edges.setdefault(reader, []).append(index)
        return edges

    def row(self, assignment: Assignment) -> np.ndarray:
        """The columns that `assignment` sums, 0 or 1, shape [columns]."""
        row = np.zeros(len(self.own) + len(self.edge))
        for block, precision in assignment.items():
            column = self.index.get((block, precision.name))
            if column is not None:
                row[column] = 1.0
            for edge in self.reading.get(block, ()) if reads(assignment, block) else ():
                if not writes(assignment, self.producers[self.edge[edge][0]]):
                    row[len(self.own) + edge] = 1.0
        return row


def design(graph: Graph, precisions: Sequence[Precision]) -> Design:
    """The columns of `graph` under `precisions`, for all blocks that have a choice."""
    blocks = {block.name: block for block in graph.choices() if not block.movement}
    own = [(name, p.name) for name, block in blocks.items() for p in precisions if p.form != "float" and p.fits(block)]
    able = {name for name, block in blocks.items() if block.quantizable}
    edge = dict.fromkeys((flow.name, reader) for flow in graph.flows for _, reader in flow.readers if reader in able)
    return Design(tuple(own), tuple(edge), {flow.name: flow.producer for flow in graph.flows})


def starting_noises(
    columns: Design,
    precisions: Sequence[Precision],
    blocks_alone: Mapping[tuple[str, str], np.ndarray],
    flows_alone: Mapping[str, np.ndarray],
) -> np.ndarray:
    """Starting noise of every column, [columns], from sketches [size] of blocks alone, by (block, precision), and of
    flows alone.

    A form that was not measured alone starts from the block's whole int8 form. A flow that was not measured alone has
    no vector; its edges start from a share of its readers' noise alone.
    """
    whole = next(precision.name for precision in precisions if precision.form == "whole")
    forms = {precision.name: precision for precision in precisions}
    readers = Counter(flow for flow, _ in columns.edge)
    edge = [flows_alone.get(flow, np.zeros(())) / readers[flow] for flow, _ in columns.edge]

    start = np.zeros(len(columns.own) + len(columns.edge))
    for column, (block, name) in enumerate(columns.own):
        key = (block, name) if (block, name) in blocks_alone else (block, whole)
        share = 1.0 if key == (block, name) else _ANCHOR_SHARE
        alone = float(np.dot(blocks_alone[key], blocks_alone[key]))
        read = columns.reading.get(block, []) if forms[name].scheme is not None else []
        if not all(columns.edge[index][0] in flows_alone for index in read):
            start[column] = share * alone * 0.7  # the rest is caused by quantising its inputs
            continue
        vector = blocks_alone[key] - sum((edge[index] for index in read), np.zeros_like(blocks_alone[key]))
        # No less than a share of its noise alone, so that sums stay positive.
        start[column] = share * max(float(np.dot(vector, vector)), 0.02 * alone)
    squares = [float(np.dot(vector, vector)) for vector in edge]
    for index, (_, reader) in enumerate(columns.edge):
        alone = float(np.dot(blocks_alone[reader, whole], blocks_alone[reader, whole]))
        together = columns.reading[reader]
        total = sum(squares[neighbour] for neighbour in together)
        part = squares[index] / total if total > 0.0 else 1.0 / len(together)
        start[len(columns.own) + index] = max(0.0, alone - start[columns.index[reader, whole]]) * part
    return start
