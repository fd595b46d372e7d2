"""Translate the library's messages for the command line: argument names become flags. Changes nothing else in a
message."""

import re

from taglio.cli.options import OPTIONS
from taglio.cli.parser import COMMANDS

_COMMANDS = {
    "inspect": "taglio inspect MODEL --blocks",
    "profile": "taglio profile MODEL --data DATA -o OUT",
    "error": "taglio error OUT",
    "plan": "taglio plan OUT --max-error E",
    "build": "taglio build OUT",
    "run": "taglio run OUT",
}


def as_flags(message: str) -> str:
    """`max_error` → --max-error, `taglio plan` → the command with its arguments."""
    message = re.sub(r"`taglio (\w+)`", lambda found: _COMMANDS.get(found[1], f"taglio {found[1]}"), message)
    options = [item for each in (OPTIONS, *(command.own for command in COMMANDS)) for item in each.items()]
    known = {"model": "MODEL"} | {how["dest"]: name for name, how in options if "dest" in how}
    return re.sub(r"`([a-z][a-z0-9_]*)`", lambda found: known.get(found[1], f"--{found[1].replace('_', '-')}"), message)
