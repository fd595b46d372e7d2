"""Derive from a manifest which tensors go from which component to which device. Sends nothing.

A tensor crosses a link once, however many components read it on the other device. Tensors read by the same components
form one message; a tensor read only by a later component has its own message and delays nothing. The caller is on the
start device: it sends the model's inputs and reads its outputs. States are not sent: they stay with the component that
reads and writes them.
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
        """Total bytes of its tensors."""
        return sum(port.bytes for port in self.ports)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its tensors."""
        return tuple(port.name for port in self.ports)

    def ends(self, start: str) -> tuple[str, str]:
        """The devices that it goes from and to; the caller is on the device `start`."""
        return self.source_device or start, self.device or start


@dataclass(frozen=True, slots=True)
class Wiring:
    """Messages in the order of their senders, and by component the indices of those it reads."""

    messages: tuple[Message, ...]
    reads: dict[str, tuple[int, ...]]

    def sends(self, component: str) -> tuple[tuple[int, Message], ...]:
        """The messages that a component sends, in order, each with its index."""
        return tuple((index, message) for index, message in enumerate(self.messages) if message.source == component)


def wire(manifest: Manifest) -> Wiring:
    """The messages of `manifest`. Raises BadArtifact for a tensor that no component writes."""
    inputs, outputs = manifest.without_states()
    pasts = {state.past for state in manifest.states}
    home: dict[str, tuple[str, str]] = dict.fromkeys(inputs, (CALLER, CALLER))
    ports: dict[str, Port] = {}
    for piece in manifest.pieces:
        for port in piece.outputs:
            home[port.name] = (piece.name, piece.device)
            ports[port.name] = port
        for port in piece.inputs:
            ports.setdefault(port.name, port)
    # Readers by tensor and device, in running order.
    readers: dict[tuple[str, str], tuple[str, ...]] = {}
    for piece in manifest.pieces:
        for port in piece.inputs:
            if port.name in pasts:
                continue
            if port.name not in home:
                raise BadArtifact(f"component {piece.name} reads {port.name}, which nothing writes: build again")
            readers[port.name, piece.device] = (*readers.get((port.name, piece.device), ()), piece.name)
    for name in outputs:
        if home.get(name, (CALLER,))[0] != CALLER:
            readers[name, CALLER] = ()
    wanted: dict[tuple[str, str, str, tuple[str, ...]], list[str]] = {}
    for (name, device), names in readers.items():
        wanted.setdefault((*home[name], device, names), []).append(name)
    order = [CALLER, *(piece.name for piece in manifest.pieces)]
    keys = sorted(wanted, key=lambda key: order.index(key[0]))
    messages = tuple(Message(*key[:3], tuple(ports[name] for name in wanted[key])) for key in keys)
    reads: dict[str, list[int]] = {piece.name: [] for piece in manifest.pieces}
    for index, key in enumerate(keys):
        for reader in key[3]:
            reads[reader].append(index)
    return Wiring(messages, {name: tuple(indices) for name, indices in reads.items()})
