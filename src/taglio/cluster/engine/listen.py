"""Restrict this process, and everything that it starts, to listening on one address. Independent of Ray.

Ray's servers listen on 127.0.0.1 or on every interface. Here the kernel (Linux 5.9 or later) passes each bind() of the
process to a helper, which binds requests for every interface to the one address instead, and lets the others pass.
Needs no privilege: seccomp_unotify(2). Without the helper bind() fails, so that nothing is opened by accident.
"""

import contextlib
import ctypes
import errno
import fcntl
import ipaddress
import os
import platform
import select
import socket
import struct
import subprocess
import sys
from pathlib import Path

from taglio.errors import BadDevice, BadOption

# By machine, from the kernel's headers: its audit architecture, and the numbers of bind, seccomp and pidfd_getfd.
_NUMBERS = {"x86_64": (0xC000003E, 49, 317, 438), "aarch64": (0xC00000B7, 200, 277, 438)}
_SET_NO_NEW_PRIVILEGES, _SET_TRACER = 38, 0x59616D61  # of prctl(2)
_MODE_FILTER, _SPEC_ALLOW, _NEW_LISTENER = 1, 4, 8  # of seccomp(2)
_ALLOW, _NOTIFY = 0x7FFF0000, 0x7FC00000
_RECEIVE, _SEND, _CONTINUE = 0xC0502100, 0xC0182101, 1  # of seccomp_unotify(2)
_REQUEST, _RESPONSE = struct.Struct("=QIIiIQ6Q"), struct.Struct("=QqiI")


class _Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_ushort), ("yes", ctypes.c_ubyte), ("no", ctypes.c_ubyte), ("k", ctypes.c_uint))


class _FilterProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("first", ctypes.POINTER(_Instruction)))


def hold_to(host: str) -> None:
    """From now on, let this thread and everything that it starts listen on `host` instead of on every interface.

    Raises BadDevice if the kernel does not allow it.
    """
    if address(host) == ipaddress.IPv4Address("127.0.0.1"):
        return  # Ray's servers do so by themselves
    ours, theirs = socket.socketpair()
    # Started before the filter is installed: the helper must be able to bind.
    helper = subprocess.Popen(
        [sys.executable, "-m", "taglio.cluster.engine.listen", str(theirs.fileno()), host],
        pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    theirs.close()
    try:
        with ours:
            listener = _filter(helper.pid)
            if listener is None:  # this process is restricted already, for its whole life
                return
            socket.send_fds(ours, [b"l"], [listener])
            os.close(listener)
            ours.settimeout(30.0)
            if ours.recv(1) != b"r":
                raise OSError(errno.ESRCH, "the helper ended")
    except OSError as error:
        helper.kill()
        raise BadDevice(
            f"`host` {host}: Ray cannot be kept from listening on every interface here ({error.strerror or error}): "
            "use 127.0.0.1, or Linux 5.9 or later where processes may filter their own calls (seccomp)"
        ) from None


def address(host: str) -> ipaddress.IPv4Address:
    """`host` as a single address. Raises BadOption."""
    try:
        parsed = ipaddress.IPv4Address(host)
    except ValueError:
        raise BadOption(f"`host` {host}: write an IPv4 address of this machine, such as 192.168.1.10") from None
    if parsed.is_unspecified:
        raise BadOption(f"`host` {host} would listen on every interface: write one address of this machine")
    return parsed


def _filter(helper: int) -> int | None:
    """Install the filter; returns the descriptor for the kernel's requests, None if a filter is there already."""
    if sys.platform != "linux" or platform.machine() not in _NUMBERS:
        raise OSError(errno.ENOSYS, f"{sys.platform} on {platform.machine()}")
    machine, bind, seccomp, _ = _NUMBERS[platform.machine()]
    load, equal, answer = 0x20, 0x15, 0x06  # BPF_LD | BPF_W | BPF_ABS, BPF_JMP | BPF_JEQ | BPF_K, BPF_RET | BPF_K
    code = (_Instruction * 6)(
        _Instruction(load, 0, 0, 4),
        _Instruction(equal, 0, 3, machine),
        _Instruction(load, 0, 0, 0),
        _Instruction(equal, 0, 1, bind),
        _Instruction(answer, 0, 0, _NOTIFY),
        _Instruction(answer, 0, 0, _ALLOW),
    )
    kernel = ctypes.CDLL(None, use_errno=True)
    kernel.prctl(_SET_TRACER, helper, 0, 0, 0)  # needed only with Yama
    if kernel.prctl(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0) != 0:
        raise _failure()
    listener: int = kernel.syscall(
        seccomp, _MODE_FILTER, _SPEC_ALLOW | _NEW_LISTENER, ctypes.byref(_FilterProgram(len(code), code))
    )
    if listener < 0 and ctypes.get_errno() == errno.EBUSY:
        return None
    if listener < 0:
        raise _failure()
    return listener


def _failure() -> OSError:
    return OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def serve(listener: int, host: str) -> None:
    """Answer the kernel's requests until no process is left under the filter."""
    waiting = select.poll()
    waiting.register(listener, select.POLLIN)
    while True:
        if any(event & (select.POLLHUP | select.POLLERR) for _, event in waiting.poll()):
            return
        request = bytearray(_REQUEST.size)
        with contextlib.suppress(OSError):  # the process was interrupted or has ended
            fcntl.ioctl(listener, _RECEIVE, request)
            number, thread, _, _, _, _, descriptor, place, length, *_ = _REQUEST.unpack(request)
            try:
                held = _bind(thread, descriptor, place, length, host)
                answer = _RESPONSE.pack(number, 0, 0, 0 if held else _CONTINUE)
            except OSError as error:
                answer = _RESPONSE.pack(number, 0, -(error.errno or errno.EACCES), 0)
            fcntl.ioctl(listener, _SEND, answer)


def _bind(thread: int, descriptor: int, place: int, length: int, host: str) -> bool:
    """Bind another process's socket to `host` if it asked for every interface; returns whether it did."""
    with Path(f"/proc/{thread}/mem").open("rb", buffering=0) as memory:
        memory.seek(place)
        wanted = memory.read(min(length, 128))  # more than any address
    there = everywhere(wanted, host)
    if there is None:
        return False
    status = Path(f"/proc/{thread}/status").read_text()
    process = os.pidfd_open(int(status.partition("\nTgid:")[2].split()[0]))
    kernel = ctypes.CDLL(None, use_errno=True)
    try:
        copy: int = kernel.syscall(_NUMBERS[platform.machine()][3], process, descriptor, 0)
    finally:
        os.close(process)
    if copy < 0:
        raise _failure()
    with socket.socket(fileno=copy) as bound:
        bound.bind(there)
    return True


def everywhere(wanted: bytes, host: str) -> tuple[str, int] | None:
    """Where to bind instead if `wanted`, an address in the kernel's format (ip(7), ipv6(7)), means every interface;
    otherwise None."""
    family = int.from_bytes(wanted[:2], sys.byteorder)
    port = int.from_bytes(wanted[2:4], "big")
    if family == socket.AF_INET and not any(wanted[4:8]):
        return host, port
    # "::" in IPv6, or the mapped IPv4 form; an IPv6 socket listens for IPv4 under this name.
    if family == socket.AF_INET6 and wanted[8:24] in (bytes(16), bytes(10) + b"\xff\xff" + bytes(4)):
        return f"::ffff:{host}", port
    return None


def main(pipe: int, host: str) -> None:
    """The helper: take the descriptor from `pipe`, report that it is ready, serve."""
    with socket.socket(fileno=pipe) as given:
        _, listeners, _, _ = socket.recv_fds(given, 1, 1)
        if not listeners:
            return
        given.send(b"r")
    serve(listeners[0], host)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
