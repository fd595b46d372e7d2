"""Estimate the memory that a run needs before it begins. Measures nothing: taglio/memory.py does.

Needed at once: this process, with the libraries that it will load; the session of the switchable graph, which stays
open, and one more: for each twice the tensors alive within one inference of the largest sample, and the weights for
both (in the model, in the graph and packed for kernels; those in files are mapped); and the outputs of one sample four
times (float, changed, and two for their difference). Everything else (samples, float outputs of other samples, sessions
of other variants) is held in memory or in files, as the limit allows.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from taglio.data.dataset import Split
from taglio.errors import BadOption
from taglio.memory import size_text, used_bytes
from taglio.model.graph import Graph
from taglio.model.load import Model
from taglio.profile.effort import MOST_MIXES
from taglio.weights import weight_bytes

# Sessions timed side by side if memory allows: those of a profile.
_SESSIONS = MOST_MIXES + 3
# What the runtimes, the solver and the tables of later stages take.
_LIBRARIES_BYTES = 200_000_000


@dataclass(frozen=True, slots=True)
class Needs:
    """Bytes: the `least` that a run can work with, and what it would `like`, to hold everything that is reused."""

    least: int
    like: int

    def summary(self, limit_bytes: int) -> str:
        """One line for the user."""
        held = "" if self.like <= limit_bytes else "; samples and outputs go to files, sessions open in groups"
        return (
            f"memory: estimated need {size_text(self.least)}, or {size_text(self.like)} to hold everything at once, "
            f"limit {size_text(limit_bytes)}{held}"
        )

    def refuse(self, name: str, limit_bytes: int) -> None:
        """Raise BadOption for a limit below the least."""
        if self.least > limit_bytes:
            raise BadOption(
                f"`memory_limit` {size_text(limit_bytes)}: {name} needs an estimated {size_text(self.least)} or more: "
                "allow that much, or give smaller inputs with `shapes`"
            )


def memory_needs(model: Model, graph: Graph, data: Split) -> Needs:
    """The memory that a run on `data` needs, from the sizes of weights, tensors and samples."""
    least = least_bytes(model, graph)
    # Kernels pack weights in files while reading them.
    session = 2 * activation_bytes(graph) + (1 if model.store else 2) * weight_bytes(model.proto)
    outputs, inputs = _sum_bytes(graph, graph.outputs), _sum_bytes(graph, graph.inputs)
    held_out = len(data.held_out.samples) + (0 if data.unseen is None else len(data.unseen.samples))
    count = len(data.calibration.samples) + held_out
    like = least + (_SESSIONS - 1) * session + held_out * outputs + count * inputs
    return Needs(least, like)


def least_bytes(model: Model, graph: Graph) -> int:
    """The memory that a run can work with."""
    wanted = 4 * _sum_bytes(graph, graph.outputs) + _sum_bytes(graph, graph.inputs)
    weights = (1.5 if model.store else 4.0) * weight_bytes(model.proto)
    return int(used_bytes() + _LIBRARIES_BYTES + 4 * activation_bytes(graph) + weights + wanted)


def _sum_bytes(graph: Graph, names: Iterable[str]) -> int:
    tensors = graph.tensor_map()
    return sum(tensors[name].float_bytes for name in names)


def activation_bytes(graph: Graph) -> int:
    """The most bytes of float tensors alive at one time, if blocks run in order and each tensor is freed after its last
    reader."""
    sizes = {tensor.name: tensor.float_bytes for tensor in graph.tensors}
    last = {name: index for index, block in enumerate(graph.blocks) for name in block.inputs}
    last |= dict.fromkeys(graph.outputs, len(graph.blocks))
    held = sum(sizes[name] for name in graph.inputs)
    most = held
    for index, block in enumerate(graph.blocks):
        held += sum(sizes.get(name, 0) for name in block.outputs)
        most = max(most, held)
        held -= sum(sizes.get(name, 0) for name in {*block.inputs, *block.outputs} if last.get(name, -1) == index)
    return most
