"""Network namespaces, and the interface through which each one's packets are read. Carries none.

There is no veth and no bridge: nothing of an emulated network touches the machine's own.
"""

import fcntl
import os
import struct
import subprocess

from taglio.cluster.emulate.needs import TUN, CannotEmulate

# Every packet costs the line some 20 µs, so packets are larger than Ethernet's 1,500 bytes; and small enough that one
# of them holds a 5 Mbit/s link for 14 ms only. Headers take 52 bytes of each: 0.6 %.
MTU_BYTES = 9_000
_SET_INTERFACE = 0x400454CA  # TUNSETIFF of linux/if_tun.h
_TUN_WITHOUT_HEADER = 0x1001  # IFF_TUN | IFF_NO_PI
_NAME_BYTES = 15
# A connection that was silent for a moment would begin slowly again: the links are the devices' own, nobody else's.
_SETTINGS = {"net/ipv4/tcp_slow_start_after_idle": 0, "net/ipv4/tcp_no_metrics_save": 1}


def address(index: int) -> str:
    """The address of the device at `index` of the cluster file."""
    return f"10.77.0.{index + 1}"


def create(name: str, index: int) -> int:
    """Make a namespace with one interface; returns the descriptor that its packets are read from and written to.

    Raises CannotEmulate with what the system said.
    """
    _ip("netns", "add", name)
    _ip("-n", name, "link", "set", "lo", "up")
    interface = f"tag{os.getpid()}.{index}"[:_NAME_BYTES]
    descriptor = os.open(TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(descriptor, _SET_INTERFACE, struct.pack("16sH22x", interface.encode(), _TUN_WITHOUT_HEADER))
        _ip("link", "set", interface, "netns", name, "name", "eth0")
        _ip("-n", name, "address", "add", f"{address(index)}/24", "dev", "eth0")
        _ip("-n", name, "link", "set", "eth0", "mtu", str(MTU_BYTES), "txqueuelen", "10000", "up")
        words = [f"echo {value} > /proc/sys/{key}" for key, value in _SETTINGS.items()]
        _ip("netns", "exec", name, "sh", "-c", "; ".join(words))
    except (OSError, CannotEmulate) as error:
        os.close(descriptor)
        if isinstance(error, OSError):
            raise CannotEmulate(f"{TUN} gave no interface ({error.strerror}): is NET_ADMIN allowed here?") from None
        raise
    return descriptor


def existing() -> list[str]:
    """Names of the machine's namespaces."""
    return [line.split()[0] for line in _ip("netns", "list").splitlines() if line]


def delete(name: str) -> None:
    """Remove a namespace; one that is gone is no error."""
    if name in existing():
        _ip("netns", "delete", name)


def _ip(*words: str) -> str:
    command = ["ip", *words]  # by name: it lies in /sbin here and in /usr/sbin there
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CannotEmulate(f"ip {' '.join(words)}: {done.stderr.strip() or done.returncode}")
    return done.stdout
