"""Which tensors go from which component to which device, from a manifest. Sends nothing.

All that one component sends to one device goes as one message, read there by every component that wants some of it, and
so crosses the link once. The caller is at the start device: it sends the model's inputs and reads its outputs.
"""

from dataclasses import dataclass

from taglio.components.build import Manifest, Port
from taglio.errors import BadArtifact

CALLER = ""


@dataclass(frozen=True, slots=True)
class Message:
    """Tensors from the component `source` (CALLER: the model's inputs) to `device` (CALLER: the model's outputs)."""

    source: str
    source_device: str
    device: str
    ports: tuple[Port, ...]

    @property
    def bytes(self) -> int:
        """What its tensors take."""
        return sum(port.bytes for port in self.ports)

    @property
    def names(self) -> tuple[str, ...]:
        """Its tensors' names."""
        return tuple(port.name for port in self.ports)


@dataclass(frozen=True, slots=True)
class Wiring:
    """Messages in the order of what sends them, and by component the indices of those it reads."""

    messages: tuple[Message, ...]
    reads: dict[str, tuple[int, ...]]

    def sends(self, component: str) -> tuple[tuple[int, Message], ...]:
        """What a component sends, in order, each with its index."""
        return tuple((index, each) for index, each in enumerate(self.messages) if each.source == component)

    def answers(self) -> list[int]:
        """Messages to the caller."""
        return [index for index, each in enumerate(self.messages) if each.device == CALLER]


def wire(manifest: Manifest) -> Wiring:
    """The messages of `manifest`. Raises BadArtifact for a tensor that nobody writes."""
    home: dict[str, tuple[str, str]] = dict.fromkeys(manifest.inputs, (CALLER, CALLER))
    ports: dict[str, Port] = {}
    for piece in manifest.pieces:
        for port in piece.outputs:
            home[port.name] = (piece.name, piece.device)
            ports[port.name] = port
        for port in piece.inputs:
            ports.setdefault(port.name, port)
    wanted: dict[tuple[str, str, str], dict[str, None]] = {}
    for piece in manifest.pieces:
        for port in piece.inputs:
            if port.name not in home:
                raise BadArtifact(f"component {piece.name} reads {port.name}, which nothing writes: build again")
            wanted.setdefault((*home[port.name], piece.device), {})[port.name] = None
    for name in manifest.outputs:
        if home.get(name, (CALLER,))[0] != CALLER:
            wanted.setdefault((*home[name], CALLER), {})[name] = None
    order = [CALLER, *(piece.name for piece in manifest.pieces)]
    keys = sorted(wanted, key=lambda key: order.index(key[0]))
    messages = tuple(Message(*key, tuple(ports[name] for name in wanted[key])) for key in keys)
    index = {key: position for position, key in enumerate(keys)}
    reads = {
        piece.name: tuple(dict.fromkeys(index[*home[port.name], piece.device] for port in piece.inputs))
        for piece in manifest.pieces
    }
    return Wiring(messages, reads)
