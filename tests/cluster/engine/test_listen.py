"""A device starts only with one address of its machine and a free port."""

import socket
import tempfile

import pytest

from tests.cluster.engine.devices import needs_ray
from tests.end_to_end.command import refused, taglio


@needs_ray
def test_every_interface_is_refused() -> None:
    refused(taglio("cluster", "start", "--name", "camera", "--head", "--host", "0.0.0.0"), "every interface")
    refused(taglio("cluster", "start", "--name", "camera", "--head", "--host", "::"), "IPv4 address")


@needs_ray
def test_a_port_that_is_in_use_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as short, socket.create_server(("127.0.0.1", 0)) as other:
        monkeypatch.setenv("TAGLIO_DEVICES", short)
        start = ("cluster", "start", "--name", "camera", "--head", "--token", f"{short}/token", "--port")
        port = other.getsockname()[1]
        refused(taglio(*start, port), f"127.0.0.1:{port} cannot be bound", "choose another --port", code=4)
        for port in (0, 65536):
            refused(taglio(*start, port), "--port", str(port))
