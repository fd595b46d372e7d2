"""`ray start` as a device needs it. A program of its own: python -m taglio.cluster.engine.raystart start ...

The address: Ray listens on 127.0.0.1 or on every interface. It replaces 127.0.0.1 by the machine's address in the
network, so that other machines can join, and then listens everywhere. Here addresses stay as they were written; with
127.0.0.1 kept, Ray listens there only, and with another it is held to it (listen.py).

The head: where the process that knows the members ends, `ray start --block` ends the whole device, and with it every
program on it that uses the cluster. Here that process alone is started again. It reads from its storage what it knew,
and the others find it within what RAY_gcs_rpc_server_reconnect_timeout_s allows.
"""

import importlib
import sys
from typing import Any

from taglio.cluster.engine.listen import hold_to
from taglio.errors import TaglioError

_MEMBERS = "gcs_server"


def main() -> None:
    """Run Ray's own command line."""
    host = next(each.partition("=")[2] for each in sys.argv if each.startswith("--node-ip-address="))
    try:
        hold_to(host)
    except TaglioError as error:
        sys.exit(f"Error: {error}")
    services: Any = importlib.import_module("ray._private.services")
    services.resolve_ip_for_localhost = lambda host: host
    node: Any = importlib.import_module("ray._private.node").Node
    node.dead_processes = _restarting(node.dead_processes)
    scripts: Any = importlib.import_module("ray.scripts.scripts")
    # Nobody here speaks Ray's client protocol, whose server would listen on port 10001.
    scripts.get_ray_client_dependency_error = lambda: "not offered"
    scripts.main()


def _restarting(dead_processes: Any) -> Any:
    """Ray's look at its processes, which --block takes each second, with the members' one started anew if it is all
    that ended."""

    def look(node: Any) -> Any:
        dead = dead_processes(node)
        if [kind for kind, _ in dead] != [_MEMBERS]:
            return dead
        del node.all_processes[_MEMBERS]
        node._gcs_address = node._gcs_client = None  # noqa: SLF001 - as Node.kill_gcs_server leaves them
        node.start_gcs_server()
        return []

    return look


if __name__ == "__main__":
    main()
