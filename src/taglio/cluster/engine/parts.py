"""Time models part by part, where a device has no memory for a session of the whole. Chooses no forms.

A part is a range of blocks, cut like a component; what crosses from part to part is float32. Only sessions of one part
are open at a time. The times of a model are the sums over its parts: they lack what runtimes fuse across the cuts.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import partial
from typing import Any

import onnx

from taglio.components.cut import Component, Wires, cut
from taglio.memory import give_back
from taglio.model.graph import Graph
from taglio.model.load import Model
from taglio.profile.attribution import base_name
from taglio.profile.stopwatch import Effort, Feed, Timed, run_once, time_models
from taglio.profile.wall_time import WallTime
from taglio.runtimes.onnxruntime import SessionOptions, open_session

# Share of the memory that the weights of a part may take: a session maps their file and holds a packed copy.
_SHARE = 1 / 3
# The kernels that a runtime adds have the same names in every part. Attribution ignores what follows this mark.
_MARK = "_token_"


def ranges(graph: Graph, room_bytes: float) -> dict[str, str]:
    """The part of every block: consecutive blocks, whose float32 weights fit into their share of `room_bytes`."""
    part_of: dict[str, str] = {}
    part, held = 0, 0.0
    for block in graph.blocks:
        weights = block.weight_bytes(32)
        if held and held + weights > _SHARE * room_bytes:
            part, held = part + 1, 0.0
        held += weights
        part_of[block.name] = f"part {part}"
    return part_of


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """A model, with its weights in files, divided into parts: `of` is the part of every block, `feeds` the inputs of
    each part, `once_s` the seconds of one run of all parts."""

    model: Model
    graph: Graph
    of: Mapping[str, str]
    feeds: Mapping[str, Sequence[Feed]]
    once_s: float

    @classmethod
    def opened(cls, model: Model, graph: Graph, of: Mapping[str, str], feeds: Sequence[Feed], threads: int) -> "Parts":
        """Run the float model part by part on `feeds` to get the inputs of each part."""
        given, once_s = dict[str, Sequence[Feed]](), 0.0
        values: list[dict[str, Any]] = [dict(feed) for feed in feeds]
        for part in _cut(model, graph, model.proto, of).values():
            session = open_session(part.proto, SessionOptions(threads), label=part.name)
            given[part.device] = [{name: tensors[name] for name in part.inputs} for tensors in values]
            for tensors, feed in zip(values, given[part.device], strict=True):
                tensors.update(zip(part.outputs, session.run(list(part.outputs), feed), strict=True))
            once_s += run_once(part.name, session, given[part.device][0])
            del session
            give_back()
        return cls(model, graph, of, given, once_s)

    def time(
        self,
        models: Mapping[str, Callable[[], onnx.ModelProto]],
        _: Sequence[Feed],
        options: SessionOptions,
        effort: Effort,
        *,
        refused: dict[str, str] | None = None,
        once_s: float = 0.0,
        **how: Any,
    ) -> dict[str, Timed]:
        """Time models part by part, otherwise as `time_models` does. If any part of a model is refused, so is the
        model."""
        timed_parts: dict[str, list[Timed]] = {name: [] for name in models}
        # These hold no weights, which stay in files.
        cuts = {name: _cut(self.model, self.graph, build(), self.of) for name, build in models.items()}
        share = replace(effort, budget_s=effort.budget_s / len(self.feeds))
        for part, feeds in self.feeds.items():
            protos = {
                name: partial(getattr, pieces[part], "proto")
                for name, pieces in cuts.items()
                if name not in (refused or {})
            }
            if not protos:
                break
            how |= {"refused": refused, "once_s": once_s / len(self.feeds)}
            for name, timed in time_models(protos, feeds, options, share, **how).items():
                timed_parts[name].append(timed)
            give_back()
        return {name: joined(timed) for name, timed in timed_parts.items() if len(timed) == len(self.feeds)}


def joined(parts: Sequence[Timed]) -> Timed:
    """The parts of one model as if they had been timed at once."""
    whole, kernels = onnx.ModelProto(), dict[str, float]()
    for index, part in enumerate(parts):
        for node in part.optimized.graph.node:
            seconds = part.kernels.get(node.name)
            copy, number = whole.graph.node.add(), index
            copy.CopyFrom(node)
            while copy.name in kernels:  # runtimes number what they add in the same way
                copy.name, number = f"{node.name}{_MARK}{number}", number + len(parts)
            if seconds is not None:
                kernels[copy.name] = seconds
    total = WallTime(*map(sum, zip(*(astuple(part.wall) for part in parts), strict=True)))
    wall = replace(total, runs=min(part.wall.runs for part in parts))
    return Timed(whole, wall, kernels, others=max(part.others for part in parts))


def _cut(model: Model, graph: Graph, whole: onnx.ModelProto, of: Mapping[str, str]) -> dict[str, Component]:
    """The parts of a float or quantised model, in running order. Their inputs are named like the tensors of the float
    model, whatever name the producer's form gives them."""
    tensors = graph.tensor_map()
    parts = {}
    for part in cut(model, graph, whole, of, Wires(next(iter(of.values())), {})):
        names = {name: base_name(name, tensors) or name for name in part.inputs}
        for node in part.proto.graph.node:
            node.input[:] = [names.get(name, name) for name in node.input]
        for value in part.proto.graph.input:
            value.name = names[value.name]
        parts[part.device] = replace(part, inputs=tuple(names.values()))
    return parts
