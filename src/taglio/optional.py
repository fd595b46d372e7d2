"""Import a package that only some users have. Knows none of them."""

import importlib
from typing import Any

from taglio.errors import BadOption


def optional(name: str, missing: str) -> Any:
    """The module `name`. Raises BadOption with the message `missing` if it is not installed, and KeyboardInterrupt if
    Ctrl-C came while it was loaded, which compiled modules turn into an ImportError."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if isinstance(error.__cause__, KeyboardInterrupt):
            raise error.__cause__ from None
        raise BadOption(missing) from None
