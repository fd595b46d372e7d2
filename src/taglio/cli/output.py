"""The result of a command, and how it is printed: as one JSON object with --json, else as tables and lines."""

import argparse
import io
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

INTERRUPTED = 130  # the exit code after Ctrl-C


@dataclass(frozen=True, slots=True)
class Shown:
    """The result of a command: `value` is printed with --json, `show` prints it otherwise; `remark` is a line for
    standard error ("" for none)."""

    value: Any
    show: Callable[[], None]
    remark: str = ""
    code: int = 0


def execute(command: Callable[[argparse.Namespace], Shown | int], options: argparse.Namespace) -> int:
    """Run a command with a progress bar in `options.progress`, and print its result; returns the exit code.

    A command that prints while it runs returns its exit code instead.
    """
    from taglio.report.progress import bar

    with bar(getattr(options, "json", False)) as options.progress:
        shown = command(options)
    if isinstance(shown, int):
        return shown
    if shown.remark:
        sys.stderr.write(f"taglio: {shown.remark}\n")
    if options.json:
        emit(shown.value)
    else:
        shown.show()
    return shown.code


def emit(value: Any) -> None:
    """Print one JSON object, which is UTF-8 in every locale."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
