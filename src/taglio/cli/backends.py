"""Commands for the environments of back ends: list, add, remove, doctor."""

import argparse
import sys
from typing import Any

from taglio.cli.options import command, emit, group_of, json_argument


def add(commands: Any) -> None:
    """Add the commands of this file to the parser."""
    inner = group_of(commands, "backends", "list, install, remove and check the other back ends of compare")
    each = command(inner, "list", "list the back ends, installed or not, with their disk space", _list)
    json_argument(each)
    each = command(inner, "add", "install back ends, in environments with pinned versions", _add)
    each.add_argument("names", nargs="+", metavar="NAME", help="as listed, such as openvino or torch")
    json_argument(each)
    each = command(inner, "remove", "remove installed back ends", _remove)
    each.add_argument("names", nargs="+", metavar="NAME", help="as listed, such as openvino or torch")
    json_argument(each)
    each = command(inner, "doctor", "load every installed back end; report what is broken and how to fix it", _doctor)
    each.add_argument("names", nargs="*", metavar="NAME", help="as listed (default: all)")
    json_argument(each)


def _list(options: argparse.Namespace) -> int:
    from taglio.compare import convert, install
    from taglio.compare.environments import ENVIRONMENTS
    from taglio.report import terminal_backends

    found = [install.inspect(each, install.lock_of(each)) for each in ENVIRONMENTS if each.packages]
    return emit(found) if options.json else terminal_backends.listed(found, convert.cache(), convert.CACHE_BYTES)


def _add(options: argparse.Namespace) -> int:
    from taglio.compare import install
    from taglio.report import terminal_backends

    wanted = list(dict.fromkeys(map(install.environment, options.names)))
    before = [install.inspect(each, install.lock_of(each)) for each in wanted]
    missing = [each for each, found in zip(wanted, before, strict=True) if found.status != "ready"]
    if missing and not options.json:
        terminal_backends.needs(missing, install.check_room(missing), install.tool())
    watched = sys.stderr.isatty() and not options.json
    built = [install.build(each, install.lock_of(each), show=watched) for each in missing]
    found = [install.inspect(each, install.lock_of(each)) for each in wanted]
    return emit(found) if options.json else terminal_backends.added(found, {each.name for each in built})


def _remove(options: argparse.Namespace) -> int:
    from taglio.compare import install
    from taglio.report import terminal_backends

    freed = {each.name: install.remove(each) for each in dict.fromkeys(map(install.environment, options.names))}
    return emit(freed) if options.json else terminal_backends.removed(freed)


def _doctor(options: argparse.Namespace) -> int:
    from taglio.compare import install
    from taglio.compare.environments import ENVIRONMENTS
    from taglio.report import terminal_backends
    from taglio.scratch import scratch

    wanted = [install.environment(name) for name in options.names] or [each for each in ENVIRONMENTS if each.packages]
    with scratch() as folder:
        found = [install.diagnose(each, install.lock_of(each), folder / each.name) for each in wanted]
    (emit if options.json else terminal_backends.diagnosed)(found)
    return int(any(each.status in ("unfinished", "broken") for each in found))
