"""Find the fastest way of running a model: measure a few, then what lies beside the best, until nothing gains. Knows
no runtime: what is measured, and how, the caller says."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from taglio.runtimes.way import Way

# A way that gains less than this share is no better. At most so many rounds of measuring; in a round, so many of the
# best are looked at from all sides.
GAIN, ROUNDS, WIDTH = 0.02, 6, 2
# Threads of all runs together, as a multiple of the cores; items joined, at most.
_OVER, _MOST_JOINED = 2, 64


@dataclass(frozen=True, slots=True, order=True)
class Choice:
    """A model, by its name, in a way."""

    model: str
    way: Way


@dataclass(frozen=True, slots=True)
class Sides:
    """What may change in a way: the cores of the machine, whether requests may be `joined`, and whether the runtime is
    ONNX Runtime, whose idle threads can be made to `spin`, and which takes more threads than there are cores."""

    cores: int
    joined: bool
    spin: bool

    def starts(self) -> list[Way]:
        """One run on every core, one run on all cores, and where there are many, one on half of them."""
        ways = [Way(1, self.cores), Way(self.cores, 1)]
        if self.cores >= 4:
            ways.append(Way(self.cores // 2, 2))
        return [*dict.fromkeys(ways)]

    def beside(self, way: Way) -> list[Way]:
        """The ways that differ from one in a single respect."""
        at_once = {way.at_once - 1, way.at_once + 1, way.at_once // 2, way.at_once * 2}
        found = [replace(way, at_once=each) for each in sorted(at_once) if each >= 1]
        for threads in (way.threads // 2, way.threads * 2):
            if threads >= 1:
                # The same cores, divided otherwise; and the same runs with other threads.
                found.append(replace(way, threads=threads, at_once=max(1, way.used_threads // threads)))
                found.append(replace(way, threads=threads))
        if self.joined:
            found += [replace(way, joined=each) for each in (way.joined // 2, way.joined * 2) if each >= 1]
        if self.spin and way.threads > 1:
            found.append(replace(way, spinning=not way.spinning))
        return [*dict.fromkeys(each for each in found if each != way and self._is_sensible(each))]

    def _is_sensible(self, way: Way) -> bool:
        over = _OVER if self.spin else 1  # OpenVINO has no more streams than cores
        fits = way.threads <= self.cores and way.used_threads <= over * self.cores
        return fits and way.joined <= _MOST_JOINED and not (way.spinning and way.threads == 1)


Measure = Callable[[Sequence[Choice]], Mapping[Choice, float]]


def climb(
    starts: Iterable[Choice],
    measure: Measure,
    sides: Mapping[str, Sides],
    known: Mapping[Choice, float] | None = None,
    rounds: int = ROUNDS,
) -> dict[Choice, float]:
    """The value of every choice that was measured or is `known`, on one scale; larger is better, and 0 is out.

    `measure` returns values of some choices that were measured side by side; none, if there is no time left. The best
    so far takes part in every round: the machine's speed drifts between rounds, and its value brings the others to one
    scale.
    """
    known = dict(known or {})
    wanted = [choice for choice in dict.fromkeys(starts) if choice not in known]
    for _ in range(rounds):
        if not wanted:
            break
        before = best_of(known, 1)
        values = measure([*before, *wanted])
        if not values:
            break
        scale = known[before[0]] / values[before[0]] if before and values[before[0]] > 0.0 else 1.0
        known |= {choice: scale * values[choice] for choice in wanted}
        if before and known[best_of(known, 1)[0]] < (1.0 + GAIN) * known[before[0]]:
            break
        beside = [
            Choice(choice.model, way)
            for choice in best_of(known, WIDTH)
            if known[choice] > 0.0
            for way in sides[choice.model].beside(choice.way)
        ]
        wanted = [choice for choice in dict.fromkeys(beside) if choice not in known]
    return known


def best_of(known: Mapping[Choice, float], most: int) -> list[Choice]:
    """The choices with the largest values, best first."""
    return sorted(known, key=lambda choice: (-known[choice], choice))[:most]
