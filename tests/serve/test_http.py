"""Clients that stop sending, send on after a refusal, or leave."""

import asyncio
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.requests import ClientDisconnect, Request

from taglio.serve.rest import _unless_left
from tests.built import product, workspace
from tests.serve.conftest import Server, start, stop
from tests.support import inference


def request() -> bytes:
    """A request of 144 kB for a product."""
    body, lengths = inference.request({"x": np.ones((9_000, 4), np.float32)})
    lines = [f"{name}: {value}" for name, value in {**lengths, "Content-Length": str(len(body))}.items()]
    return "\r\n".join(("POST /v2/models/product/infer HTTP/1.1", "Host: x", *lines, "", "")).encode() + body


@pytest.mark.whole
def test_half_a_request_does_not_hold_the_end_up(tmp_path: Path) -> None:
    running = start(f"product={workspace(tmp_path, product())}", "--drain-s", "1")
    with socket.create_connection(running.address, timeout=10) as made:
        made.sendall(request()[:1000])
        time.sleep(0.2)
        code, logged = stop(running)
    assert code == 0 and "Traceback" not in logged


def test_a_client_that_stops_is_told_so_in_time(serving: Callable[..., Server], tmp_path: Path) -> None:
    running = serving(f"product={workspace(tmp_path, product())}", "--drain-s", "2")
    raw = request()
    with socket.create_connection(running.address, timeout=10) as made:
        made.sendall(raw[:1_000])
        time.sleep(0.2)
        made.sendall(raw[1_000:100_000])
        assert b"400 Bad Request" in made.recv(100)


def test_a_refusal_reaches_a_client_that_sends_on(server: Server) -> None:
    with socket.create_connection(server.address, timeout=10) as made, made.makefile("rb") as answers:
        made.sendall(b"POST /v2/models/nothing/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 600000\r\n\r\n")
        assert answers.readline() == b"HTTP/1.1 404 Not Found\r\n"
        made.sendall(bytes(600_000))
        made.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        rest = answers.read()
    assert b"no model 'nothing'" in rest and b'{"live":true}' in rest


def test_a_client_that_leaves_takes_its_request_back() -> None:
    cancelled = []

    async def answering() -> Any:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async def receive() -> dict[str, str]:
        await asyncio.sleep(0.01)
        return {"type": "http.disconnect"}

    async def asked() -> None:
        with pytest.raises(ClientDisconnect):
            await _unless_left(Request({"type": "http"}, receive), answering())
        await asyncio.sleep(0)

    asyncio.run(asked())
    assert cancelled == [True]
