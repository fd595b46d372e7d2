"""One model's share of a problem: the seconds, bytes and allowed labels of its blocks.

The part of a flow's cost that does not depend on a change of type is charged to the movement blocks that carry the
flow, in proportion to the elements they write, or to its producer if nothing moves it.
"""

from collections.abc import Sequence
from fnmatch import fnmatchcase

import numpy as np

from taglio.cluster.devices import Cluster, Device
from taglio.cluster.planning.problem import Form, Implication, Kind
from taglio.cluster.planning.workload import Workload
from taglio.errors import BadOption
from taglio.model.graph import Block, Flow
from taglio.quantize.effective import fuses_when_surrounded
from taglio.quantize.precision import FLOAT32


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
                base = {Kind.FLOAT: cost.float_s, Kind.INT8: cost.int8_s}
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
        if precision is None or not precision.fits(block):
            return False
        if block.carries:
            return form.reads == form.writes
        if block.movement and precision != FLOAT32:
            return False
        if block.name in self.limits.float_blocks:
            return precision == FLOAT32
        return block.name not in self.limits.int8_blocks or precision.scheme is not None

    def weights(self) -> np.ndarray:
        """Bytes of weights and states (block, form)."""
        bits = [self.precision[form.name].weight_bits if form.name in self.precision else 8 for form in self.forms]
        return np.array(
            [[float(block.weight_bytes(form_bits)) + block.state_bytes for form_bits in bits] for block in self.blocks]
        )

    def surrounded(self, start: int) -> list[Implication]:
        """Rules that a weightless block with only int8 neighbours cannot stay float (see quantize/effective.py)."""
        source = {tensor: flow.producer for flow in self.flows for tensor in flow.tensors}
        kinds = np.tile(np.array([(form.reads, form.writes) for form in self.forms]).T, len(self.cluster.devices))
        float_label, writes, reads = kinds[0] == Kind.FLOAT, kinds[1] == Kind.INT8, kinds[0] == Kind.INT8
        implications = []
        for b, block in enumerate(self.blocks):
            if not fuses_when_surrounded(block):
                continue
            around = [(source.get(name), writes) for name in block.inputs]
            behind = self.graph.readers.get(block.name, [])
            around += [(reader or None, reads) for reader in behind]
            if not behind or any(name is None for name, _ in around):
                continue
            neighbours = tuple((start + self.index[name], mask) for name, mask in around if name is not None)
            implications.append(Implication(start + b, float_label, neighbours))
        return implications


def never(device: Device, block: Block) -> bool:
    """Whether the cluster file forbids `block` on `device`, by operator type or by name."""
    names = (block.name, *block.operators, *block.kind.split("+"))
    return any(fnmatchcase(name, pattern) for pattern in device.never for name in names)
