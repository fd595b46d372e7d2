"""What commands print beside their tables."""

import sys
from typing import Any

import msgspec

INTERRUPTED = 130  # the exit code after Ctrl-C


def remark(text: str) -> None:
    """Print a line on standard error, beside the result; nothing if `text` is empty."""
    if text:
        sys.stderr.write(f"taglio: {text}\n")


def emit(value: Any) -> int:
    """Print one JSON object; returns the exit code."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    return 0
