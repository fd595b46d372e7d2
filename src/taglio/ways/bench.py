"""Measure delivered folders under load, in a process without taglio. Compares and chooses nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from taglio.confirm.child import Child
from taglio.deploy import verify
from taglio.ways import loads


@dataclass(frozen=True, slots=True)
class Burst:
    """A closed loop's items per second, and the seconds of each run."""

    per_s: float
    runs: tuple[float, ...]


class LoadBench(Child):
    """A process that holds delivered folders open and puts them under load. A context manager."""

    def __init__(self, samples: Path) -> None:
        """`samples` is a folder that write_samples wrote."""
        super().__init__(Path(loads.__file__), Path(verify.__file__))
        self._samples, self._count = samples, 0

    def open(self, folders: Sequence[Path]) -> list[int]:
        """Open folders beside those that are open; the bytes of memory that each took. Raises MeasurementFailed if one
        cannot be opened or run."""
        request = {"do": "open", "folders": [str(folder) for folder in folders], "samples": str(self._samples)}
        memory: list[int] = self.ask(request)["memory"]
        return memory

    def close(self) -> None:
        """Close all folders."""
        self.ask({"do": "close"})

    def closed_loop(self, folders: Sequence[Path], seconds: float, rounds: int) -> list[list[Burst]]:
        """The bursts of each folder, one a round, of `seconds` each. Folders take turns, so that the burst of a round
        can be compared with that of another folder in it."""
        self._count += 1
        request = {"do": "closed", "folders": [str(folder) for folder in folders], "seed": self._count}
        bursts = self.ask({**request, "seconds": seconds, "rounds": rounds})["results"]
        return [
            [Burst(per_s, tuple(runs)) for per_s, runs in zip(of_folder["per_s"], of_folder["runs"], strict=True)]
            for of_folder in bursts
        ]

    def open_loop(self, folder: Path, per_s: float, count: int) -> list[float]:
        """Seconds from arrival to answer of `count` requests that arrive at random, `per_s` on average."""
        self._count += 1
        request = {"do": "open_loop", "folder": str(folder), "per_s": per_s, "count": count, "seed": self._count}
        seconds: list[float] = self.ask(request)["seconds"]
        return seconds
