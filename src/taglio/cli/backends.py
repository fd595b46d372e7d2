"""Commands for the environments of back ends: list, add, remove, doctor."""

import argparse
import sys
from collections.abc import Mapping

from taglio.cli.output import Shown
from taglio.compare import convert, environments
from taglio.compare.environments import ENVIRONMENTS
from taglio.report import console
from taglio.report.console import say
from taglio.report.parts import Table
from taglio.report.units import size
from taglio.scratch import scratch


def show(options: argparse.Namespace) -> Shown:
    """Run `taglio backends list`: status, contents, and the disk space that each uses or would need."""
    del options
    found = [environments.inspect(each) for each in ENVIRONMENTS]

    def tables() -> None:
        rows = []
        for each in found:
            disk = size(each.bytes) if each.bytes else f"needs {size(each.need_bytes)}"
            rows.append([each.name, ", ".join(each.backends), each.status, disk, each.reason or _told(each.versions)])
        head = ["name", "rows of compare", "status", "disk", "versions"]
        console.show([Table(head, rows, words=frozenset({1, 2, 4}))])
        say(f"in {environments.folder()}; install one with: taglio backends add NAME")
        used, most = size(environments.bytes_below(convert.cache())), size(convert.CACHE_BYTES)
        say(f"converted models: {used} in {convert.cache()} (limit {most})")

    return Shown(found, tables)


def add(options: argparse.Namespace) -> Shown:
    """Run `taglio backends add`."""
    wanted = list(dict.fromkeys(map(environments.environment, options.names)))
    missing = [each for each in wanted if environments.inspect(each).status != "ready"]
    if missing and not options.json:
        need, free = environments.check_room(missing)
        names = ", ".join(each.name for each in missing)
        room = f"needs about {size(need)} of disk space, {size(free)} free"
        say(f"building {names} in {environments.folder()} with {environments.tool()}: {room}")
    for each in missing:
        environments.build(each, show=sys.stderr.isatty() and not options.json)
    found = [environments.inspect(each) for each in wanted]

    def tables() -> None:
        built = {each.name for each in missing}
        for made in found:
            how = "built" if made.name in built else "already there"
            say(f"{made.name}: {how}: {_told(made.versions)} ({size(made.bytes)})")

    return Shown(found, tables)


def remove(options: argparse.Namespace) -> Shown:
    """Run `taglio backends remove`."""
    freed = {
        each.name: environments.remove(each) for each in dict.fromkeys(map(environments.environment, options.names))
    }

    def tables() -> None:
        for name, count in freed.items():
            say(f"{name}: removed, {size(count)} freed" if count else f"{name}: was not installed")

    return Shown(freed, tables)


def doctor(options: argparse.Namespace) -> Shown:
    """Run `taglio backends doctor`: each environment's problem and the command that fixes it."""
    wanted = [environments.environment(name) for name in options.names] or ENVIRONMENTS
    with scratch() as folder:
        found = [environments.diagnose(each, folder / each.name) for each in wanted]

    def tables() -> None:
        words = {"ready": "ok", "absent": "not installed"}
        for each in found:
            wrong = f"{each.status}: {each.reason}: run taglio backends add {each.name}"
            say(f"{each.name}: {words.get(each.status, wrong)}")

    return Shown(found, tables, code=int(any(each.status in ("unfinished", "broken") for each in found)))


def _told(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())
