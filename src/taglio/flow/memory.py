"""What a run is expected to need of memory, said before it begins. Measures nothing: taglio/memory.py does.

What must be there at once is this process, the weights twice (as the model holds them and as kernels pack them), what
one inference of the largest sample holds between operators, twice (its copies in another layout), and the outputs of
one sample four times (float, changed, and two of their difference). Whatever more there is, it is held in memory or in
files as the limit allows: samples, float outputs of other samples, sessions of other variants.
"""

from dataclasses import dataclass

from taglio.data.dataset import Split
from taglio.errors import BadOption
from taglio.memory import used_bytes
from taglio.model.graph import Graph
from taglio.model.load import Model
from taglio.profile.measure import MIXES
from taglio.weights import weight_bytes

# Sessions that are timed side by side where there is room: those of a profile.
_SESSIONS = MIXES + 3


@dataclass(frozen=True, slots=True)
class Needs:
    """Bytes: the `least` that a run can do with, and what it would `like`, with all held that is used again."""

    least: int
    like: int

    def told(self, limit_bytes: int) -> str:
        """One line for the user."""
        held = "" if self.like <= limit_bytes else "; samples, outputs and sessions are held only as the limit allows"
        return (
            f"memory: at least {_size(self.least)} by estimate, {_size(self.like)} with all held at once, "
            f"limit {_size(limit_bytes)}{held}"
        )

    def refuse(self, name: str, limit_bytes: int) -> None:
        """Raises BadOption for a limit below the least."""
        if self.least > limit_bytes:
            raise BadOption(
                f"`memory_limit` {_size(limit_bytes)}: {name} needs {_size(self.least)} at least by estimate: "
                "allow that much, or give smaller inputs with `shapes`"
            )


def memory_needs(model: Model, graph: Graph, data: Split) -> Needs:
    """What a run on `data` needs, from the sizes of everything."""
    weights, between = weight_bytes(model.proto), activation_bytes(graph)
    tensors = graph.tensor_map()
    outputs = sum(tensors[name].float_bytes for name in graph.outputs)
    inputs = sum(tensors[name].float_bytes for name in graph.inputs)
    count, held_out = len(data.calibration.samples) + len(data.held_out.samples), len(data.held_out.samples)
    # Weights in files are packed while they are read.
    session = 2 * between + (1 if model.store else 2) * weights
    least = used_bytes() + session + 4 * outputs + inputs
    like = least + (_SESSIONS - 1) * session + held_out * outputs + count * inputs
    return Needs(least, like)


def activation_bytes(graph: Graph) -> int:
    """The most that tensors hold at one time, in float, when blocks run in order and each is freed when it is read."""
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


def _size(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
