"""Who has no token, another token, or speaks plain text to a locked cluster is refused in one line; nothing joins."""

import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.engine.devices import AGENT, Bench, bench, listened, needs_ray
from tests.end_to_end.command import refused

pytestmark = [needs_ray, pytest.mark.whole]


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Bench]:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed: no certificates can be made")
    here = bench(0, certificates(tmp_path / "tls"))
    try:
        yield here
    finally:
        here.stop()


@pytest.fixture
def opened() -> Iterator[Bench]:
    here = bench(AGENT)
    try:
        yield here
    finally:
        here.stop()


def certificates(folder: Path) -> Path:
    """A certificate for 127.0.0.1 that an authority of its own has signed."""
    folder.mkdir()
    (folder / "extensions").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    for command in (
        "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=authority -keyout ca.key -out ca.crt",
        "req -newkey rsa:2048 -nodes -subj /CN=localhost -keyout tls.key -out tls.csr",
        "x509 -req -in tls.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -out tls.crt -extfile extensions",
    ):
        subprocess.run(["openssl", *command.split()], cwd=folder, check=True, capture_output=True, timeout=60)
    return folder


def test_a_token_is_asked_for(opened: Bench, tmp_path: Path) -> None:
    told = opened.start("camera").json()
    assert (told["head"], told["address"]) == (True, opened.address)
    token = Path(opened.environment["RAY_AUTH_TOKEN_PATH"])
    assert token.stat().st_mode & 0o077 == 0
    join = ("device", "start", "--name", "stranger", "--address", opened.address)
    refused(opened.command(*join, "--token", tmp_path / "none"), "no token there", "copy the file from the head")
    other = tmp_path / "other"
    other.write_text("0123456789abcdef" * 4)
    refused(opened.command(*join, "--token", other), "refuses the token", str(other), code=4)
    for name in ("tls.crt", "tls.key", "ca.crt"):
        (tmp_path / name).write_text("never read")
    refused(opened.command(*join, "--tls", tmp_path), f"{opened.address} does not use TLS", code=4)
    assert opened.command("cluster", "status", "--json").json()["alive"] == {"camera": True}
    # Only this machine can reach it.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(5.0)
        assert probe.connect_ex((outward(), opened.port)) != 0


def test_with_certificates_plain_text_is_refused(locked: Bench, placed: Path, cluster: Path) -> None:
    assert locked.start("camera").json()["tls"] == str(locked.tls)
    join = ("device", "start", "--name", "stranger", "--address", locked.address)
    refused(locked.command(*join), f"{locked.address} uses TLS", "--tls", code=4)
    with socket.create_connection(("127.0.0.1", locked.port), timeout=10.0) as plain:
        plain.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0")
        plain.settimeout(10.0)
        answer = plain.recv(64)
    assert answer[:1] != b"\0", "it answered plain HTTP/2"
    assert locked.start("server").json()["name"] == "server"
    ran = locked.command("run", placed, "--cluster", cluster, "--runs", 5, "--json").json()
    assert (ran["requests"], ran["identical"]) == (5, 5)
    for name in ("camera", "server"):
        assert listened(locked.processes(name)) == {"127.0.0.1"}


def outward() -> str:
    """This machine's address in the network, or one that is nobody's."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.2"
