"""The planning problem as a mixed-integer program. Pure: tables in, matrix out; knows no solver.

One binary per block and precision; w is "the producer writes int8", r "the reader reads int8", both sums of binaries.
A flow from a float producer is quantised once per tensor somebody reads as int8 (z ≥ r − w; one z for a float block,
one for a float activation behind an int8 anchor, whose tensors have another layout), a flow from an int8
producer is dequantised once per float reader (d ≥ w − r), and quantising for one reader adds that reader's edge noise
(y ≥ r − w). Noises are not negative, and a cost that is gets upper bounds to match, so z, d and y are integral without
being asked to.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from taglio.error.model import ErrorModel, OutputModel
from taglio.model.graph import Flow, Graph, flows
from taglio.profile.result import Glue, Profile, anchor_costs
from taglio.quantize.effective import fuses_when_surrounded
from taglio.quantize.precision import FLOAT32, Precision

# Milliseconds keep the solver's absolute tolerances far below any time that matters.
_MS = 1e3
_FORBIDDEN = 10.0


@dataclass(slots=True)
class Program:
    """minimise constant + cost·v, rows low ≤ A v ≤ high, 0 ≤ v ≤ 1; `integral` marks the binaries. Costs in ms."""

    cost: list[float] = field(default_factory=list)
    integral: list[bool] = field(default_factory=list)
    names: list[tuple[str, ...]] = field(default_factory=list)
    rows: list[tuple[float, float, dict[int, float]]] = field(default_factory=list)
    constant: float = 0.0

    def variable(self, name: tuple[str, ...], cost: float, integral: bool) -> int:
        """Add a variable and return its column."""
        self.cost.append(cost)
        self.integral.append(integral)
        self.names.append(name)
        return len(self.cost) - 1

    def row(self, low: float, high: float, terms: Mapping[int, float]) -> None:
        """Add a constraint."""
        self.rows.append((low, high, dict(terms)))


@dataclass(frozen=True, slots=True)
class Choice:
    """Columns of a block's precisions, by name; empty where the block has but one."""

    columns: dict[str, int]


INFINITY = float("inf")


def formulate(
    graph: Graph,
    profile: Profile,
    error: ErrorModel | None,
    noise_limits: Mapping[str, float],
    allowed: Mapping[str, Sequence[Precision]],
) -> Program:
    """The program of the fastest assignment.

    `allowed` lists the precisions of every block that has a choice (float32 included where it may stay float);
    `noise_limits` bounds the noise sum of each output that `error` models.
    """
    program = Program()
    times, glue = profile.block_times(), profile.glue_map()
    columns: dict[str, dict[str, int]] = {}
    for block in graph.blocks:
        options = allowed.get(block.name)
        if options is None:
            program.constant += _MS * times.get((block.name, "float32"), 0.0)
            continue
        columns[block.name] = {
            option.name: program.variable(
                ("block", block.name, option.name), _MS * times.get((block.name, option.name), 0.0), True
            )
            for option in options
        }
        program.row(1.0, 1.0, dict.fromkeys(columns[block.name].values(), 1.0))
    writes = {
        name: [columns[name][option.name] for option in options if option.int8_output]
        for name, options in allowed.items()
    }
    reads = {
        name: [columns[name][option.name] for option in options if option.scheme is not None]
        for name, options in allowed.items()
    }
    behind_anchor = {
        name: [columns[name][option.name] for option in options if option.scheme is not None and not option.int8_output]
        for name, options in allowed.items()
    }
    edges: dict[tuple[str, str], int] = {}
    states = _States(columns, writes, reads, behind_anchor)
    for flow in flows(graph):
        _flow(program, flow, glue[flow.name], states, edges if noise_limits else None)
    if error is not None:
        for output in error.outputs:
            if output.output in noise_limits:
                _noise_row(program, output, noise_limits[output.output], columns, edges)
    _surrounded(program, graph, columns, writes, reads)
    return program


@dataclass(frozen=True, slots=True)
class _States:
    """Columns by block: of each precision; of those that write int8, read it, or write float behind an anchor."""

    precisions: Mapping[str, Mapping[str, int]]
    writes: Mapping[str, Sequence[int]]
    reads: Mapping[str, Sequence[int]]
    behind_anchor: Mapping[str, Sequence[int]]


def _flow(program: Program, flow: Flow, cost: Glue, states: _States, edges: dict[tuple[str, str], int] | None) -> None:
    """What a flow costs by who writes and reads it; and, where noise is limited, its columns in `edges`."""
    anchor_base, anchor_each = anchor_costs(cost)
    producer = flow.producer or ""
    w, a = states.writes.get(producer, []), states.behind_anchor.get(producer, [])
    floats = [column for name, column in states.precisions.get(producer, {}).items() if name == FLOAT32.name]
    program.constant += _MS * cost.float_s
    for column in w:
        program.cost[column] += _MS * (cost.int8_s - cost.float_s)
    for column in a:
        program.cost[column] += _MS * (anchor_base - cost.float_s)
    asked: dict[str, list[Sequence[int]]] = {}
    for tensor, reader in flow.readers:
        r = states.reads.get(reader, [])
        if not r:
            for column in w:
                program.cost[column] += _MS * cost.dequantize_s
            continue
        asked.setdefault(tensor, []).append(r)
        if w:
            _when(program, ("dequantize", tensor, reader), cost.dequantize_s, [w], r)
        if edges is not None and (flow.name, reader) not in edges:
            edges[flow.name, reader] = _when(program, ("edge", flow.name, reader), 0.0, [r], w)
    for tensor, readers in asked.items():
        _when(program, ("quantize", tensor), cost.quantize_s, readers, [*w, *a])
        if a:
            _when(program, ("quantize anchor", tensor), anchor_each, readers, [*w, *floats])


def _when(
    program: Program, name: tuple[str, ...], seconds: float, reasons: Sequence[Sequence[int]], unless: Sequence[int]
) -> int:
    """A variable that is 1 where any of `reasons` is and `unless` is not, at a cost; each is a sum of columns."""
    column = program.variable(name, _MS * seconds, False)
    for reason in reasons:
        program.row(0.0, INFINITY, {**dict.fromkeys(unless, 1.0), **dict.fromkeys(reason, -1.0), column: 1.0})
    if seconds < 0.0:  # or it would be taken without a reason
        program.row(
            -INFINITY, 0.0, {**dict.fromkeys([each for reason in reasons for each in reason], -1.0), column: 1.0}
        )
        program.row(-INFINITY, 1.0, {**dict.fromkeys(unless, 1.0), column: 1.0})
    return column


def _noise_row(
    program: Program,
    output: OutputModel,
    limit: float,
    columns: Mapping[str, Mapping[str, int]],
    edges: Mapping[tuple[str, str], int],
) -> None:
    terms: dict[int, float] = {}
    for own in output.blocks:
        column = columns.get(own.block, {}).get(own.precision)
        if column is not None:
            terms[column] = _share(own.own, limit)
    for edge in output.edges:
        column = edges.get((edge.flow, edge.reader))
        if column is not None:
            terms[column] = _share(edge.noise, limit)
    program.row(-INFINITY, 1.0, terms)


def _share(noise: float, limit: float) -> float:
    """A term's share of the limit. Beyond 1 the term alone is too much and how much no longer matters: capped, so that
    a tiny limit cannot overflow the program."""
    return min(noise / limit, _FORBIDDEN) if limit > 0.0 else _FORBIDDEN * (noise > 0.0)


def _surrounded(
    program: Program,
    graph: Graph,
    columns: Mapping[str, Mapping[str, int]],
    writes: Mapping[str, Sequence[int]],
    reads: Mapping[str, Sequence[int]],
) -> None:
    """A weightless block between int8 blocks only cannot stay float (see quantize/effective.py)."""
    source = {tensor: flow.producer or "" for flow in flows(graph) for tensor in flow.tensors}
    readers: dict[str, list[str]] = {}
    for flow in flows(graph):
        if flow.producer:
            readers.setdefault(flow.producer, []).extend(reader for _, reader in flow.readers)
    for block in graph.blocks:
        own = columns.get(block.name)
        if own is None or not fuses_when_surrounded(block):
            continue
        around = [writes.get(source.get(name, ""), []) for name in block.inputs]
        around += [reads.get(reader, []) for reader in readers.get(block.name, [])]
        if not around or any(not each for each in around):
            continue
        # Held in float by the user, such a block must not be surrounded: ONNX Runtime would run it in int8.
        terms = {own["int8"]: 1.0} if "int8" in own else {}
        for each in around:
            for column in each:
                terms[column] = terms.get(column, 0.0) - 1.0
        program.row(1.0 - len(around), INFINITY, terms)
