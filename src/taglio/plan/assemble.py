"""From graphs, profiles, error models, a cluster and limits to one `Problem` of numbers. Solves nothing.

Each model's blocks become nodes and its tensors values. What a flow costs that does not depend on a change of type goes
to the movement blocks that carry it, shared by the elements they write, or to its producer where nothing moves it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from taglio.cluster.devices import Cluster
from taglio.error.model import OutputModel
from taglio.errors import BadOption
from taglio.model.graph import Graph
from taglio.plan.problem import CALLER, SOURCE, Form, Kind, Memory, NoiseBound, Problem, Values
from taglio.plan.result import Placement
from taglio.plan.tables import BlockTables, request_shares, resources
from taglio.plan.workload import Goal, Workload
from taglio.profile.result import anchor_costs
from taglio.quantize.precision import FLOAT32, Assignment, Precision

_KINDS = {"float": (Kind.FLOAT, Kind.FLOAT), "whole": (Kind.INT8, Kind.INT8), "anchor": (Kind.INT8, Kind.ANCHOR)}
# Movement behind an int8 anchor carries that layout on; to everybody else it is in float.
CARRY_ANCHOR = "float32, behind an anchor"
# A noise that no bound allows: what was never measured may not be used.
_FORBIDDEN = 10.0


@dataclass(frozen=True, slots=True, eq=False)
class Assembled:
    """A problem and where each model's nodes and values stand in it; `overhead_s` is (model, device)."""

    problem: Problem
    workloads: tuple[Workload, ...]
    cluster: Cluster
    first_node: tuple[int, ...]
    first_value: tuple[int, ...]
    overhead_s: np.ndarray

    def nodes(self, model: int) -> range:
        """Nodes of a model: its graph's blocks in order."""
        return range(self.first_node[model], self.first_node[model] + len(self.workloads[model].graph.blocks))


def assemble(workloads: Sequence[Workload], cluster: Cluster, goal: Goal, *, wire_only: bool = True) -> Assembled:
    """The problem of placing `workloads` on `cluster`. Raises BadOption for pins that contradict each other."""
    forms = _forms(workloads)
    parts = [BlockTables(workload, cluster, forms) for workload in workloads]
    first_node = _offsets([len(part.blocks) for part in parts])
    first_value = _offsets([len(part.graph.tensors) for part in parts])
    shares = request_shares(workloads)
    overhead = np.array([part.overhead_s() for part in parts])
    capacity = np.array([device.memory_bytes if not device.processor else inf for device in cluster.devices])
    names = [device.name for device in cluster.devices]
    memory_of = np.array([names.index(cluster.processor(name)) for name in names])
    many = len(workloads) > 1
    problem = Problem(
        devices=tuple(device.name for device in cluster.devices),
        forms=tuple(forms),
        nodes=tuple(f"{p.workload.name}/{b.name}" if many else b.name for p in parts for b in p.blocks),
        model=np.repeat(np.arange(len(parts)), [len(part.blocks) for part in parts]),
        seconds=np.concatenate([part.seconds() for part in parts]),
        allowed=np.concatenate([part.allowed() for part in parts]),
        values=_values(parts, first_node, [device.name for device in cluster.devices].index(cluster.start)),
        resources=resources(workloads, cluster, goal),
        noises=_noises(parts, forms),
        memory=Memory(
            capacity, np.concatenate([part.weights() for part in parts]), bool(np.isfinite(capacity).any()), memory_of
        ),
        implications=tuple(each for part, at in zip(parts, first_node, strict=True) for each in part.surrounded(at)),
        # Of a model without int8 forms no tensor has been tried, and none has a range.
        wire_only=wire_only
        and len(cluster.devices) > 1
        and all(each.error is None or bool(each.error.outputs) for each in workloads),
        constant=goal.latency * float(shares @ overhead.min(axis=1)),
    )
    problem.check()
    return Assembled(problem, tuple(workloads), cluster, first_node, first_value, overhead)


def _forms(workloads: Sequence[Workload]) -> list[Form]:
    """The forms of all precisions, and what movement behind an int8 anchor has."""
    names = dict.fromkeys((each.name, each.form) for workload in workloads for each in workload.precisions)
    forms = [Form(name, *_KINDS[form]) for name, form in names]
    if any(form.writes == Kind.ANCHOR for form in forms):
        forms.append(Form(CARRY_ANCHOR, Kind.ANCHOR, Kind.ANCHOR))
    return forms


def _offsets(sizes: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(each) for each in np.concatenate([[0], np.cumsum(sizes)[:-1]]))


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
            for reader in tensor.consumers:
                block = part.graph.blocks[part.index[reader]]
                readers.append(first_node[m] + part.index[reader])
                strict.append(part.carries(block) and block.inputs[0] == tensor.name)
            if tensor.name in part.graph.outputs:
                readers.append(CALLER)
                strict.append(False)
            offsets.append(len(readers))
            glue = [cost[flow_of[tensor.name]] for cost in costs]
            quantize.append([[each.quantize_s for each in glue], [anchor_costs(each)[1] for each in glue]])
            dequantize.append([each.dequantize_s for each in glue])
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
        quantize_s=np.array(quantize, float).reshape(count, 2, -1),
        dequantize_s=np.array(dequantize, float).reshape(count, -1),
        float_bytes=np.array(float_bytes),
        int8_bytes=np.array(int8_bytes),
    )


def _noises(parts: Sequence[BlockTables], forms: Sequence[Form]) -> tuple[NoiseBound, ...]:
    """One bound per output that its model bounds, in shares of what is allowed."""
    total, edges = sum(len(part.blocks) for part in parts), sum(_edge_count(part) for part in parts)
    found, node, edge = [], 0, 0
    for part in parts:
        error, bounds = part.workload.error, part.workload.noise_limits or {}
        for output in error.outputs if error is not None else ():
            if output.output not in bounds:
                continue
            limit = bounds[output.output]
            own, change, wire = np.zeros((total, len(forms))), np.zeros(edges), np.zeros(edges)
            columns = {form.name: f for f, form in enumerate(forms)}
            for each in output.blocks:
                own[node + part.index[each.block], columns[each.precision]] = share(each.own, limit)
            size = _edge_count(part)
            change[edge : edge + size], wire[edge : edge + size] = _edge_noise(part, output, limit)
            name = f"error of {part.workload.name}, {output.output}" if len(parts) > 1 else f"error of {output.output}"
            found.append(NoiseBound(name, own, change, wire, 1.0))
        node, edge = node + len(part.blocks), edge + _edge_count(part)
    return tuple(found)


def _edge_count(part: BlockTables) -> int:
    return sum(len(tensor.consumers) + (tensor.name in part.graph.outputs) for tensor in part.graph.tensors)


def _edge_noise(part: BlockTables, output: OutputModel, limit: float) -> tuple[np.ndarray, np.ndarray]:
    """Noise by edge of quantising a float value for an int8 reader, and for the wire alone: what the readers behind it
    were measured to suffer, and forbidden where one of them was not."""
    known = {(each.flow, each.reader): share(each.noise, limit) for each in output.edges}
    flow_of = {tensor: flow for flow in part.flows for tensor in flow.tensors}
    counted: set[tuple[str, str]] = set()
    change, wire = [], []
    for tensor in part.graph.tensors:
        flow = flow_of[tensor.name]
        for reader in tensor.consumers:
            key = (flow.name, reader)
            change.append(0.0 if key in counted else known.get(key, 0.0))
            counted.add(key)
            behind = behind_tensor(part.graph, tensor.name, reader)
            wire.append(sum(known.get((flow.name, each), _FORBIDDEN) for each in behind))
        if tensor.name in part.graph.outputs:
            change.append(0.0)
            wire.append(_FORBIDDEN)
    return np.array(change), np.array(wire)


def behind_tensor(graph: Graph, tensor: str, reader: str) -> tuple[str, ...]:
    """Who computes with what `reader` takes from `tensor`: itself, or all behind it where it only moves values on; ""
    is the caller."""
    tensors, blocks = graph.tensor_map(), {block.name: block for block in graph.blocks}
    found: dict[str, None] = {}
    waiting = [(tensor, reader)]
    for name, each in waiting:  # grows while it is walked
        block = blocks[each]
        if not (block.movement and block.quantizable and block.inputs[0] == name):
            found[each] = None
            continue
        for made in block.outputs:
            waiting += [(made, consumer) for consumer in tensors[made].consumers]
            if made in graph.outputs:
                found[""] = None
    return tuple(found)


def share(noise: float, limit: float) -> float:
    """A term's share of a limit. Beyond 1 the term alone is too much and how much no longer matters: capped, so that a
    tiny limit cannot overflow."""
    return min(noise / limit, _FORBIDDEN) if limit > 0.0 else _FORBIDDEN * (noise > 0.0)


def labels_of(assembled: Assembled, model: int, devices: Mapping[str, str], assignment: Assignment) -> list[int]:
    """Labels of one model's nodes; a movement block carries on what its input's producer wrote.

    Raises BadOption for a device that the cluster lacks.
    """
    problem, graph = assembled.problem, assembled.workloads[model].graph
    columns = {form.name: index for index, form in enumerate(problem.forms)}
    rows = {name: index for index, name in enumerate(problem.devices)}
    tensors = graph.tensor_map()
    kinds: dict[str, Kind] = {}
    labels = []
    for block in graph.blocks:
        name = assignment[block.name].name if block.name in assignment else FLOAT32.name
        if block.movement and block.quantizable:
            kind = kinds.get(tensors[block.inputs[0]].producer or "", Kind.FLOAT)
            name = {Kind.FLOAT: FLOAT32.name, Kind.ANCHOR: CARRY_ANCHOR}.get(kind) or _carried(assembled)
        if devices[block.name] not in rows:
            raise BadOption(f'block {block.name} is placed on "{devices[block.name]}", which is not in the cluster')
        kinds[block.name] = problem.forms[columns[name]].writes
        labels.append(problem.label(rows[devices[block.name]], columns[name]))
    return labels


def placements_of(
    assembled: Assembled, model: int, labels: Sequence[int], stages: Sequence[int] = ()
) -> tuple[Placement, ...]:
    """Placements of one model's blocks; `labels` are those of all nodes, and so are `stages` where there are any."""
    problem = assembled.problem
    found = []
    for node, block in zip(assembled.nodes(model), assembled.workloads[model].graph.blocks, strict=True):
        device, form = problem.split(labels[node])
        name = problem.forms[form].name
        name = FLOAT32.name if name == CARRY_ANCHOR else name
        found.append(Placement(block.name, problem.devices[device], name, stages[node] if stages else 0))
    return tuple(found)


def assignment_of(assembled: Assembled, model: int, placements: Sequence[Placement]) -> dict[str, Precision]:
    """Precision by block, those in float32 left out."""
    known = {each.name: each for each in assembled.workloads[model].precisions}
    return {each.block: known[each.precision] for each in placements if each.precision != FLOAT32.name}


def _carried(assembled: Assembled) -> str:
    """The name of the form in which movement carries int8."""
    return next(form.name for form in assembled.problem.forms if form.reads == form.writes == Kind.INT8)
