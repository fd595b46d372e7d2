"""Nothing listens beyond the address asked for, however a device was started."""

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from taglio.cluster.emulate import needs
from taglio.cluster.emulate.devices import start_devices
from taglio.cluster.emulate.emulation import Emulation
from taglio.cluster.engine.listen import everywhere
from tests.cluster.engine.devices import CLUSTER, Bench, bench, needs_ray
from tests.end_to_end.command import ENVIRONMENT, refused

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


@pytest.fixture
def devices() -> Iterator[Bench]:
    here = bench()
    try:
        yield here
    finally:
        here.stop()


def listened(processes: list[int]) -> set[str]:
    """Addresses on which these processes listen, each in its own network."""
    found = set[str]()
    for process in processes:
        with contextlib.suppress(OSError):  # it ended, or closed one, meanwhile
            found.update(_addresses(Path(f"/proc/{process}")))
    return found


def _addresses(process: Path) -> Iterator[str]:
    sockets = {str(each.readlink()) for each in (process / "fd").glob("*") if each.is_symlink()}
    for table in ("tcp", "tcp6"):
        for line in (process / "net" / table).read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in sockets:
                # The last four bytes, as one number of the machine's own order.
                number = int(words[1].partition(":")[0][-8:], 16)
                yield ".".join(str(each) for each in number.to_bytes(4, sys.byteorder))


@linux
@needs_ray
@pytest.mark.whole
@pytest.mark.parametrize(("head", "joined"), [("127.0.0.1", "127.0.0.1"), ("127.0.0.2", "127.0.0.3")])
def test_devices_listen_where_they_were_told(devices: Bench, head: str, joined: str) -> None:
    address = f"{head}:{devices.port}"
    begin = ("device", "start", "--threads", 1, "--json", "--name")
    devices.command(*begin, "camera", "--head", "--port", devices.port, "--host", head).json()
    devices.command(*begin, "server", "--address", address, "--host", joined).json()
    assert set(devices.command("cluster", "status", "--json").json()["devices"]) == {"camera", "server"}
    for name, host in (("camera", head), ("server", joined)):
        assert host in listened(devices.processes(name)) <= {host, "127.0.0.1"}


@linux
@needs_ray
@pytest.mark.whole
@pytest.mark.skipif(needs.missing() is not None, reason=f"cannot emulate here: {needs.missing()}")
def test_emulated_devices_listen_on_their_own_addresses(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(CLUSTER)
    with Emulation(file) as made:
        start_devices(made)
        for name in ("camera", "server"):
            mark = f"TAGLIO_DEVICE={name}\0".encode()
            found = []
            for path in Path("/proc").glob("[0-9]*/environ"):
                with contextlib.suppress(OSError):
                    if mark in path.read_bytes():
                        found.append(int(path.parent.name))
            inside = [each for each in found if made.addresses[name] in listened([each])]
            assert inside
            assert listened(inside) <= {made.addresses[name], "127.0.0.1"}


@linux
@needs_ray
@pytest.mark.whole
@pytest.mark.parametrize("port", [8265, 10001, 15151, 52365])
def test_ports_that_ray_would_set_aside(port: int, devices: Bench) -> None:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            pytest.skip(f"port {port} is in use")
    devices.port = port
    assert devices.start("camera").json()["address"] == f"127.0.0.1:{port}"


@needs_ray
def test_every_interface_is_refused(devices: Bench) -> None:
    refused(devices.command("device", "start", "--name", "camera", "--head", "--host", "0.0.0.0"), "every interface")
    refused(devices.command("device", "start", "--name", "camera", "--head", "--host", "::"), "IPv4 address")
