"""What a plan's words mean, from the reader's side. For the checker alone: nothing of the planner's is in here."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from taglio.cluster.devices import Cluster
from taglio.model.graph import Block, Graph, Tensor
from taglio.plan.result import Plan
from taglio.profile.result import Glue, Profile

INT8, FLOAT = "int8", "float32"


@dataclass(frozen=True, slots=True)
class Reading:
    """Somebody reads a tensor: a block, or "" for the caller."""

    tensor: Tensor
    reader: str
    device: str
    int8: bool


class Facts:
    """A plan on several devices, taken at its word."""

    def __init__(self, graph: Graph, profiles: Mapping[str, Profile], cluster: Cluster, plan: Plan) -> None:
        self.graph, self.profiles, self.cluster, self.plan = graph, profiles, cluster, plan
        self.blocks = {block.name: block for block in graph.blocks}
        self.tensors = graph.tensor_map()
        self.place = {each.block: each.device for each in plan.placements}
        self.stage = {each.block: each.stage for each in plan.placements}
        self.form = {each.block: each.precision for each in plan.placements}
        self.copies: dict[tuple[str, str], set[str]] = {}
        for each in plan.crossings:
            if each.source != each.target:
                self.copies.setdefault((each.tensor, each.target), set()).add(each.precision)
        self._glue = {name: profile.glue_map() for name, profile in profiles.items()}
        self.times = {name: profile.block_times() for name, profile in profiles.items()}
        self.component = self._components()
        self.readings = tuple(self._readings())

    def moves(self, block: Block) -> bool:
        """Whether a block only moves values on, in the type they come in."""
        return block.movement and block.quantizable

    def written_int8(self, tensor: str) -> bool:
        """Whether an int8 block writes a tensor."""
        producer = self.tensors[tensor].producer
        return producer is not None and self.form[producer] == INT8

    def home(self, tensor: str) -> str:
        """The device where a tensor is written, or given."""
        producer = self.tensors[tensor].producer
        return self.plan.start if producer is None else self.place[producer]

    def _readings(self) -> Iterable[Reading]:
        for tensor in self.graph.tensors:
            for reader in tensor.consumers:
                yield Reading(tensor, reader, self.place[reader], self.form[reader] != FLOAT)
            if tensor.name in self.graph.outputs and tensor.producer is not None:
                yield Reading(tensor, "", self.plan.start, int8=False)

    def _components(self) -> dict[str, str]:
        """Component of every block: device, stage, and how often a path to it changed either, numbered in running
        order."""
        place = {name: (self.place[name], self.stage[name]) for name in self.blocks}
        changes = dict.fromkeys(self.blocks, 0)
        settled = False
        while not settled:  # until no path says more; a circle among blocks is refused when the graph is built
            settled = True
            for block in self.graph.blocks:
                for name in block.inputs:
                    source = self.tensors[name].producer
                    if source is None:
                        continue
                    least = changes[source] + (place[source] != place[block.name])
                    if changes[block.name] < least:
                        changes[block.name], settled = least, False
        order = sorted({(changes[name], *place[name]) for name in self.blocks})
        return {name: f"{order.index((changes[name], *place[name]))}-{self.place[name]}" for name in self.blocks}

    def pieces_of(self) -> dict[str, str]:
        """Device of every component, those that only quantise an input or dequantise an output included."""
        start = self.plan.start
        found = {name: self.place[block] for block, name in self.component.items()}
        for (name, _), kinds in self.copies.items():
            if self.tensors[name].producer is None and INT8 in kinds:
                found[f"input-{start}"] = start
        if any(self.home(name) != start and self.copies.get((name, start)) == {INT8} for name in self.graph.outputs):
            found[f"output-{start}"] = start
        return found

    def flow(self, tensor: str) -> str:
        """The tensor that first held a tensor's values, before movement."""
        producer = self.tensors[tensor].producer
        while producer is not None and self.moves(self.blocks[producer]):
            tensor = self.blocks[producer].inputs[0]
            producer = self.tensors[tensor].producer
        return tensor

    def glue(self, tensor: str, device: str) -> Glue:
        """What a tensor's flow costs on a device."""
        return self._glue[device][self.flow(tensor)]

    def anchored(self, tensor: str) -> bool:
        """Whether a tensor's values were first written in float behind an int8 anchor."""
        producer = self.tensors[self.flow(tensor)].producer
        return producer is not None and self.form[producer] not in (FLOAT, INT8)

    def groups(self) -> dict[str, dict[str, list[Reading]]]:
        """Who reads each tensor, by component ("" for the caller)."""
        component = self.component
        found: dict[str, dict[str, list[Reading]]] = {}
        for each in self.readings:
            where = component[each.reader] if each.reader else ""
            found.setdefault(each.tensor.name, {}).setdefault(where, []).append(each)
        return found

    def arrives(self, tensor: str, where: str, readings: Sequence[Reading]) -> set[str]:
        """The precisions in which a tensor comes to a component that did not write it."""
        device = readings[0].device
        if device != self.home(tensor):
            return self.copies[tensor, device]
        if self.tensors[tensor].producer is None:
            return {FLOAT}
        int8 = self.written_int8(tensor) or (bool(where) and all(each.int8 for each in readings))
        return {INT8} if int8 else {FLOAT}

    def takes(self, kind: str, name: str, where: str, readings: Sequence[Reading]) -> bool:
        """Whether a component makes use of the copy of this precision."""
        arriving = self.arrives(name, where, readings)
        wants = {INT8 if each.int8 else FLOAT for each in readings}
        return kind in wants or not wants <= arriving

    def behind(self, reader: str) -> set[str]:
        """Who computes with what a reader takes: itself, or all behind it where it only moves."""
        if not reader or not self.moves(self.blocks[reader]):
            return {reader}
        return {
            name
            for made in self.blocks[reader].outputs
            for c in self.tensors[made].consumers
            for name in self.behind(c)
        }
