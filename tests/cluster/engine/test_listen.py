"""Nothing listens beyond the address asked for, however a device was started."""

import os
import signal
import socket
import subprocess
import sys
import tempfile

import pytest

from taglio.cluster.engine.listen import everywhere
from tests.cluster.engine.devices import CLIENT, bench, listened, needs_ray, until
from tests.end_to_end.command import ENVIRONMENT, refused, taglio

linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's own filter of calls is Linux's")


def test_which_addresses_stand_for_every_interface() -> None:
    port = (80).to_bytes(2, "big")
    two, ten = (int(each).to_bytes(2, sys.byteorder) for each in (2, 10))
    assert everywhere(two + port + bytes(4), "10.0.0.1") == ("10.0.0.1", 80)
    assert everywhere(two + port + bytes((127, 0, 0, 1)), "10.0.0.1") is None
    assert everywhere(ten + port + bytes(4 + 16), "10.0.0.1") == ("::ffff:10.0.0.1", 80)
    assert everywhere(ten + port + bytes(4) + bytes(10) + b"\xff\xff" + bytes(4), "10.0.0.1") == ("::ffff:10.0.0.1", 80)
    assert everywhere(ten + port + bytes(4) + bytes(15) + b"\x01", "10.0.0.1") is None
    assert everywhere((1).to_bytes(2, sys.byteorder) + b"/tmp/socket", "10.0.0.1") is None


_PROGRAM = """
import socket, subprocess, sys, threading
from taglio.cluster.engine.listen import hold_to
hold_to("127.0.0.2")
hold_to("127.0.0.2")  # a second time in one process
def bound(family, host):
    with socket.socket(family) as each:
        each.bind((host, 0))
        print(each.getsockname()[0], flush=True)
bound(socket.AF_INET, "")
bound(socket.AF_INET, "127.0.0.1")
bound(socket.AF_INET6, "::")
thread = threading.Thread(target=bound, args=(socket.AF_INET, "0.0.0.0"))
thread.start()
thread.join()
child = "import socket; s = socket.socket(); s.bind(('', 0)); print(s.getsockname()[0])"
subprocess.run([sys.executable, "-c", child], check=True)
"""


@linux
def test_a_process_its_threads_and_its_children_are_held() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=60, check=True, env=ENVIRONMENT
    )
    assert done.stdout.split() == ["127.0.0.2", "127.0.0.1", "::ffff:127.0.0.2", "127.0.0.2", "127.0.0.2"]


@linux
@needs_ray
@pytest.mark.whole
@pytest.mark.slow  # devices on 127.0.0.1 and on emulated addresses are looked at by other tests
def test_devices_listen_where_they_were_told() -> None:
    """Also on addresses that are not 127.0.0.1, and after the keeper has restarted the head's process."""
    devices, head, joined = bench(CLIENT), "127.0.0.2", "127.0.0.3"
    begin = ("cluster", "start", "--threads", 1, "--json", "--name")
    try:
        devices.command(*begin, "camera", "--head", "--port", devices.port, "--host", head).json()
        devices.command(*begin, "server", "--address", f"{head}:{devices.port}", "--host", joined).json()
        assert set(devices.command("cluster", "status", "--json").json()["devices"]) == {"camera", "server"}

        def held() -> None:
            for name, host in (("camera", head), ("server", joined)):
                assert host in listened(devices.processes(name)) <= {host, "127.0.0.1"}

        held()
        (process,) = devices.named("camera", "gcs_server")
        os.kill(process, signal.SIGKILL)
        until(lambda: {process} != set(devices.named("camera", "gcs_server")) != set(), 60.0, "a new head")
        until(lambda: head in listened(devices.named("camera", "gcs_server")), 60.0, "it listens")
        held()
    finally:
        devices.stop()


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
