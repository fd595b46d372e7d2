"""A client that is still sending reads the answer to it."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from tests.serve.conftest import Server


@contextmanager
def connected(server: Server, model: str, *headers: str) -> Iterator[socket.socket]:
    """A connection on which the head of a request has been sent."""
    head = "\r\n".join((f"POST /v2/models/{model}/infer HTTP/1.1", "Host: x", *headers, "", ""))
    with socket.create_connection(server.address, timeout=10) as connection:
        connection.sendall(head.encode())
        yield connection


def answer(connection: socket.socket) -> tuple[int, str]:
    """Status and error, once the server has closed the connection."""
    raw = b""
    while part := connection.recv(65536):
        raw += part
    return int(raw.split()[1]), json.loads(raw.partition(b"\r\n\r\n")[2])["error"]


@pytest.mark.parametrize(
    ("model", "size", "refused"),
    [("nothing", 600_000, (404, "no model 'nothing'")), ("product", 1_500_000, (413, "1,500,000 bytes"))],
)
def test_a_refusal_reaches_a_client_that_sends_on(
    server: Server, model: str, size: int, refused: tuple[int, str]
) -> None:
    with connected(server, model, f"Content-Length: {size}", "Connection: close") as connection:
        time.sleep(0.2)  # the server has answered
        connection.sendall(bytes(size))
        code, error = answer(connection)
    assert code == refused[0] and refused[1] in error


def test_a_client_that_waits_for_a_go_ahead_is_disconnected(server: Server) -> None:
    with connected(server, "nothing", "Content-Length: 600000", "Expect: 100-continue") as connection:
        assert answer(connection)[0] == 404


@pytest.mark.parametrize("length", ["Content-Length: 2000000000", "Transfer-Encoding: chunked"])
def test_a_client_that_sends_without_end_is_disconnected(server: Server, length: str) -> None:
    sent, chunk = 0, b"10000\r\n" + bytes(0x10000) + b"\r\n"
    with connected(server, "nothing", length) as connection, suppress(ConnectionError):
        while sent < 100e6:
            connection.sendall(chunk)
            sent += len(chunk)
    assert sent < 100e6  # 2 MB, and what sockets hold
