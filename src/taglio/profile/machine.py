"""Describe this machine, for artifacts and results. Measures nothing."""

import platform
from dataclasses import dataclass

from taglio.cores import available_cores
from taglio.errors import plural
from taglio.memory import machine_bytes
from taglio.runtimes.processor import cpuinfo, instructions, sums_saturate

# More than any machine has: a pool of 100,000 threads takes minutes to start, and exhausts the memory.
MOST_THREADS = 1024


@dataclass(frozen=True, slots=True)
class Machine:
    """What the machine is, as the operating system reports it. `cores` are those that this process may use,
    `memory_bytes` is physical memory."""

    processor: str
    cores: int
    instructions: tuple[str, ...]
    memory_bytes: int
    system: str
    python: str

    def __str__(self) -> str:
        return f"{self.processor}, {plural(self.cores, 'core')}, {self.memory_bytes / 2**30:.0f} GiB, {self.features}"

    @property
    def lacks_vnni(self) -> bool:
        """Whether sums of u8×s8 products are known to saturate there."""
        return bool(self.instructions) and sums_saturate(self.instructions)

    @property
    def features(self) -> str:
        """What decides how fast int8 and bfloat16 are: AVX2 is named only where nothing newer is there."""
        newer = " ".join(name for name in self.instructions if name != "avx2")
        if not self.instructions:
            return "instruction sets not known"
        return f"{newer or 'AVX2'} without VNNI" if self.lacks_vnni else newer


def describe() -> Machine:
    """The description of this machine."""
    name = cpuinfo().get("model name") or platform.processor() or platform.machine()
    return Machine(
        name,
        available_cores(),
        instructions(),
        machine_bytes(),
        f"{platform.system()} {platform.release()}",
        platform.python_version(),
    )
