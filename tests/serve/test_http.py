"""Large bodies arrive whole, however they are cut on the way."""

import asyncio
import socket
import time
from collections.abc import Callable, Iterator
from http.client import parse_headers
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
from starlette.requests import ClientDisconnect, Request

from taglio.serve.rest import _unless_left
from tests.built import SCALE, workspace
from tests.built import product as product_model
from tests.serve.conftest import Server, start, stop
from tests.support import inference

Connection = tuple[socket.socket, BinaryIO]


def request(rows: np.ndarray, *headers: str) -> bytes:
    """A request for the product of `rows`, with binary tensors."""
    body, lengths = inference.request({"x": rows})
    lines = [f"{name}: {value}" for name, value in {**lengths, "Content-Length": str(len(body))}.items()]
    head = ("POST /v2/models/product/infer HTTP/1.1", "Host: x", *lines, *headers, "", "")
    return "\r\n".join(head).encode() + body


def product(answers: BinaryIO) -> np.ndarray:
    """The next answer of a connection."""
    assert answers.readline() == b"HTTP/1.1 200 OK\r\n"
    headers = parse_headers(answers)
    return inference.answer(answers.read(int(headers["content-length"])), headers)["y"]


@pytest.fixture
def connection(server: Server) -> Iterator[tuple[socket.socket, BinaryIO]]:
    """A connection, and the answers that come over it."""
    with socket.create_connection(server.address, timeout=10) as made, made.makefile("rb") as answers:
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield made, answers


@pytest.mark.whole
def test_half_a_request_does_not_hold_the_end_up(tmp_path: Path) -> None:
    running = start(f"product={workspace(tmp_path, product_model())}", "--drain-s", "1")
    with socket.create_connection(running.address, timeout=10) as made:
        made.sendall(request(np.ones((9_000, 4), np.float32))[:1000])
        time.sleep(0.2)
        code, logged = stop(running)
    assert code == 0 and "Traceback" not in logged


def test_a_client_that_stops_is_told_so_in_time(serving: Callable[..., Server], tmp_path: Path) -> None:
    running = serving(f"product={workspace(tmp_path, product_model())}", "--drain-s", "2")
    raw = request(np.ones((9_000, 4), np.float32))
    with socket.create_connection(running.address, timeout=10) as made:
        made.sendall(raw[:1_000])
        time.sleep(0.2)
        made.sendall(raw[1_000:100_000])
        assert b"400 Bad Request" in made.recv(100)


@pytest.mark.parametrize("piece", [1_000, 65_536])
def test_a_request_in_pieces(connection: Connection, piece: int) -> None:
    made, answers = connection
    rows = np.random.default_rng(0).standard_normal((30_000, 4)).astype(np.float32)
    raw = request(rows)
    for at in range(0, len(raw), piece):
        made.sendall(raw[at : at + piece])
    assert (product(answers) == rows * SCALE).all()


def test_requests_that_do_not_wait_for_answers_are_answered_in_order(connection: Connection) -> None:
    made, answers = connection
    every = [np.full((rows, 4), rows, np.float32) for rows in (1, 9_000, 2, 10_000, 3)]
    made.sendall(b"".join(map(request, every)))
    for rows in every:
        assert (product(answers) == rows * SCALE).all()


def test_a_client_that_waits_for_a_go_ahead_gets_it(connection: Connection) -> None:
    made, answers = connection
    rows = np.ones((9_000, 4), np.float32)
    head, _, body = request(rows, "Expect: 100-continue").partition(b"\r\n\r\n")
    made.sendall(head + b"\r\n\r\n")
    assert answers.readline() + answers.readline() == b"HTTP/1.1 100 Continue\r\n\r\n"
    made.sendall(body)
    assert (product(answers) == rows * SCALE).all()


def test_a_refusal_reaches_a_client_that_sends_on(connection: Connection) -> None:
    made, answers = connection
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
