"""Describe this machine, for artifacts and results. Measures nothing."""

import os
import platform
from dataclasses import dataclass
from pathlib import Path

from taglio.errors import plural

# More than any machine has: a pool of 100,000 threads takes minutes to start, and exhausts the memory.
MOST_THREADS = 1024
# Instruction sets that determine the speed of int8 and bf16.
_INSTRUCTIONS = (
    "avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_int8", "amx_bf16",
    "asimd", "asimddp", "i8mm", "bf16", "sve",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Machine:
    """What the machine is, as the operating system reports it. `memory_bytes` is physical memory."""

    processor: str
    cores: int
    instructions: tuple[str, ...]
    memory_bytes: int
    system: str
    python: str

    def __str__(self) -> str:
        have = " ".join(name for name in self.instructions if name != "avx2") or "no int8 instructions"
        return f"{self.processor}, {plural(self.cores, 'core')}, {self.memory_bytes / 2**30:.0f} GiB, {have}"


def describe() -> Machine:
    """The description of this machine."""
    name, flags = platform.processor() or platform.machine(), set[str]()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                name = value.strip()
            elif key.strip() in ("flags", "Features"):
                flags = set(value.split())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(
        name,
        available_cores(),
        tuple(flag for flag in _INSTRUCTIONS if flag in flags),
        memory,
        f"{platform.system()} {platform.release()}",
        platform.python_version(),
    )


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
