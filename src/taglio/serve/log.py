"""Log what a server's operator should know: a JSON object per line on standard error. Clients get no part of it."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """One JSON object, with the traceback of an error."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def _is_kept(record: logging.LogRecord) -> bool:
    """Whether to log a record: not uvicorn's trace of a client that left before it read its answer."""
    error = record.exc_info[1] if record.exc_info else None
    return not (isinstance(error, RuntimeError) and "is closed" in str(error))


def to_stderr() -> None:
    """Log warnings and errors of this process from now on, of the listeners and the cluster, too."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines())
    handler.addFilter(_is_kept)
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # below are the faults of clients
