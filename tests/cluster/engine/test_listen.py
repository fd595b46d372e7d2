"""Nothing listens beyond the address asked for, however a device was started."""

import socket
import subprocess
import sys
import tempfile

import pytest

from tests.cluster.engine.devices import needs_ray
from tests.end_to_end.command import ENVIRONMENT, refused, taglio

linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's own filter of calls is Linux's")


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
