"""`ray start` adapted for a device. A separate program: python -m taglio.cluster.engine.raystart start ...

Address: Ray listens on 127.0.0.1 or on every interface. It replaces 127.0.0.1 by the machine's network address, so that
other machines can join, and then listens everywhere. Here addresses stay as given: with 127.0.0.1 Ray listens only
there, and any other address is enforced (listen.py).

Name: Ray lets any number of devices have one name. Here a device whose name a living one has does not join.
"""

import importlib
import os
import re
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from taglio.cluster.engine.device import DEVICE, RESOURCE
from taglio.cluster.engine.listen import hold_to
from taglio.errors import BadDevice, TaglioError, one_line


def main() -> None:
    """Run Ray's own command line."""
    options = dict(word.split("=", 1) for word in sys.argv if "=" in word)
    sessions = list(Path(options["--temp-dir"]).glob("session_*"))  # from earlier starts
    try:
        hold_to(options["--node-ip-address"])
        if "--address" in options:
            # A device that was killed here counts as alive for a few more seconds.
            refuse_taken(options["--address"], os.environ[DEVICE], 30.0 if sessions else 0.0)
    except TaglioError as error:
        sys.exit(f"Error: {error}")
    for session in sessions:
        shutil.rmtree(session, ignore_errors=True)
    services: Any = importlib.import_module("ray._private.services")
    services.resolve_ip_for_localhost = lambda host: host
    scripts: Any = importlib.import_module("ray.scripts.scripts")
    # Ray's client protocol, whose server would listen on port 10001, is not used.
    scripts.get_ray_client_dependency_error = lambda: "not offered"
    scripts.main()


def refuse_taken(address: str, name: str, patience_s: float) -> None:
    """Raise BadDevice if the head at `address` refuses us, or has had a living device `name` for `patience_s`."""
    raylet: Any = importlib.import_module("ray._raylet")
    alive = importlib.import_module("ray.core.generated.gcs_pb2").GcsNodeInfo.ALIVE
    end = time.monotonic() + patience_s
    while True:
        try:
            nodes = raylet.GcsClient(address).get_all_node_info(timeout=10.0).values()
        except Exception as error:
            if re.search(r"(?i)unauthenticated|authentication", f"{type(error).__name__} {error}"):
                raise BadDevice(
                    f"{address} refuses the token in {os.environ['RAY_AUTH_TOKEN_PATH']}: copy the head's token file "
                    "to this machine, or name it as `token`"
                ) from None
            raise BadDevice(
                f"{address} does not answer like a head ({one_line(error, 100)}): it may use TLS where this device "
                "does not, or have certificates of another authority (`tls`), or be something else"
            ) from None
        if not any(node.state == alive and RESOURCE + name in node.resources_total for node in nodes):
            return
        if time.monotonic() > end:
            raise BadDevice(f'the cluster at {address} has a device "{name}" already: choose another `name`')
        time.sleep(0.5)


if __name__ == "__main__":
    main()
