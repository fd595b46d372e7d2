"""The environments of back ends as terminal tables."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from taglio.compare import environments
from taglio.compare.environments import Environment
from taglio.compare.install import Installed
from taglio.report.units import size


def listed(found: Sequence[Installed], converted: Path, most_bytes: int) -> int:
    """Print each environment: its status, contents, and the disk space that it uses or would need; and the space of
    converted models."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("name", "rows of compare", "status", "disk", "versions"):
        table.add_column(name, justify="right" if name == "disk" else "left", overflow="fold")
    for each in found:
        disk = size(each.bytes) if each.bytes else f"needs {size(each.need_bytes)}"
        versions = ", ".join(f"{name} {version}" for name, version in each.versions.items())
        table.add_row(each.name, ", ".join(each.backends), each.status, disk, escape(each.reason or versions))
    Console(highlight=False).print(table)
    _say(f"in {environments.folder()}; install one with: taglio backends add NAME")
    _say(f"converted models: {size(environments.bytes_below(converted))} in {converted}, at most {size(most_bytes)}")
    return 0


def needs(missing: Sequence[Environment], room: tuple[int, int], tool: str) -> None:
    """Print what a build will need, before it starts."""
    need, free = room
    names = ", ".join(each.name for each in missing)
    _say(
        f"building {names} in {environments.folder()} with {tool}: "
        f"needs about {size(need)} of disk space, {size(free)} free"
    )


def added(found: Sequence[Installed], built: set[str]) -> int:
    """Print what can be used now."""
    for each in found:
        versions = ", ".join(f"{name} {version}" for name, version in each.versions.items())
        _say(f"{each.name}: {'built' if each.name in built else 'already there'}: {versions} ({size(each.bytes)})")
    return 0


def removed(freed: Mapping[str, int]) -> int:
    """Print what was removed."""
    for name, count in freed.items():
        _say(f"{name}: removed, {size(count)} freed" if count else f"{name}: was not installed")
    return 0


def diagnosed(found: Sequence[Installed]) -> None:
    """Print each environment's problem and the command that fixes it."""
    for each in found:
        match each.status:
            case "ready":
                _say(f"{each.name}: ok")
            case "absent":
                _say(f"{each.name}: not installed")
            case _:
                _say(f"{each.name}: {each.status}: {each.reason}: run taglio backends add {each.name}")


def _say(text: str) -> None:
    Console(highlight=False, soft_wrap=True).print(escape(text))
