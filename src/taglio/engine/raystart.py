"""`ray start` for addresses that are loopback. A program of its own: python -m taglio.engine.raystart start ...

Ray replaces 127.0.0.1 by the machine's address in the network, so that other machines can join, and then listens on
every interface. On loopback that is not what is asked for: with 127.0.0.1 kept, Ray listens there only.
"""

import importlib
from typing import Any


def main() -> None:
    """Run Ray's own command line, with addresses as they were written."""
    services: Any = importlib.import_module("ray._private.services")
    services.resolve_ip_for_localhost = lambda host: host
    importlib.import_module("ray.scripts.scripts").main()


if __name__ == "__main__":
    main()
