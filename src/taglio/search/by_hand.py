"""Pin blocks to devices of a cluster, by name patterns. Plans nothing."""

from collections.abc import Sequence

from taglio.errors import BadOption
from taglio.model.graph import Graph
from taglio.model.select import match


def pinned_devices(graph: Graph, pins: Sequence[str], keep_off: Sequence[str] = ()) -> dict[str, str]:
    """The device of every pinned block. Raises BadOption for a block pinned to two devices, or to one that it is kept
    off."""
    pinned: dict[str, str] = {}
    for device, hits in matches(graph, "pins", pins):
        for name in hits:
            if pinned.get(name, device) != device:
                raise BadOption(f"block {name} is pinned to {pinned[name]} and to {device}: drop one of the pins")
            pinned[name] = device
    for device, hits in matches(graph, "keep_off", keep_off):
        for name in hits:
            if pinned.get(name) == device:
                raise BadOption(f"block {name} is pinned to {device} and kept off {device}: drop one of the two")
    return pinned


def matches(graph: Graph, argument: str, texts: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
    """The blocks that match each DEVICE=PATTERN, with the device. Raises BadOption for a pattern without a match."""
    devices = []
    for text in texts:
        device, _, pattern = text.partition("=")
        if not device or not pattern:
            raise BadOption(f'`{argument}` "{text}": write DEVICE=PATTERN')
        devices.append((device, match(graph, [pattern], lambda _: "")))
    return devices
