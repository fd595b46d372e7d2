"""Translate the library's messages for the command line: argument names become flags. Changes nothing else in a
message."""

import re

from taglio.cli.options import OPTIONS
from taglio.cli.parser import COMMANDS


def as_flags(message: str) -> str:
    """`max_error` → --max-error, `taglio plan` → taglio plan."""
    message = re.sub(r"`(taglio \w+)`", r"\1", message)
    options = [item for table in (OPTIONS, *(command.own for command in COMMANDS)) for item in table.items()]
    flag_of = {"model": "MODEL"} | {how["dest"]: name for name, how in options if "dest" in how}
    return re.sub(
        r"`([a-z][a-z0-9_]*)`", lambda match: flag_of.get(match[1], f"--{match[1].replace('_', '-')}"), message
    )
