"""The terms of the error model, and their starting values from measurements of blocks alone. Pure.

Quantisation noises are not independent. A block in int8 cancels part of the noise of its input's quantisation, and
rounding the same tensor twice adds nothing. So the squared error of a block alone has two parts: its own (of its
weights, its inner tensors, its output), and that of the tensors that it reads from float blocks:

    s(subset) = Σ_blocks own[block] + Σ_(flow, reader) edge[flow, reader] · [written float, read int8]

How the two share it is assumed to begin with; subsets correct it (fit.py).
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from taglio.model.graph import Graph
from taglio.profile.result import reads, writes
from taglio.quantize.precision import FLOAT32, Assignment, Precision, int8_of

# The share of a block's squared error in int8 that is its own; the rest is caused by quantising what it reads. And that
# of a form that was not measured, such as int8-anchor.
_OWN_SHARE, _ANCHOR_SHARE = 0.7, 0.5


@dataclass(frozen=True, slots=True)
class Design:
    """Columns of the fit: own noise by (block, precision), then edge noise by (flow, reader). `producers` are the
    blocks that compute the flows."""

    own: tuple[tuple[str, str], ...]
    edge: tuple[tuple[str, str], ...]
    producers: Mapping[str, str | None]

    def row(self, assignment: Assignment, wired: Collection[tuple[str, str]] = ()) -> np.ndarray:
        """The columns that `assignment` sums, 0 or 1, shape [columns]. `wired` are the (flow, reader) whose float
        values travel as int8."""
        forms = {(block, precision.name) for block, precision in assignment.items()}
        own = [key in forms for key in self.own]
        floats = {flow for flow, producer in self.producers.items() if not writes(assignment, producer)}
        edge = [(flow, reader) in wired or (flow in floats and reads(assignment, reader)) for flow, reader in self.edge]
        return np.array([*own, *edge], float)


def producers(graph: Graph) -> dict[str, str | None]:
    """The block that computes each flow; None for an input of the model."""
    return {flow.name: flow.producer for flow in graph.flows}


def design(graph: Graph, precisions: Sequence[Precision]) -> Design:
    """The columns of `graph` under `precisions`, for all blocks that have a choice."""
    blocks = {block.name: block for block in graph.choices() if not block.movement}
    own = [(name, p.name) for name, block in blocks.items() for p in precisions if p != FLOAT32 and p.fits(block)]
    able = {name for name, block in blocks.items() if block.quantizable}
    edge = dict.fromkeys((flow.name, reader) for flow in graph.flows for _, reader in flow.readers if reader in able)
    return Design(tuple(own), tuple(edge), producers(graph))


def starting_noises(
    columns: Design, precisions: Sequence[Precision], alone: Mapping[tuple[str, str], float]
) -> np.ndarray:
    """Starting noise of every column, [columns], from the errors of blocks `alone`, by (block, precision). A form that
    was not measured alone starts from the block's whole int8 form."""
    int8 = int8_of(precisions).name
    forms = {precision.name: precision for precision in precisions}
    start = np.zeros(len(columns.own) + len(columns.edge))
    edges = Counter(reader for _, reader in columns.edge)
    index_of = {key: column for column, key in enumerate(columns.own)}
    for column, (block, name) in enumerate(columns.own):
        key = (block, name) if (block, name) in alone else (block, int8)
        share = 1.0 if key == (block, name) else _ANCHOR_SHARE
        reads_int8 = forms[name].scheme is not None and block in edges
        start[column] = share * alone[key] ** 2 * (_OWN_SHARE if reads_int8 else 1.0)
    for index, (_, reader) in enumerate(columns.edge):
        rest = alone[reader, int8] ** 2 - start[index_of[reader, int8]]
        start[len(columns.own) + index] = rest / edges[reader]
    return start
