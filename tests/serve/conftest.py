"""A server process over the workspace of a small model, and requests to its queue."""

import asyncio
import json
import signal
import subprocess
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest

for package in ("grpc", "starlette", "uvicorn", "prometheus_client"):
    pytest.importorskip(package, reason="taglio[serve] is not installed")

from taglio.serve.queue import Answer, ModelQueue  # noqa: E402 - needs the packages above
from taglio.serve.served import SequenceStep  # noqa: E402
from tests.built import product, workspace  # noqa: E402
from tests.end_to_end.command import begun  # noqa: E402


@dataclass(frozen=True, slots=True)
class Server:
    """A running server: its addresses, its process, and the models that it announced."""

    http: str
    grpc: str
    process: subprocess.Popen[str]
    models: list[dict[str, Any]]

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of HTTP."""
        host, _, port = self.http.removeprefix("http://").rpartition(":")
        return host, int(port)


def start(*arguments: str, environment: dict[str, str] | None = None) -> Server:
    """`taglio serve` on free ports of loopback."""
    free = ("--http-port", 0, "--grpc-port", 0, "--json")
    process = begun("serve", *arguments, *free, env=environment)
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise AssertionError(process.communicate()[1])
    told = json.loads(line)
    return Server(told["http"], told["grpc"], process, told["models"])


def stop(server: Server) -> tuple[int, str]:
    """Exit code and error output after SIGTERM."""
    server.process.send_signal(signal.SIGTERM)
    _, error = server.process.communicate(timeout=60)
    return server.process.returncode, error


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """An event loop in a thread of its own, for all tests."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return loop


def begin(what: Coroutine[Any, Any, Any]) -> "Future[Any]":
    """`what` in an event loop, begun before this returns."""
    future = asyncio.run_coroutine_threadsafe(what, _loop())
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), _loop()).result(10)
    return future


@dataclass(frozen=True, slots=True)
class Asked:
    """A queue, asked from the test's thread."""

    queue: ModelQueue

    def submit(
        self, feed: Mapping[str, np.ndarray], timeout_s: float | None = None, step: SequenceStep | None = None
    ) -> "Future[Answer]":
        return begin(self.queue.answer(feed, timeout_s, step))

    def close(self, patience_s: float) -> int:
        return int(begin(self.queue.close(patience_s)).result(60))


@pytest.fixture
def serving() -> Iterator[Callable[..., Server]]:
    """Starts servers that end well after the test."""
    running: list[Server] = []

    def begin(*arguments: str) -> Server:
        running.append(start(*arguments))
        return running[-1]

    yield begin
    assert [stop(each) for each in running] == [(0, "")] * len(running)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = workspace(tmp_path_factory.mktemp("product"), product())
    running = start(f"product={folder}", "--max-request-mb", "1")
    yield running
    assert stop(running) == (0, "")
