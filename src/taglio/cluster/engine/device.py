"""Make this machine a device of a cluster: wraps Ray's start command with taglio's names, token and TLS."""

import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

from taglio.cluster.devices import NAME
from taglio.cluster.engine import keeper, listen, local, lock
from taglio.cluster.engine.library import SETTINGS, installed
from taglio.cluster.engine.local import LocalDevice
from taglio.errors import BadDevice, BadOption
from taglio.progress import Progress

# Host and port.
Address = tuple[str, int]
LOOPBACK = "127.0.0.1"
DEVICE, THREADS, STORE = "TAGLIO_DEVICE", "TAGLIO_THREADS", "TAGLIO_COMPONENTS"
# A resource of Ray that only the device called as the rest of its name has.
RESOURCE = "taglio:"
_PATIENCE_S = 90.0
# A device is declared dead after about this long without an answer.
_HEALTH = {
    "RAY_health_check_initial_delay_ms": "2000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "4000",
    "RAY_health_check_failure_threshold": "4",
    # Ray would lower the priority of its workers, but components are a device's main work.
    "RAY_worker_niceness": "0",
}


class ConnectionLost(BadDevice):
    """The head or the device here is lost: this process can start nothing on any device any more."""


def start(device: LocalDevice, progress: Progress | None = None) -> None:
    """Start a device and wait until it is a member of its cluster. Raises BadOption and BadDevice, each with the
    fix."""
    name = device.name
    if not NAME.fullmatch(name):
        raise BadOption(f'`name` "{name}": write a name of letters, digits, "-", "_" and "."')
    listen.address(device.host)
    installed()
    if local.keeper(device.folder) is not None:
        raise BadDevice(f'device "{name}" runs on this machine already: taglio cluster stop --name {name}')
    if device.head:
        _free(*split(device.address))
        lock.make_token(Path(device.token))
    environment = {**os.environ, **device.access(), **_HEALTH, **SETTINGS}
    environment.pop("RAY_AUTH_TOKEN", None)  # it would take precedence over the file
    if not device.head:
        refuse_lost_head(device.address)
    folder = local.prepare(name)
    environment |= {DEVICE: name, THREADS: str(device.threads), STORE: str(folder / "components")}
    command = [sys.executable, "-m", "taglio.cluster.engine.keeper", str(folder), *_command(device, folder)]
    (folder / local.LOG).unlink(missing_ok=True)
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True, cwd=folder,
    )  # fmt: skip
    local.remember(device, process.pid)
    try:
        _wait(process, folder, device, progress)
    except BaseException:
        local.stop([device])
        process.wait()
        raise


def _command(device: LocalDevice, folder: Path) -> list[str]:
    role = [f"--address={device.address}"]
    if device.head:
        # No monitor: nothing is scaled, and it would answer /metrics to whoever asks, without the token.
        port = f"--port={split(device.address)[1]}"
        role = ["--head", port, "--include-dashboard=false", "--dashboard-port=0", "--no-monitor"]
    return [
        sys.executable, "-m", "taglio.cluster.engine.raystart", "start", *role, "--block",
        f"--node-ip-address={device.host}",
        "--num-cpus=0", "--num-gpus=0", f"--resources={json.dumps({RESOURCE + device.name: 1})}",
        # Messages are sent inside calls (library.py): Ray's store, of 80 MB at least, holds only larger ones.
        f"--object-store-memory={200 * 10**6}", f"--temp-dir={folder}",
        "--disable-usage-stats", "--include-log-monitor=false", "--log-color=false",
        # Ray reserves ports for its workers and for services not used here, and would refuse them as --port.
        "--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0",
    ]  # fmt: skip


def _wait(process: "subprocess.Popen[bytes]", folder: Path, device: LocalDevice, progress: Progress | None) -> None:
    begun = time.monotonic()
    log = folder / local.LOG
    while True:
        text = log.read_text(errors="replace") if log.exists() else ""
        if keeper.STARTED in text:
            return
        waited = time.monotonic() - begun
        if process.poll() is not None or waited > _PATIENCE_S:
            raise BadDevice(f'device "{device.name}" did not start: {_reason(text)} (full log: {log})')
        if progress:
            progress(f"starting {device.name}", int(waited), int(_PATIENCE_S))
        time.sleep(0.05)


def _reason(text: str) -> str:
    """The line of Ray's output with the reason."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if re.search(r"Error|Exception|PANIC|Unauthenticated|failed", line)]
    return (telling or lines or ["no output"])[-1].removeprefix("Error: ")[:400]


def split(address: str) -> Address:
    """Host and port of HOST:PORT. Raises BadOption."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise BadOption(f'`address` "{address}": write HOST:PORT, such as 192.168.1.10:6379')
    return host, int(port)


def _free(host: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise BadDevice(
                f"{host}:{port} cannot be bound ({error.strerror}): choose another `port`, or an address of "
                "this machine as `host`"
            ) from None


def refuse_lost_head(address: str) -> None:
    """Raise ConnectionLost if nothing answers at `address`, that of a head: Ray would try for a minute."""
    host, port = split(address)
    if (error := failure((host, port), 5.0)) is not None:
        raise ConnectionLost(
            f"nothing answers at {address} ({error.strerror or error}): start the head of the cluster there (taglio "
            f"cluster start --head --host {host} --port {port}), or correct `address`"
        )


def failure(address: Address, patience_s: float) -> OSError | None:
    """Why no connection can be made to `address` within `patience_s`; None if one can."""
    try:
        socket.create_connection(address, timeout=patience_s).close()
    except OSError as error:
        return error
    return None
