"""Who has no token, another token, or speaks plain text to a locked cluster is refused in one line; nothing joins."""

import os
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError

import numpy as np
import pytest

from taglio.embedded import digits_data
from tests.cluster.engine.devices import AGENT, CLIENT, Bench, bench, needs_ray
from tests.end_to_end.command import refused
from tests.serve.conftest import start, stop
from tests.support.sockets import addresses, listening

pytestmark = [needs_ray, pytest.mark.whole]


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Bench]:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed: no certificates can be made")
    here = bench(CLIENT, certificates(tmp_path / "tls"))
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


def tells(url: str) -> bool:
    """Whether something answers there, to whoever asks."""
    try:
        urllib.request.urlopen(url, timeout=5.0).close()
    except HTTPError as refusal:
        return refusal.code not in (401, 403)
    except (OSError, HTTPException):
        return False
    return True


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


def test_a_token_is_asked_for(running: Bench, tmp_path: Path) -> None:
    token = Path(running.environment["RAY_AUTH_TOKEN_PATH"])
    assert token.stat().st_mode & 0o077 == 0
    join = ("cluster", "start", "--name", "stranger", "--address", running.address)
    refused(running.command(*join, "--token", tmp_path / "none"), "no token there", "copy the file from the head")
    other = tmp_path / "other"
    other.write_text("0123456789abcdef" * 4)
    other.chmod(0o600)
    refused(running.command(*join, "--token", other), "refuses the token", str(other), code=4)
    for name in ("tls.crt", "tls.key", "ca.crt"):
        (tmp_path / name).write_text("never read")
        (tmp_path / name).chmod(0o600)
    refused(running.command(*join, "--tls", tmp_path), f"{running.address} does not answer like a head", "TLS", code=4)
    assert running.command("cluster", "status", "--json").json()["alive"] == {"camera": True, "server": True}
    # Without the token nothing answers a request, such as for metrics.
    open_sockets = listening(running.processes("camera"))
    assert running.port in {port for _, port in open_sockets}
    assert [port for address, port in open_sockets if tells(f"http://{address}:{port}/metrics")] == []
    # Only this machine can reach it.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(5.0)
        assert probe.connect_ex((outward(), running.port)) != 0


def test_secrets_that_others_can_read_are_refused(opened: Bench, tmp_path: Path) -> None:
    token = Path(opened.environment["RAY_AUTH_TOKEN_PATH"])
    token.write_text("0123456789abcdef" * 4)
    token.chmod(0o644)
    refused(opened.start("camera"), str(token), "mode 644, wanted 600", "chmod 600")
    token.chmod(0o600)
    for name in ("tls.crt", "tls.key", "ca.crt"):
        (tmp_path / name).write_text("never read")
    refused(opened.start("camera", "--tls", tmp_path), str(tmp_path / "tls.key"), "mode 644")
    assert not (opened.folder / "d").exists()


def test_a_start_that_fails_leaves_its_log(opened: Bench, tmp_path: Path) -> None:
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "__init__.py").write_text("raise ImportError('a broken installation')")
    opened.environment["PYTHONPATH"] = os.pathsep.join((str(tmp_path), opened.environment["PYTHONPATH"]))
    line = refused(opened.start("camera"), "did not start: ImportError: a broken installation", "full log", code=4)
    log = opened.folder / "d" / "camera" / "log"
    assert log.exists() and str(log) in line


@pytest.mark.slow
def test_with_certificates_plain_text_is_refused(locked: Bench, placed: Path, cluster: Path) -> None:
    assert locked.start("camera").json()["tls"] == str(locked.tls)
    join = ("cluster", "start", "--name", "stranger", "--address", locked.address)
    refused(locked.command(*join), f"{locked.address} does not answer like a head", "--tls", code=4)
    with socket.create_connection(("127.0.0.1", locked.port), timeout=10.0) as plain:
        plain.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0")
        plain.settimeout(10.0)
        answer = plain.recv(64)
    assert answer[:1] != b"\0", "it answered plain HTTP/2"
    assert locked.start("server").json()["name"] == "server"
    ran = locked.command("run", placed, "--cluster", cluster, "--runs", 5, "--json").json()
    assert (ran["requests"], ran["identical"]) == (5, 5)
    for name in ("camera", "server"):
        assert addresses(locked.processes(name)) == {"127.0.0.1"}
    client = pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")
    with np.load(digits_data()) as data:
        images = data["image"][:8, None]
    server = start(f"digits={placed}", "--cluster", str(cluster), environment=locked.environment)
    try:
        with client.InferenceServerClient(server.grpc) as door:

            def label(image: np.ndarray) -> int:
                given = client.InferInput("image", image.shape, "FP32")
                given.set_data_from_numpy(image)
                return int(door.infer("digits", [given]).as_numpy("logits").argmax())

            labels = [label(image) for image in images]
            locked.kill("server")  # its answers over gRPC, too, come from a plan without it
            assert [label(image) for image in images] == labels
    finally:
        code, error = stop(server)
    assert code == 0 and "sent again after" in error


def outward() -> str:
    """This machine's address in the network, or one that is nobody's."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.2"
