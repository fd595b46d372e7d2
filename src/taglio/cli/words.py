"""Translate the library's messages for the command line: argument names become flags. Changes nothing else in a
message."""

import re

# Flags that differ from the argument's name with dashes.
_FLAGS = {
    "model": "MODEL",
    "shapes": "--shape",
    "pins": "--pin",
    "cuts": "--cut",
    "running": "--from",
    "changes": "--what-if",
    "rate_per_s": "--rate",
    "min_rate_per_s": "--min-rate",
    "max_latency_s": "--max-latency-ms",
    "time_limit_s": "--time-limit",
}
_COMMANDS = {
    "profile": "taglio profile MODEL --data DATA -o OUT",
    "error": "taglio error OUT",
    "plan": "taglio plan OUT --max-error E",
    "build": "taglio build OUT",
    "run": "taglio run OUT",
}


def as_flags(message: str) -> str:
    """`max_error` → --max-error, `taglio plan` → the command with its arguments."""
    message = re.sub(r"`taglio (\w+)`", lambda found: _COMMANDS.get(found[1], f"taglio {found[1]}"), message)
    return re.sub(r"`([a-z][a-z0-9_]*)`", lambda found: _flag(found[1]), message)


def _flag(argument: str) -> str:
    return _FLAGS.get(argument, f"--{argument.replace('_', '-')}")
