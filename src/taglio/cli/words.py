"""Translate the library's messages for the command line: argument names become flags. Changes nothing else in a
message."""

import re

from taglio.cli.options import OPTIONS
from taglio.cli.parser import COMMANDS

_TABLES = (OPTIONS, *(command.own for command in COMMANDS))
_FLAGS = {"model": "MODEL"} | {how["dest"]: name for table in _TABLES for name, how in table.items() if "dest" in how}


def as_flags(message: str) -> str:
    """`max_error` → --max-error, `taglio plan` → taglio plan."""
    message = re.sub(r"`(taglio \w+)`", r"\1", message)
    return re.sub(
        r"`([a-z][a-z0-9_]*)`", lambda match: _FLAGS.get(match[1], f"--{match[1].replace('_', '-')}"), message
    )
