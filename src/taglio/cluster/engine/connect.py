"""Connect to a running cluster from one of its devices. Starts no device and sends no tensor."""

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from taglio import artifact
from taglio.cluster.engine import local
from taglio.cluster.engine.device import LOOPBACK, RESOURCE, Address, ConnectionLost, failure, refuse_lost_head
from taglio.cluster.engine.library import ray
from taglio.cluster.engine.listen import hold_to
from taglio.cluster.engine.local import LocalDevice
from taglio.cluster.engine.resident import DeviceFacts, facts
from taglio.errors import BadDevice, TaglioError, one_line
from taglio.memory import keep_memory

_PATIENCE_S = 60.0
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Connection:
    """A connection to a cluster through the device `here` on this machine."""

    here: LocalDevice

    def alive(self) -> dict[str, bool]:
        """Whether each device known to the cluster is alive; one that returned is. Raises ConnectionLost."""
        nodes = [(name, node["Alive"]) for node in self._nodes() for name in _devices(node)]
        return {name: (name, True) in nodes for name, _ in nodes}

    def addresses(self) -> dict[str, Address]:
        """Where the engine of each living device listens. Raises ConnectionLost."""
        return addresses(self._nodes())

    def _nodes(self) -> list[dict[str, Any]]:
        refuse_lost_head(self.here.address)  # Ray would wait silently, and end the process after a minute
        nodes: list[dict[str, Any]] = ray().nodes()
        ours = ray().get_runtime_context().get_node_id()  # a device that was started again has another one
        for node in nodes:
            if node["NodeID"] == ours and failure((node["NodeManagerAddress"], node["NodeManagerPort"]), 5.0) is None:
                return nodes
        raise ConnectionLost(
            f'device "{self.here.name}" on this machine was lost: start it if it is not back (taglio cluster start '
            f"--name {self.here.name}), and run this command again"
        )

    def need(self, names: list[str]) -> None:
        """Raise BadDevice if one of `names` is not in the cluster."""
        there = [name for name, up in self.alive().items() if up]
        for name in names:
            if name not in there:
                raise BadDevice(
                    f'device "{name}" is not in the cluster at {self.here.address} (there: '
                    f"{', '.join(there) or 'none'}): on it, run taglio cluster start --name {name} --address "
                    f"{self.here.address}"
                )


@contextlib.contextmanager
def connect(prefer: str | None = None) -> Iterator[Connection]:
    """A connection through the local device `prefer`, or another local device. Raises BadDevice if none runs here."""
    running = local.running()
    if not running:
        raise BadDevice(
            "no device runs on this machine: taglio cluster start --name NAME --address HOST:PORT (or --head) first"
        )
    here = next((device for device in running if device.name == prefer), running[0])
    refuse_lost_head(here.address)
    os.environ.update(here.access())
    if here.host == LOOPBACK:  # otherwise Ray looks for the head at this machine's network address
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    hold_to(here.host)  # a program that uses the cluster also listens, for callbacks
    library = ray()  # Ray reads the environment on import
    keep_memory()
    # Ray would print pages of node reports on standard output, where a command's result goes.
    library._private.worker.print_to_stdstream = _log  # noqa: SLF001
    before = signal.getsignal(signal.SIGTERM)
    try:
        library.init(
            address=here.address,
            namespace="taglio",
            log_to_driver=False,
            logging_level="critical",
            _temp_dir=str(here.folder),
        )
    except Exception as error:
        raise BadDevice(
            f"the cluster at {here.address} cannot be reached through {here.name}: {one_line(error, 200)}"
        ) from None
    # Ray handles SIGTERM by exiting with 15 without a word, and in the kernel by printing its stack.
    if before is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)
    try:
        yield Connection(here)
    except (KeyboardInterrupt, ConnectionLost):
        raise  # a Ray thread may be inside a request, and shutting down under it crashes or hangs: see entry()
    except BaseException:
        library.shutdown()
        raise
    library.shutdown()


def addresses(nodes: Iterable[Mapping[str, Any]]) -> dict[str, Address]:
    """Where the engine of each living device among Ray's nodes listens."""
    return {
        name: (node["NodeManagerAddress"], node["NodeManagerPort"])
        for node in nodes
        if node["Alive"]
        for name in _devices(node)
    }


def _devices(node: Mapping[str, Any]) -> list[str]:
    """The device that one of Ray's nodes is, if any."""
    resources = node.get("Resources", {})
    return [name.removeprefix(RESOURCE) for name in resources if name.startswith(RESOURCE)]


def _log(data: dict[str, Any], **_options: bool) -> None:
    _LOG.info("%s: %s", data.get("pid"), data.get("lines"))


def on(name: str) -> dict[str, Any]:
    """Options that pin an actor or a task to a device."""
    return {"num_cpus": 0, "resources": {RESOURCE + name: 0.001}}


def gather(connection: Connection, names: Collection[str] | None = None) -> dict[str, DeviceFacts]:
    """Facts about every living device, or about `names`. Raises BadDevice for a device with another taglio version or
    without an answer."""
    alive = connection.alive().items()
    asked = [name for name, up in alive if up and (names is None or name in names)]
    answers = {name: ray().remote(facts).options(**on(name), max_retries=0).remote() for name in asked}
    facts_of = {}
    for name, answer in answers.items():
        try:
            facts_of[name] = ray().get(answer, timeout=_PATIENCE_S)
        except Exception as error:
            raise refusal(name, error) from None
    return facts_of


def refusal(name: str, error: Exception) -> TaglioError:
    """A failure on a device as a one-line error."""
    exceptions = ray().exceptions
    if isinstance(error, TaglioError) and not isinstance(error, exceptions.RayError):  # raised here, not on the device
        return error
    if isinstance(error, exceptions.GetTimeoutError):
        return BadDevice(f'device "{name}" did not answer within {_PATIENCE_S:.0f} s: see taglio cluster status')
    cause, text = getattr(error, "cause", None) or error, " ".join(str(error).split())
    if isinstance(cause, ImportError | AttributeError) or "ModuleNotFoundError" in text:
        return BadDevice(
            f'device "{name}" cannot run this taglio ({text[-200:]}): install taglio[cluster] '
            f"{artifact.version_of('taglio')} there"
        )
    if isinstance(cause, BadDevice):
        return cause
    return BadDevice(f'device "{name}": {one_line(cause, 300)}')
