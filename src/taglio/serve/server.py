"""Start and stop both listeners in one process. Answers no request itself."""

import asyncio
import contextlib
import errno
import gc
import ipaddress
import signal
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc
import uvicorn

from taglio.errors import BadOption
from taglio.memory import trim
from taglio.serve.grpc import server as grpc_server
from taglio.serve.rest import application
from taglio.serve.served import ServedModel
from taglio.serve.service import InferenceService, Settings


@dataclass(frozen=True, slots=True)
class Listen:
    """Where to listen; a port of 0 takes a free one. `tls` are a certificate and its key, both PEM files."""

    host: str
    http_port: int
    grpc_port: int
    tls: tuple[Path, Path] | None = None


class _Http(uvicorn.Server):
    """Leaves signals to this module: both listeners stop together, after draining requests."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def serve(
    models: Sequence[ServedModel], settings: Settings, listen: Listen, started: Callable[[str, str], None]
) -> int:
    """Answer requests until SIGTERM or SIGINT, then drain; returns the number of requests not answered in time.
    `started` is called with the addresses of REST and gRPC once both listen.

    Raises BadOption for a port in use, and for an address other than loopback without a token or TLS.
    """
    _check(listen, settings)
    gc.freeze()  # objects that stay for good are not scanned again
    service = InferenceService(models, settings)
    certificate, key = listen.tls or (None, None)
    config = uvicorn.Config(
        application(service),
        http="httptools",
        log_config=None,
        access_log=False,
        ws="none",
        lifespan="off",
        timeout_keep_alive=75,
        timeout_graceful_shutdown=int(settings.patience_s) + 1,
        ssl_certfile=certificate,
        ssl_keyfile=key,
        server_header=False,
        proxy_headers=False,
    )
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        return runner.run(_serve(service, config, listen, started))


async def _serve(
    service: InferenceService, config: uvicorn.Config, listen: Listen, started: Callable[[str, str], None]
) -> int:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    patience_s = service.settings.patience_s
    host = f"[{listen.host}]" if ":" in listen.host else listen.host
    with _socket(listen.host, listen.http_port) as bound:
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # ends connections whose client stops reading
            bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(patience_s * 1e3))
        _socket(listen.host, listen.grpc_port).close()  # before gRPC starts, which would write lines of its own
        http, rpc = _Http(config), grpc_server(service)
        port = _add_port(rpc, f"{host}:{listen.grpc_port}", listen)
        await rpc.start()
        running = asyncio.ensure_future(http.serve([bound]))
        while not http.started and not running.done():
            await asyncio.sleep(0.005)
        scheme = "https" if listen.tls else "http"
        started(f"{scheme}://{host}:{bound.getsockname()[1]}", f"{host}:{port}")
        trimming = asyncio.ensure_future(_trim())
        waiting = asyncio.ensure_future(stop.wait())
        await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        trimming.cancel()
        unanswered = await service.close()
        await rpc.stop(grace=1.0)
        http.should_exit = True
        await running
        return unanswered


async def _trim() -> None:
    """Return freed memory to the system, which the C library would keep after a burst of large requests."""
    while True:
        await asyncio.sleep(5.0)
        gc.collect()  # connections that broke refer to themselves, with what they had read
        await asyncio.to_thread(trim)


def _check(listen: Listen, settings: Settings) -> None:
    if listen.http_port == listen.grpc_port != 0:
        raise BadOption(f"HTTP and gRPC cannot share port {listen.http_port}: give two ports")
    try:
        loopback = ipaddress.ip_address(listen.host).is_loopback
    except ValueError:
        loopback = listen.host == "localhost"
    if not (loopback or settings.token or listen.tls):
        raise BadOption(
            f"host {listen.host}: others could use the models: give a token or a TLS certificate, or use 127.0.0.1"
        )
    if listen.tls:
        certificate, key = listen.tls
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key, "")
        except OSError as error:
            why = getattr(error, "reason", None) or error.strerror
            raise BadOption(
                f"TLS certificate {certificate} and key {key} cannot be used ({why}): give a certificate "
                "and its key without a passphrase, in PEM files"
            ) from None


def _socket(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    except OSError as error:
        raise _refused(host, port, error) from None
    # The protocol is explicitly TCP: otherwise asyncio does not set TCP_NODELAY.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise _refused(host, port, error) from None
    return bound


def _add_port(rpc: "grpc.aio.Server", address: str, listen: Listen) -> int:
    if listen.tls:
        certificate, key = (path.read_bytes() for path in listen.tls)
        return int(rpc.add_secure_port(address, grpc.ssl_server_credentials([(key, certificate)])))
    return int(rpc.add_insecure_port(address))


def _refused(host: str, port: int, error: OSError) -> BadOption:
    fixes = {
        errno.EADDRINUSE: "choose another port, or stop what uses it",
        errno.EACCES: "choose a port above 1023",
    }
    fix = fixes.get(error.errno or 0, "give an address of this machine")
    return BadOption(f"cannot listen on {host} port {port} ({error.strerror or error}): {fix}")
