"""`ray start` adapted for a device. A separate program: python -m taglio.cluster.engine.raystart start ...

Address: Ray listens on 127.0.0.1 or on every interface. It replaces 127.0.0.1 by the machine's network address, so that
other machines can join, and then listens everywhere. Here addresses stay as given: with 127.0.0.1 Ray listens only
there, and any other address is enforced (listen.py).
"""

import importlib
import sys
from typing import Any

from taglio.cluster.engine.listen import hold_to
from taglio.errors import TaglioError


def main() -> None:
    """Run Ray's own command line."""
    host = next(each.partition("=")[2] for each in sys.argv if each.startswith("--node-ip-address="))
    try:
        hold_to(host)
    except TaglioError as error:
        sys.exit(f"Error: {error}")
    services: Any = importlib.import_module("ray._private.services")
    services.resolve_ip_for_localhost = lambda host: host
    scripts: Any = importlib.import_module("ray.scripts.scripts")
    # Ray's client protocol, whose server would listen on port 10001, is not used.
    scripts.get_ray_client_dependency_error = lambda: "not offered"
    scripts.main()


if __name__ == "__main__":
    main()
