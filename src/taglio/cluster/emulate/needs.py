"""Check that this machine can emulate clusters, with one line for each missing requirement. Changes nothing."""

import os
import shutil
import sys
from pathlib import Path

from taglio.cluster.emulate import quota
from taglio.errors import TaglioError

TUN = Path("/dev/net/tun")


class CannotEmulate(TaglioError):
    """This machine lacks a requirement of emulation, or refused it."""


def missing() -> str | None:
    """The missing requirement and its fix; None if a cluster can be emulated here."""
    if sys.platform != "linux":
        return f"emulation uses network namespaces, which {sys.platform} lacks: use Linux, or a Linux virtual machine"
    if os.geteuid() != 0:
        return "emulation makes network namespaces, which takes root: run it with sudo, or in a privileged container"
    for command, package in (("ip", "iproute2"), ("nsenter", "util-linux")):
        if shutil.which(command) is None:
            return f"the command {command} is missing: install the package {package}"
    if not TUN.exists():
        return f"there is no {TUN}: modprobe tun, or give the container --device {TUN}"
    if not os.access(TUN, os.R_OK | os.W_OK):
        return f"{TUN} may not be opened: give the container --device {TUN} --cap-add NET_ADMIN"
    if quota.hierarchy() is None:
        return "no cgroup hierarchy with the cpu controller can be written: mount cgroup2, or run outside the container"
    return None
