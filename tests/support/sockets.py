"""Where processes listen, by the kernel's tables. Opens no socket."""

import contextlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path


def listening(processes: Iterable[int]) -> set[tuple[str, int]]:
    """IPv4 addresses and ports on which these processes listen, each in its own network."""
    places = set[tuple[str, int]]()
    for process in processes:
        with contextlib.suppress(OSError):  # it ended, or closed one, meanwhile
            places.update(_listening(Path(f"/proc/{process}")))
    return places


def addresses(processes: Iterable[int]) -> set[str]:
    """Addresses on which these processes listen."""
    return {address for address, _ in listening(processes)}


def _listening(process: Path) -> Iterator[tuple[str, int]]:
    own = {str(link.readlink()) for link in (process / "fd").glob("*") if link.is_symlink()}
    for table in ("tcp", "tcp6"):
        for line in (process / "net" / table).read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in own:
                address, _, port = words[1].partition(":")
                # The last four bytes, as one number of the machine's own order; in IPv6 they may be an IPv4 address.
                number = int(address[-8:], 16)
                yield ".".join(str(byte) for byte in number.to_bytes(4, sys.byteorder)), int(port, 16)
