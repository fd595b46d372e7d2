"""`ray start` adapted for a device. A separate program: python -m taglio.cluster.engine.raystart start ...

Address: Ray listens on 127.0.0.1 or on every interface. It replaces 127.0.0.1 by the machine's network address, so that
other machines can join, and then listens everywhere. Here addresses stay as given: with 127.0.0.1 Ray listens only
there, and any other address is enforced (listen.py).

Head: if the process that knows the members (GCS) ends, `ray start --block` ends the whole device, and with it every
program there that uses the cluster. Here only that process is restarted. It restores its state from storage, and the
others reconnect within RAY_gcs_rpc_server_reconnect_timeout_s.
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
    # Ray's client protocol, whose server would listen on port 10001, is not used.
    scripts.get_ray_client_dependency_error = lambda: "not offered"
    scripts.main()


def _restarting(dead_processes: Any) -> Any:
    """Ray's check of its processes, which --block runs every second, but restarting the GCS if only that has ended."""

    def look(node: Any) -> Any:
        dead = dead_processes(node)
        if [kind for kind, _ in dead] != [_MEMBERS]:
            return dead
        del node.all_processes[_MEMBERS]
        node._gcs_address = node._gcs_client = None  # noqa: SLF001 - the state after Node.kill_gcs_server
        node.start_gcs_server()
        return []

    return look


if __name__ == "__main__":
    main()
