"""Turn graphs, profiles, error models, a cluster and limits into one numeric `Problem`. Solves nothing.

Each model's blocks become nodes and its tensors values. The part of a flow's cost that does not depend on a change of
type is charged to the movement blocks that carry the flow, in proportion to the elements they write, or to its producer
if nothing moves it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import accumulate
from math import inf, isfinite
from typing import Any

import numpy as np

from taglio.cluster.devices import Cluster, Device
from taglio.cluster.planning.problem import (
    CALLER,
    ENERGY,
    LATENCY,
    SOURCE,
    Form,
    Implication,
    Kind,
    Memory,
    NoiseBound,
    Problem,
    Resource,
    Values,
)
from taglio.cluster.planning.workload import Objective, Workload
from taglio.error.model import OutputModel
from taglio.errors import BadOption
from taglio.model.graph import Block, Flow, Graph
from taglio.plan.result import Placement
from taglio.profile.result import anchor_costs
from taglio.quantize.effective import fuses_when_surrounded
from taglio.quantize.precision import FLOAT32, Assignment


class BlockTables:
    """One model's share of the problem. Arrays are (block, device, form)."""

    def __init__(self, workload: Workload, cluster: Cluster, forms: Sequence[Form]) -> None:
        self.workload, self.cluster, self.forms = workload, cluster, forms
        self.graph, self.blocks, self.limits = workload.graph, workload.graph.blocks, workload.limits
        self.profiles = workload.profiles
        self.index = {block.name: position for position, block in enumerate(self.blocks)}
        self.flows = self.graph.flows
        self.precision = {precision.name: precision for precision in workload.precisions}
        # By tensor, the blocks that read it, and "" if the caller does.
        self.readers = {
            tensor.name: (*tensor.consumers, *([""] if tensor.name in self.graph.outputs else []))
            for tensor in self.graph.tensors
        }

    def seconds(self) -> np.ndarray:
        """Seconds of every block (block, device, form), including the flows' type-independent costs."""
        table = np.zeros((len(self.blocks), len(self.cluster.devices), len(self.forms)))
        tensors = self.graph.tensor_map()
        for d, device in enumerate(self.cluster.devices):
            profile = self.profiles[device.name]
            times, glue = profile.block_times(), profile.glue_map()
            for f, form in enumerate(self.forms):
                for b, block in enumerate(self.blocks):
                    table[b, d, f] = times.get((block.name, form.name), 0.0)
            for flow in self.flows:
                cost = glue[flow.name]
                base = {Kind.FLOAT: cost.float_s, Kind.ANCHOR: anchor_costs(cost)[0], Kind.INT8: cost.int8_s}
                sizes = [sum(tensors[name].elements for name in self.graph.block(move).outputs) for move in flow.moves]
                for bearer, share in self._bearers(flow, sizes):
                    for f, form in enumerate(self.forms):
                        table[self.index[bearer], d, f] += (
                            share * base[Kind.FLOAT if flow.producer is None else form.writes]
                        )
        return table

    def overhead_s(self) -> np.ndarray:
        """Seconds of a run on each device that belong to no block, including flows that nobody reads."""
        unread = [flow.name for flow in self.flows if not self._bearers(flow, [0] * len(flow.moves))]
        profiles = [self.profiles[device.name] for device in self.cluster.devices]
        return np.array([p.overhead_s + sum(p.glue_map()[name].float_s for name in unread) for p in profiles])

    def _bearers(self, flow: Flow, sizes: Sequence[int]) -> list[tuple[str, float]]:
        """The blocks that are charged a flow's type-independent cost, each with its share."""
        if flow.moves:
            total = sum(sizes)
            return [(m, s / total if total else 1.0 / len(sizes)) for m, s in zip(flow.moves, sizes, strict=True)]
        if flow.producer is not None:
            return [(flow.producer, 1.0)]
        readers = [reader for _, reader in flow.readers if reader]
        return [(readers[0], 1.0)] if readers else []

    def allowed(self) -> np.ndarray:
        """Labels that each block may take, as a mask. Raises BadOption for a block without any."""
        table = np.zeros((len(self.blocks), len(self.cluster.devices), len(self.forms)), bool)
        pinned, excluded = dict(self.limits.device_pins), set(self.limits.device_exclusions)
        for b, block in enumerate(self.blocks):
            places = [
                device
                for device in self.cluster.devices
                if pinned.get(block.name, device.name) == device.name
                and (block.name, device.name) not in excluded
                and not never(device, block)
            ]
            if not places:
                raise BadOption(
                    f"block {block.name} ({block.kind}) cannot run on any device: loosen a pin or a never list"
                )
            for d, device in enumerate(self.cluster.devices):
                for f, form in enumerate(self.forms):
                    table[b, d, f] = device in places and self._may(block, form, device)
            if not table[b].any():
                raise BadOption(f"block {block.name} has no form that its pins and devices allow: remove a pin")
        return table

    def _may(self, block: Block, form: Form, device: Device) -> bool:
        if form.name != FLOAT32.name and not device.int8:
            return False
        precision = self.precision.get(form.name)
        if block.carries:  # no form of products, though these read and write float too
            fits = precision is not None and precision.fits(block)
            return form.reads == form.writes and (fits or form.name == CARRY_ANCHOR)
        if precision is None or not precision.fits(block) or (block.movement and precision.form != "float"):
            return False
        if block.name in self.limits.float_blocks:
            return precision.form == "float"
        return block.name not in self.limits.int8_blocks or precision.scheme is not None

    def weights(self) -> np.ndarray:
        """Bytes of weights and states (block, form)."""
        # Movement behind an anchor has no weights.
        bits = [self.precision[form.name].weight_bits if form.name in self.precision else 8 for form in self.forms]
        return np.array(
            [[float(block.weight_bytes(form_bits)) + block.state_bytes for form_bits in bits] for block in self.blocks]
        )

    def surrounded(self, start: int) -> list[Implication]:
        """Rules that a weightless block with only int8 neighbours cannot stay float (see quantize/effective.py)."""
        source = {tensor: flow.producer for flow in self.flows for tensor in flow.tensors}
        readers: dict[str, list[str]] = {}
        for flow in self.flows:
            if flow.producer:
                readers.setdefault(flow.producer, []).extend(reader for _, reader in flow.readers)
        kinds = np.tile(np.array([(form.reads, form.writes) for form in self.forms]).T, len(self.cluster.devices))
        float_label, writes, reads = kinds[0] == Kind.FLOAT, kinds[1] == Kind.INT8, kinds[0] == Kind.INT8
        implications = []
        for b, block in enumerate(self.blocks):
            if not fuses_when_surrounded(block):
                continue
            around = [(source.get(name), writes) for name in block.inputs]
            around += [(reader or None, reads) for reader in readers.get(block.name, [])]
            if not around or not readers.get(block.name) or any(name is None for name, _ in around):
                continue
            neighbours = tuple((start + self.index[name], mask) for name, mask in around if name is not None)
            implications.append(Implication(start + b, float_label, neighbours))
        return implications


def never(device: Device, block: Block) -> bool:
    """Whether the cluster file forbids `block` on `device`, by operator type or by name."""
    names = (block.name, *block.operators, *block.kind.split("+"))
    return any(fnmatchcase(name, pattern) for pattern in device.never for name in names)


def request_shares(workloads: Sequence[Workload]) -> np.ndarray:
    """Each model's share of all requests; equal shares if no rates are given."""
    rates = np.array([1.0 if workload.rate_per_s is None else workload.rate_per_s for workload in workloads])
    return np.asarray(rates / rates.sum())


def resources(workloads: Sequence[Workload], cluster: Cluster, objective: Objective) -> tuple[Resource, ...]:
    """Seconds and joules per request of each model, energy caps of devices, and busy shares of devices and links.

    If request rates are given, no device or link may be busy for more than one second per second.
    """
    count, models = len(cluster.devices), len(workloads)
    delay, per_byte, joules, _ = _between(cluster)
    watts = np.array([device.active_watts for device in cluster.devices])
    none, no_links = np.zeros(count), np.zeros((count, count))
    shares = request_shares(workloads)
    no_link = np.where(np.isinf(delay), 1.0, 0.0)
    delay, per_byte = np.nan_to_num(delay, posinf=0.0), np.nan_to_num(per_byte, posinf=0.0)
    # Counts copies between devices that have no link.
    unlinked = Resource("devices without a link", none, no_link, no_links, np.ones(models), upper=0.0)
    quantities = [unlinked] if no_link.any() else []
    request_s = cluster.device(cluster.start).request_s
    for index, workload in enumerate(workloads):
        mask = np.eye(models)[index]
        name = f" of {workload.name}" if models > 1 else ""
        per_s, per_joule = (float(shares[index]) * weight for weight in (objective.latency, objective.energy))
        # The start device's fixed cost per request is subtracted from a limit. A limit that it uses up is impossible to
        # keep, but stays positive.
        latest_s = max(_upper(workload.limits.max_latency_s) - request_s, 1e-9)
        most_joules = _upper(workload.limits.max_energy_joules)
        quantities.append(Resource(f"latency{name}", np.ones(count), delay, per_byte, mask, per_s, latest_s, LATENCY))
        quantities.append(Resource(f"energy{name}", watts, no_links, joules, mask, per_joule, most_joules, ENERGY))
        for d, device in enumerate(cluster.devices):
            if isfinite(device.energy_cap_joules):
                sent_joules = no_links.copy()
                sent_joules[d] = joules[d]
                cap = np.eye(count)[d] * watts
                title = f"energy of {device.name}{name}"
                quantities.append(Resource(title, cap, no_links, sent_joules, mask, 0.0, device.energy_cap_joules))
    rates = np.array([workload.needed_per_s for workload in workloads])
    return (*quantities, *(busy_times(workloads, cluster, rates, 1.0) if rates.any() else ()))


def busy_times(
    workloads: Sequence[Workload], cluster: Cluster, models: np.ndarray, upper: float, what: str = "time"
) -> tuple[Resource, ...]:
    """Mean busy seconds of each device and link, the requests of each model weighted by `models`; of devices that take
    turns, those of each.

    Handling messages keeps a device as busy as running components does, even if another of its cores could do it.
    """
    count = len(cluster.devices)
    delay, per_byte, _, gap = _between(cluster)
    none, own, apart = np.zeros(count), np.eye(count), 1.0 - np.eye(count)
    handling = np.array([(d.send_s, d.receive_s, d.send_byte_s, d.receive_byte_s) for d in cluster.devices]).T
    busy = []
    for d, device in enumerate(cluster.devices):
        send_s, receive_s, send_byte_s, receive_byte_s = handling * own[d]
        per_copy_s, per_sent_byte_s = send_s[:, None] + receive_s, send_byte_s[:, None] + receive_byte_s
        sustained = [workload.profiles[device.name].sustained() for workload in workloads]
        weights = models * sustained / cluster.turns(device.name)
        name = f"{what} of {device.name}"
        busy.append(Resource(name, own[d], per_copy_s * apart, per_sent_byte_s * apart, weights, 0.0, upper))
    for a, source in enumerate(cluster.devices):
        for b, target in enumerate(cluster.devices):
            if delay[a, b] < inf and per_byte[a, b] + gap[a, b] > 0.0:
                only = own[a][:, None] * own[b]
                name = f"{what} of {source.name} -> {target.name}"
                weights = models / cluster.turns(source.name, target.name)
                fetch = own[b] * cluster.fetching_s(target.name) if source.name == cluster.start else None
                busy.append(Resource(name, none, only * gap, only * per_byte[a, b], weights, 0.0, upper, fetch=fetch))
    return tuple(busy)


def _upper(limit: float | None) -> float:
    return inf if limit is None else limit


def link_tables(cluster: Cluster) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Latency, seconds per byte, joules per byte and gap between messages (from, to); infinite seconds without a
    link."""
    links = [[cluster.link(a.name, b.name) for b in cluster.devices] for a in cluster.devices]
    rows = [
        (link.latency_s, 1.0 / link.bandwidth_bytes_per_s, link.joules_per_byte, link.gap_s)
        if link is not None
        else (inf, inf, 0.0, 0.0)
        for row in links
        for link in row
    ]
    delay, per_byte, joules, gap = np.array(rows).T.reshape(4, len(links), len(links))
    return delay, per_byte, joules, gap


def _between(cluster: Cluster) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The same without loopbacks: 0 on the diagonals."""
    delay, per_byte, joules, gap = link_tables(cluster)
    for table in (delay, per_byte, joules, gap):
        np.fill_diagonal(table, 0.0)
    return delay, per_byte, joules, gap


_KINDS = {
    "float": (Kind.FLOAT, Kind.FLOAT),
    "whole": (Kind.INT8, Kind.INT8),
    "anchor": (Kind.INT8, Kind.ANCHOR),
    "weights8": (Kind.FLOAT, Kind.FLOAT),
    "dynamic": (Kind.FLOAT, Kind.FLOAT),
    "weights4": (Kind.FLOAT, Kind.FLOAT),
}
# Movement behind an int8 anchor keeps the anchor's layout; for every other purpose it is float.
CARRY_ANCHOR = "float32, behind an anchor"
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
        wire_only=len(cluster.devices) > 1
        and all(workload.error is None or bool(workload.error.outputs) for workload in workloads),
        constant=objective.latency * float(shares @ overhead.min(axis=1)),
    )
    return Assembled(problem, tuple(workloads), cluster, first_node, overhead)


def _forms(workloads: Sequence[Workload]) -> list[Form]:
    """The forms of all precisions, plus the form of movement behind an int8 anchor."""
    names = dict.fromkeys(
        (precision.name, precision.form) for workload in workloads for precision in workload.precisions
    )
    forms = [Form(name, *_KINDS[form]) for name, form in names]
    if any(form.writes == Kind.ANCHOR for form in forms):
        forms.append(Form(CARRY_ANCHOR, Kind.ANCHOR, Kind.ANCHOR))
    return forms


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
            quantize.append(
                [[flow_cost.quantize_s for flow_cost in glue], [anchor_costs(flow_cost)[1] for flow_cost in glue]]
            )
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
        quantize_s=np.array(quantize, float).reshape(count, 2, -1),
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
            name = {Kind.FLOAT: FLOAT32.name, Kind.ANCHOR: CARRY_ANCHOR}.get(kind) or carried
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
        name = problem.forms[form].name
        name = FLOAT32.name if name == CARRY_ANCHOR else name
        placements.append(Placement(block.name, problem.devices[device], name, levels[node] if levels else 0))
    return tuple(placements)
