"""Commands for the environments of back ends: list, add, remove."""

import argparse
from collections.abc import Mapping

from taglio.cli.output import Shown
from taglio.compare import convert, environments
from taglio.compare.environments import ENVIRONMENTS
from taglio.report import console
from taglio.report.console import say
from taglio.report.parts import Table
from taglio.report.units import size


def show(options: argparse.Namespace) -> Shown:
    """Run `taglio backends list`: status, contents, and the disk space that each uses or would need."""
    del options
    states = [environments.inspect(environment) for environment in ENVIRONMENTS]

    def tables() -> None:
        rows = []
        for state in states:
            disk = size(state.bytes) if state.bytes else f"needs {size(state.need_bytes)}"
            rows.append(
                [state.name, ", ".join(state.backends), state.status, disk, state.reason or _shown(state.versions)]
            )
        head = ["name", "rows of compare", "status", "disk", "versions"]
        console.show([Table(head, rows, words=frozenset({1, 2, 4}))])
        say(f"in {environments.folder()}; install one with: taglio backends add NAME")
        used, most = size(environments.bytes_below(convert.cache())), size(convert.CACHE_BYTES)
        say(f"converted models: {used} in {convert.cache()} (limit {most})")

    return Shown(states, tables)


def add(options: argparse.Namespace) -> Shown:
    """Run `taglio backends add`."""
    wanted = list(dict.fromkeys(map(environments.environment, options.names)))
    missing = [environment for environment in wanted if environments.inspect(environment).status != "ready"]
    if missing and not options.json:
        names = ", ".join(environment.name for environment in missing)
        room = f"about {size(sum(environment.disk_bytes for environment in missing))} of disk space"
        say(f"building {names} in {environments.folder()} with {environments.tool()}: needs {room}")
    for environment in missing:
        environments.build(environment)
    states = [environments.inspect(environment) for environment in wanted]

    def tables() -> None:
        built = {environment.name for environment in missing}
        for state in states:
            how = "built" if state.name in built else "already there"
            say(f"{state.name}: {how}: {_shown(state.versions)} ({size(state.bytes)})")

    return Shown(states, tables)


def remove(options: argparse.Namespace) -> Shown:
    """Run `taglio backends remove`."""
    freed = {
        environment.name: environments.remove(environment)
        for environment in dict.fromkeys(map(environments.environment, options.names))
    }

    def tables() -> None:
        for name, count in freed.items():
            say(f"{name}: removed, {size(count)} freed" if count else f"{name}: was not installed")

    return Shown(freed, tables)


def _shown(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())
