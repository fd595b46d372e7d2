"""Recordings of real networks: their tables, and what these did not explain. `benchmarks/record.py` makes them."""

import gzip
from dataclasses import dataclass
from math import exp
from pathlib import Path
from random import Random

import msgspec

from taglio.error.model import ErrorModel
from taglio.model.graph import Graph
from taglio.profile.result import Profile

FOLDER = Path(__file__).parents[1] / "recorded"


@dataclass(frozen=True, slots=True)
class Residuals:
    """What tables did not explain, as natural logarithms.

    `seconds`: measured ÷ predicted time of a mix of forms, both beside float in the same opening. `openings`: an
    opening's time ÷ the median of a mix's openings. `errors`: error on the switchable graph ÷ the predicted one, by
    mix and output. `built`: error of the file as built ÷ that on the switchable graph, likewise.
    """

    seconds: tuple[float, ...]
    openings: tuple[float, ...]
    errors: tuple[tuple[float, ...], ...]
    built: tuple[tuple[float, ...], ...]

    def seconds_factor(self, rng: Random) -> float:
        """A factor of the seconds of a variant."""
        return exp(rng.choice(self.seconds))

    def opening_factor(self, rng: Random) -> float:
        """A factor of the seconds of one opening."""
        return exp(rng.choice(self.openings))

    def error_factors(self, rng: Random) -> tuple[tuple[float, float], ...]:
        """Factors of the errors of a variant by output: on the switchable graph, and as built."""
        drawn = rng.randrange(len(self.errors))
        on_graph, as_built = self.errors[drawn], self.built[drawn]
        return tuple((exp(off), exp(off + more)) for off, more in zip(on_graph, as_built, strict=True))


@dataclass(frozen=True, slots=True)
class Recording:
    """A network on one machine: `made` says when and where. The runs of the profile and the subsets of the study are
    left out."""

    made: str
    graph: Graph
    seconds: Profile
    errors: ErrorModel
    residuals: Residuals


def recordings() -> tuple[str, ...]:
    """The names of all recordings: a network and a kind of processor."""
    return tuple(sorted(path.name.removesuffix(".json.gz") for path in FOLDER.glob("*.json.gz")))


def load(name: str) -> Recording:
    """The recording called `name`."""
    return msgspec.json.decode(gzip.decompress((FOLDER / f"{name}.json.gz").read_bytes()), type=Recording)


def save(name: str, recording: Recording) -> Path:
    """Write a recording; equal ones are equal files."""
    path = FOLDER / f"{name}.json.gz"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(msgspec.json.encode(recording), mtime=0))
    return path
