"""Network namespaces, and the interface from which each one's packets are read. Carries no packets.

There is no veth and no bridge: an emulated network never touches the machine's own.
"""

import fcntl
import os
import struct
import subprocess
from pathlib import Path

from taglio.errors import TaglioError

TUN = Path("/dev/net/tun")
FOLDER = Path("/run/netns")  # where `ip netns` keeps them
_SET_INTERFACE = 0x400454CA  # TUNSETIFF of linux/if_tun.h
_TUN_WITHOUT_HEADER = 0x1001  # IFF_TUN | IFF_NO_PI
# No slow start after idle: no other traffic shares these links.
_SETTINGS = {"net/ipv4/tcp_slow_start_after_idle": 0, "net/ipv4/tcp_no_metrics_save": 1}


class CannotEmulate(TaglioError):
    """This machine lacks a requirement of emulation, or refused it."""


def address(index: int) -> str:
    """The address of the device at `index` of the cluster file."""
    return f"10.77.0.{index + 1}"


def create(name: str, index: int) -> int:
    """Create a namespace with one interface; returns the descriptor for reading and writing its packets.

    Raises CannotEmulate with the system's message.
    """
    _ip("netns", "add", name)
    _ip("-n", name, "link", "set", "lo", "up")
    interface = f"tag{os.getpid()}.{index}"[:15]  # the kernel's limit
    descriptor = os.open(TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(descriptor, _SET_INTERFACE, struct.pack("16sH22x", interface.encode(), _TUN_WITHOUT_HEADER))
        _ip("link", "set", interface, "netns", name, "name", "eth0")
        _ip("-n", name, "address", "add", f"{address(index)}/24", "dev", "eth0")
        # Carrying a packet takes about 20 µs, so packets are larger than Ethernet's 1,500 bytes, yet small enough to
        # occupy a 5 Mbit/s link for only 14 ms. Headers are 52 bytes of each: 0.6 %.
        _ip("-n", name, "link", "set", "eth0", "mtu", "9000", "txqueuelen", "10000", "up")
        words = [f"echo {value} > /proc/sys/{key}" for key, value in _SETTINGS.items()]
        _ip("netns", "exec", name, "sh", "-c", "; ".join(words))
    except (OSError, CannotEmulate) as error:
        os.close(descriptor)
        if isinstance(error, OSError):
            raise CannotEmulate(f"{TUN} created no interface ({error.strerror}): is NET_ADMIN allowed here?") from None
        raise
    return descriptor


def delete(name: str) -> None:
    """Remove a namespace; a missing one is no error."""
    if (FOLDER / name).exists():
        _ip("netns", "delete", name)


def _ip(*words: str) -> None:
    command = ["ip", *words]  # by name: it is in /sbin or /usr/sbin, depending on the distribution
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CannotEmulate(f"ip {' '.join(words)}: {done.stderr.strip() or done.returncode}")
