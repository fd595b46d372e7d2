"""Turn graphs, profiles, error models, a cluster and limits into one numeric `Problem`. Solves nothing.

Each model's blocks become nodes (block_tables.py) and its tensors values; resources.py says what is minimised and
limited.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np

from taglio.cluster.devices import Cluster
from taglio.cluster.planning.block_tables import BlockTables
from taglio.cluster.planning.problem import (
    CALLER,
    SOURCE,
    Form,
    Kind,
    Memory,
    NoiseBound,
    Problem,
    Values,
)
from taglio.cluster.planning.resources import request_shares, resources
from taglio.cluster.planning.workload import Objective, Workload
from taglio.error.model import OutputModel
from taglio.errors import BadOption
from taglio.model.graph import Graph
from taglio.plan.result import Placement
from taglio.quantize.precision import FLOAT32, Assignment

_KINDS = {
    "float32": (Kind.FLOAT, Kind.FLOAT),
    "int8": (Kind.INT8, Kind.INT8),
    "int8-anchor": (Kind.INT8, Kind.FLOAT),
    "int8-weights": (Kind.FLOAT, Kind.FLOAT),
    "int8-dynamic": (Kind.FLOAT, Kind.FLOAT),
    "int4-weights": (Kind.FLOAT, Kind.FLOAT),
}
# A noise that exceeds every bound, for choices whose noise was never measured.
_FORBIDDEN = 10.0


@dataclass(frozen=True, slots=True, eq=False)
class Assembled:
    """A problem and the position of each model's nodes in it; `overhead_s` is (model, device)."""

    problem: Problem
    workloads: tuple[Workload, ...]
    cluster: Cluster
    first_node: tuple[int, ...]
    overhead_s: np.ndarray

    def nodes(self, model: int) -> range:
        """Node numbers of a model, in the order of its graph's blocks."""
        return range(self.first_node[model], self.first_node[model] + len(self.workloads[model].graph.blocks))

    def with_problem(self, **changes: Any) -> "Assembled":
        """A copy whose problem differs in these fields."""
        return replace(self, problem=replace(self.problem, **changes))


def assemble(workloads: Sequence[Workload], cluster: Cluster, objective: Objective) -> Assembled:
    """The problem of placing `workloads` on `cluster`. Raises BadOption for pins that contradict each other."""
    forms = _forms(workloads)
    parts = [BlockTables(workload, cluster, forms) for workload in workloads]
    first_node = tuple(accumulate([len(part.blocks) for part in parts[:-1]], initial=0))
    shares = request_shares(workloads)
    overhead = np.array([part.overhead_s() for part in parts])
    capacity = np.array([device.memory_bytes for device in cluster.devices])
    many = len(workloads) > 1
    problem = Problem(
        devices=tuple(device.name for device in cluster.devices),
        forms=tuple(forms),
        nodes=tuple(f"{p.workload.name}/{b.name}" if many else b.name for p in parts for b in p.blocks),
        model=np.repeat(np.arange(len(parts)), [len(part.blocks) for part in parts]),
        seconds=np.concatenate([part.seconds() for part in parts]),
        allowed=np.concatenate([part.allowed() for part in parts]),
        values=_values(parts, first_node, [device.name for device in cluster.devices].index(cluster.start)),
        resources=resources(workloads, cluster, objective),
        noises=_noises(parts, forms),
        memory=Memory(capacity, np.concatenate([part.weights() for part in parts]), bool(np.isfinite(capacity).any())),
        implications=tuple(
            rule for part, first in zip(parts, first_node, strict=True) for rule in part.surrounded(first)
        ),
        # A model without int8 forms has no calibrated tensors, so none can be sent as int8.
        wire_only=all(workload.error is None or bool(workload.error.outputs) for workload in workloads),
        constant=objective.latency * float(shares @ overhead.min(axis=1)),
    )
    return Assembled(problem, tuple(workloads), cluster, first_node, overhead)


def _forms(workloads: Sequence[Workload]) -> list[Form]:
    """The forms of all precisions."""
    names = dict.fromkeys(precision.name for workload in workloads for precision in workload.precisions)
    return [Form(name, *_KINDS[name]) for name in names]


def _values(parts: Sequence[BlockTables], first_node: Sequence[int], start: int) -> Values:
    names, producer, model, offsets, readers, strict = [], [], [], [0], [], []
    quantize, dequantize, float_bytes, int8_bytes = [], [], [], []
    for m, part in enumerate(parts):
        flow_of = {tensor: flow.name for flow in part.flows for tensor in flow.tensors}
        costs = [part.profiles[device.name].glue_map() for device in part.cluster.devices]
        for tensor in part.graph.tensors:
            names.append(tensor.name)
            producer.append(SOURCE if tensor.producer is None else first_node[m] + part.index[tensor.producer])
            model.append(m)
            for reader in part.readers[tensor.name]:
                block = part.blocks[part.index[reader]] if reader else None
                readers.append(first_node[m] + part.index[reader] if reader else CALLER)
                strict.append(block is not None and block.carries and block.inputs[0] == tensor.name)
            offsets.append(len(readers))
            glue = [cost[flow_of[tensor.name]] for cost in costs]
            quantize.append([flow_cost.quantize_s for flow_cost in glue])
            dequantize.append([flow_cost.dequantize_s for flow_cost in glue])
            float_bytes.append(float(tensor.float_bytes))
            int8_bytes.append(float(tensor.int8_bytes))
    count = len(names)
    return Values(
        names=tuple(names),
        producer=np.array(producer, int),
        home=np.full(count, start),
        model=np.array(model, int),
        start=np.array(offsets, int),
        readers=np.array(readers, int),
        strict=np.array(strict, bool),
        quantize_s=np.array(quantize, float).reshape(count, -1),
        dequantize_s=np.array(dequantize, float).reshape(count, -1),
        float_bytes=np.array(float_bytes),
        int8_bytes=np.array(int8_bytes),
    )


def _noises(parts: Sequence[BlockTables], forms: Sequence[Form]) -> tuple[NoiseBound, ...]:
    """One bound per limited output, as shares of the limit."""
    columns, noise_bounds = {form.name: f for f, form in enumerate(forms)}, []
    for index, part in enumerate(parts):
        error, bounds = part.workload.error, part.workload.noise_limits or {}
        for output in error.outputs if error is not None else ():
            if output.output not in bounds:
                continue
            limit = bounds[output.output]
            own = [np.zeros((len(other.blocks), len(forms))) for other in parts]
            edges = [np.zeros((2, sum(map(len, other.readers.values())))) for other in parts]
            for term in output.blocks:
                if term.precision in columns:  # the error model may know bfloat16, which is for one machine only
                    own[index][part.index[term.block], columns[term.precision]] = share(term.own, limit)
            edges[index] = _edge_noise(part, output, limit)
            name = f"error of {part.workload.name}, {output.output}" if len(parts) > 1 else f"error of {output.output}"
            change, wire = np.concatenate(edges, axis=1)
            noise_bounds.append(NoiseBound(name, np.concatenate(own), change, wire, 1.0))
    return tuple(noise_bounds)


def _edge_noise(part: BlockTables, output: OutputModel, limit: float) -> np.ndarray:
    """Noise by edge of quantising a float value for an int8 reader, and for the wire only (2, edges): the measured
    noise of the readers behind it, forbidden if any of them was not measured."""
    measured = {(term.flow, term.reader): share(term.noise, limit) for term in output.edges}
    flow_of = {tensor: flow.name for flow in part.flows for tensor in flow.tensors}
    counted: set[tuple[str, str]] = set()
    noises = []
    for tensor, readers in part.readers.items():
        for reader in readers:
            key = (flow_of[tensor], reader)
            behind = behind_tensor(part.graph, tensor, reader) if reader else ("",)
            wire = sum(measured.get((flow_of[tensor], name), _FORBIDDEN) for name in behind)
            noises.append((0.0 if key in counted else measured.get(key, 0.0), wire))
            counted.add(key)
    return np.array(noises).reshape(-1, 2).T


def behind_tensor(graph: Graph, tensor: str, reader: str) -> tuple[str, ...]:
    """Blocks that compute with `tensor` as read by `reader`: `reader` itself, or all readers behind it if it only moves
    values; "" is the caller."""
    tensors, blocks = graph.tensor_map(), {block.name: block for block in graph.blocks}
    computing_blocks: dict[str, None] = {}
    waiting = [(tensor, reader)]
    for tensor_name, block_name in waiting:  # grows during the loop
        block = blocks[block_name]
        if not (block.carries and block.inputs[0] == tensor_name):
            computing_blocks[block_name] = None
            continue
        for output in block.outputs:
            waiting += [(output, consumer) for consumer in tensors[output].consumers]
            if output in graph.outputs:
                computing_blocks[""] = None
    return tuple(computing_blocks)


def share(noise: float, limit: float) -> float:
    """A term's share of a limit, capped so that a tiny limit cannot overflow: above 1 the term alone breaks the limit,
    by however much."""
    return min(noise / limit, _FORBIDDEN) if limit > 0.0 else _FORBIDDEN * (noise > 0.0)


def labels_of(assembled: Assembled, model: int, devices: Mapping[str, str], assignment: Assignment) -> list[int]:
    """Labels of one model's nodes; a movement block keeps the form that its input's producer wrote.

    Raises BadOption for a device that is not in the cluster.
    """
    problem, graph = assembled.problem, assembled.workloads[model].graph
    columns = {form.name: index for index, form in enumerate(problem.forms)}
    rows = {name: index for index, name in enumerate(problem.devices)}
    tensors = graph.tensor_map()
    carried = next((form.name for form in problem.forms if form.reads == form.writes == Kind.INT8), FLOAT32.name)
    kinds: dict[str, Kind] = {}
    labels = []
    for block in graph.blocks:
        name = assignment[block.name].name if block.name in assignment else FLOAT32.name
        if block.carries:
            kind = kinds.get(tensors[block.inputs[0]].producer or "", Kind.FLOAT)
            name = carried if kind == Kind.INT8 else FLOAT32.name
        if devices[block.name] not in rows:
            raise BadOption(f'block {block.name} is placed on "{devices[block.name]}", which is not in the cluster')
        kinds[block.name] = problem.forms[columns[name]].writes
        labels.append(problem.label(rows[devices[block.name]], columns[name]))
    return labels


def placements_of(
    assembled: Assembled, model: int, labels: Sequence[int], levels: Sequence[int] = ()
) -> tuple[Placement, ...]:
    """Placements of one model's blocks, from `labels` and optional `levels` of all nodes of the problem."""
    problem = assembled.problem
    placements = []
    for node, block in zip(assembled.nodes(model), assembled.workloads[model].graph.blocks, strict=True):
        device, form = problem.split(labels[node])
        level = levels[node] if levels else 0
        placements.append(Placement(block.name, problem.devices[device], problem.forms[form].name, level))
    return tuple(placements)
