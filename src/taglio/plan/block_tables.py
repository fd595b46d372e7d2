"""What each block of one model costs on each device in each form, and which of them it may take. Solves nothing."""

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

import numpy as np

from taglio.cluster.devices import Cluster, Device
from taglio.errors import BadOption
from taglio.model.graph import Block, Flow, flows
from taglio.plan.problem import Form, Implication, Kind
from taglio.plan.workload import Workload
from taglio.profile.result import anchor_costs
from taglio.quantize.effective import fuses_when_surrounded


class BlockTables:
    """One model's share of the problem. Arrays are (block, device, form)."""

    def __init__(self, workload: Workload, cluster: Cluster, forms: Sequence[Form]) -> None:
        self.workload, self.cluster, self.forms = workload, cluster, forms
        self.graph, self.blocks, self.limits = workload.graph, workload.graph.blocks, workload.limits
        self.profiles = workload.profiles
        self.index = {block.name: position for position, block in enumerate(self.blocks)}
        self.flows = flows(self.graph)
        self.precision = {each.name: each for each in workload.precisions}

    def carries(self, block: Block) -> bool:
        """Whether a block only moves values on, in the kind they come in."""
        return block.movement and block.quantizable

    def seconds(self) -> np.ndarray:
        """Seconds of every block in every form on every device, with the flows' own costs."""
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
        """Seconds of a run on each device that no block explains, flows that nobody reads included."""
        unread = [flow.name for flow in self.flows if not self._bearers(flow, [0] * len(flow.moves))]
        profiles = [self.profiles[device.name] for device in self.cluster.devices]
        return np.array([p.overhead_s + sum(p.glue_map()[name].float_s for name in unread) for p in profiles])

    def _bearers(self, flow: Flow, sizes: Sequence[int]) -> list[tuple[str, float]]:
        """Who is charged what a flow costs by itself, and in which shares."""
        if flow.moves:
            total = sum(sizes)
            return [(m, s / total if total else 1.0 / len(sizes)) for m, s in zip(flow.moves, sizes, strict=True)]
        if flow.producer is not None:
            return [(flow.producer, 1.0)]
        readers = [reader for _, reader in flow.readers if reader]
        return [(readers[0], 1.0)] if readers else []

    def allowed(self) -> np.ndarray:
        """Which labels each block may take. Raises BadOption where none is left."""
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
                raise BadOption(f"block {block.name} ({block.kind}) may run on no device: loosen a pin or a `never`")
            for d, device in enumerate(self.cluster.devices):
                for f, form in enumerate(self.forms):
                    table[b, d, f] = device in places and self._may(block, form, device)
            if not table[b].any():
                raise BadOption(f"block {block.name} has no form that its pins and devices allow: drop one of its pins")
        return table

    def _may(self, block: Block, form: Form, device: Device) -> bool:
        if form.reads != Kind.FLOAT and not device.int8:
            return False
        if self.carries(block):
            return form.reads == form.writes
        precision = self.precision.get(form.name)
        if precision is None or not precision.fits(block) or (block.movement and precision.form != "float"):
            return False
        if block.name in self.limits.float_blocks:
            return precision.form == "float"
        return block.name not in self.limits.int8_blocks or precision.scheme is not None

    def weights(self) -> np.ndarray:
        """Bytes of weights (block, form)."""
        return np.array(
            [
                [
                    float(block.weight_int8_bytes if form.reads == Kind.INT8 else block.weight_float_bytes)
                    for form in self.forms
                ]
                for block in self.blocks
            ]
        )

    def surrounded(self, start: int) -> list[Implication]:
        """A weightless block between int8 blocks only cannot stay float (see quantize/effective.py)."""
        source = {tensor: flow.producer for flow in self.flows for tensor in flow.tensors}
        readers: dict[str, list[str]] = {}
        for flow in self.flows:
            if flow.producer:
                readers.setdefault(flow.producer, []).extend(reader for _, reader in flow.readers)
        float_label, writes, reads = (self._mask(which) for which in (_is_float, _writes, _reads))
        found = []
        for b, block in enumerate(self.blocks):
            if not fuses_when_surrounded(block):
                continue
            around = [(source.get(name), writes) for name in block.inputs]
            around += [(reader or None, reads) for reader in readers.get(block.name, [])]
            if not around or not readers.get(block.name) or any(name is None for name, _ in around):
                continue
            neighbours = tuple((start + self.index[name], mask) for name, mask in around if name is not None)
            found.append(Implication(start + b, float_label, neighbours))
        return found

    def _mask(self, holds: Callable[[Form], bool]) -> np.ndarray:
        return np.tile(np.array([holds(form) for form in self.forms]), len(self.cluster.devices))


def _is_float(form: Form) -> bool:
    return form.reads == Kind.FLOAT


def _writes(form: Form) -> bool:
    return form.writes == Kind.INT8


def _reads(form: Form) -> bool:
    return form.reads == Kind.INT8


def never(device: Device, block: Block) -> bool:
    """Whether the cluster file says that `device` may not run `block`, by operator type or name."""
    names = (block.name, *block.operators, *block.kind.split("+"))
    return any(fnmatchcase(name, pattern) for pattern in device.never for name in names)
