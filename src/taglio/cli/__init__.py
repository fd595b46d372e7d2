"""The command line: parse, call one function, print, return the exit code. Decides nothing."""

import argparse
import errno
import logging
import os
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from taglio.cli import backends, clusters, compare, emulate, engine, flow, models, serve
from taglio.cli.options import INTERRUPTED
from taglio.cli.words import as_flags
from taglio.errors import BadOption, TaglioError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code (0 only on success)."""
    remarks = logging.StreamHandler(sys.stderr)
    remarks.setFormatter(logging.Formatter("taglio: %(message)s"))
    log = logging.getLogger("taglio.flow")
    log.addHandler(remarks)
    try:
        own, after = _split(list(sys.argv[1:] if arguments is None else arguments))
        options = build_parser().parse_args(own, argparse.Namespace(after=after))
        log.setLevel(logging.WARNING if getattr(options, "json", False) else logging.INFO)
        code = options.command(options)
    except TaglioError as error:
        sys.stderr.write(f"taglio: {type(error).__name__}: {as_flags(str(error))}\n")
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("taglio: stopped; the results of earlier stages are intact\n")
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except MemoryError:
        sys.stderr.write("taglio: out of memory: lower --memory-limit, or give smaller inputs with --shape\n")
        return 2
    except OSError as error:
        why = "the disk is full" if error.errno == errno.ENOSPC else (error.strerror or str(error))
        name = error.filename or "input/output"
        sys.stderr.write(f"taglio: {name}: {why}; the results of earlier stages are intact\n")
        return 2
    finally:
        log.removeHandler(remarks)
    return int(code or 0)


def entry() -> NoReturn:
    """`taglio` as a process: run the command line and exit with its code."""
    code = main()
    if "ray" in sys.modules:
        # After Ctrl-C Ray's threads may still be in a request, and would crash in the interpreter's own exit; its
        # daemons notice that this process ended, and end what it had started.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """The arguments before and after the first "--", because argparse would mix up the command for emulate."""
    if arguments[:1] != ["emulate"] or "--" not in arguments:
        return arguments, []
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1 :]


class _Parser(argparse.ArgumentParser):
    """Reports a wrong command line like any other error: in one line, with the fix."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # -1% and -1GB are values too, which their options refuse.
        self._negative_number_matcher = re.compile(r"-\.?\d")

    def error(self, message: str) -> NoReturn:
        raise BadOption(f"{message}: see {self.prog} --help")


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands; docs/cli.md is generated from it."""
    parser = _Parser(
        prog="taglio",
        description="Find the fastest mixed-precision form of a neural network that keeps its answers, and prove it.",
    )
    parser.add_argument("--version", action="version", version=f"taglio {_version()}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for group in (models, flow, clusters, engine, emulate, serve, compare, backends):
        group.add(commands)
    return parser


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("taglio")
    except PackageNotFoundError:
        return "(not installed)"
