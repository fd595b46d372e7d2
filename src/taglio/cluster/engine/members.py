"""List the devices of a head: python -m taglio.cluster.engine.members HOST:PORT. Joins no cluster."""

import json
import sys
from typing import Any

from taglio.cluster.engine.library import ray

RESOURCE = "taglio:"
# Host and port.
Address = tuple[str, int]


def devices(nodes: list[dict[str, Any]]) -> dict[str, bool]:
    """Whether each device among Ray's nodes is alive; one that returned is."""
    alive: dict[str, bool] = {}
    for node in nodes:
        for name in node.get("Resources", {}):
            if name.startswith(RESOURCE):
                alive[name.removeprefix(RESOURCE)] = alive.get(name.removeprefix(RESOURCE), False) or node["Alive"]
    return alive


def addresses(nodes: list[dict[str, Any]]) -> dict[str, Address]:
    """Where the engine of each living device among Ray's nodes listens."""
    return {
        name.removeprefix(RESOURCE): (node["NodeManagerAddress"], node["NodeManagerPort"])
        for node in nodes
        if node["Alive"]
        for name in node.get("Resources", {})
        if name.startswith(RESOURCE)
    }


def main(address: str) -> int:
    """Print the devices as JSON."""
    library = ray()
    options = library._raylet.GcsClientOptions.create(  # noqa: SLF001
        address, None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=False
    )
    library._raylet.GcsClient(address).get_all_node_info(timeout=10.0)  # noqa: SLF001
    state = library._private.state.GlobalState()  # noqa: SLF001
    state._initialize_global_state(options)  # noqa: SLF001 - what Ray's own status command calls
    print(json.dumps(devices(state.node_table())))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
