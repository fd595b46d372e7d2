"""Connect to a running cluster from one of its devices. Starts no device and sends no tensor."""

import contextlib
import logging
import os
import socket
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from taglio import artifact
from taglio.cluster.engine import local
from taglio.cluster.engine.device import LOOPBACK, split
from taglio.cluster.engine.library import ray
from taglio.cluster.engine.listen import hold_to
from taglio.cluster.engine.local import LocalDevice
from taglio.cluster.engine.members import RESOURCE, devices
from taglio.cluster.engine.resident import Facts, facts
from taglio.errors import BadDevice, TaglioError, one_line
from taglio.memory import keep_memory

_PATIENCE_S = 60.0
# Ray waits silently for a lost head, and ends the process after two minutes.
_HEAD_PATIENCE_S, _HEAD_ANSWER_S = 60.0, 5.0
_LOG = logging.getLogger(__name__)


class HeadLost(BadDevice):
    """The head does not answer; without it nothing new can be started on any device."""

    def __init__(self, address: str) -> None:
        super().__init__(
            f"the head of the cluster does not answer at {address}: start it there (taglio device start --head --name "
            "NAME); after a crash it restores its state"
        )


@dataclass(frozen=True, slots=True)
class Connection:
    """A connection to a cluster through a device on this machine."""

    here: LocalDevice

    def alive(self) -> dict[str, bool]:
        """Whether each device known to the cluster is alive. Raises HeadLost if the head does not answer for a
        minute."""
        head, end = self.here.address, time.monotonic() + _HEAD_PATIENCE_S
        if not _answers(head):
            _LOG.warning("the head at %s does not answer: waiting up to %.0f s", head, _HEAD_PATIENCE_S)
            while not _answers(head):
                if time.monotonic() > end:
                    raise HeadLost(head)
                time.sleep(0.2)
        return devices(ray().nodes())

    def need(self, names: list[str]) -> None:
        """Raise BadDevice if one of `names` is not in the cluster."""
        there = [name for name, up in self.alive().items() if up]
        for name in names:
            if name not in there:
                raise BadDevice(
                    f'device "{name}" is not in the cluster at {self.here.address} (there: '
                    f"{', '.join(there) or 'none'}): on it, run taglio device start --name {name} --address "
                    f"{self.here.address}"
                )


@contextlib.contextmanager
def connect(prefer: str | None = None) -> Iterator[Connection]:
    """A connection through the local device `prefer`, or another local device. Raises BadDevice if none runs here."""
    known = local.known()
    if not known:
        raise BadDevice(
            "no device runs on this machine: taglio device start --name NAME --address HOST:PORT (or --head) first"
        )
    here = next((each for each in known if each.name == prefer), known[0])
    if not _answers(here.address):
        raise HeadLost(here.address)
    os.environ.update(here.lock.environment())
    if here.host == LOOPBACK:  # otherwise Ray looks for the head at this machine's network address
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    hold_to(here.host)  # a program that uses the cluster also listens, for callbacks
    library = ray()  # Ray reads the environment on import
    keep_memory()
    # Ray would print pages of node reports on standard output, where a command's result goes.
    library._private.worker.print_to_stdstream = _log  # noqa: SLF001
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
    try:
        yield Connection(here)
    except (KeyboardInterrupt, HeadLost):
        raise  # a Ray thread may be inside a request, and shutting down under it crashes or hangs: see entry()
    except BaseException:
        library.shutdown()
        raise
    library.shutdown()


def _answers(address: str) -> bool:
    try:
        socket.create_connection(split(address), timeout=_HEAD_ANSWER_S).close()
    except OSError:
        return False
    return True


def _log(data: dict[str, Any], **_options: bool) -> None:
    _LOG.info("%s: %s", data.get("pid"), data.get("lines"))


def on(name: str) -> dict[str, Any]:
    """Options that pin an actor or a task to a device."""
    return {"num_cpus": 0, "resources": {RESOURCE + name: 0.001}}


def ask(name: str) -> Any:
    """Begin to ask a device for facts; the result is one of Ray's references."""
    return ray().remote(facts).options(**on(name), max_retries=0).remote()


def gather(connection: Connection, names: Collection[str] | None = None) -> dict[str, Facts]:
    """Facts about every living device, or about `names`. Raises BadDevice for a device with another taglio version or
    without an answer."""
    alive = connection.alive().items()
    asked = {name: ask(name) for name, up in alive if up and (names is None or name in names)}
    found = {}
    for name, answer in asked.items():
        try:
            found[name] = ray().get(answer, timeout=_PATIENCE_S)
        except Exception as error:
            raise refusal(name, error) from None
    return found


def same_version(found: Facts) -> None:
    """Raise BadDevice for a device with another taglio version."""
    ours = artifact.version_of("taglio")
    theirs = found.versions.get("taglio", "none")
    if theirs != ours:
        raise BadDevice(
            f'device "{found.device}" has taglio {theirs}, this machine has {ours}: install the same version on both'
        )


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
