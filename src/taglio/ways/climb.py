"""Find the fastest way of running a model: measure a few ways, then the neighbours of the best, until none gains. Knows
no runtime: the caller measures the ways."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from taglio.runtimes.way import Way


@dataclass(frozen=True, slots=True, order=True)
class Choice:
    """A model, by the name of its plan, in a way."""

    model: str
    way: Way


@dataclass(frozen=True, slots=True)
class Sides:
    """What may change in a way. The machine has `cores`, and a run has at most `threads` of them. `joined` says whether
    requests may share a run. `pools` says whether threads are ONNX Runtime's: they can spin, all runs can share them,
    and there can be more of them than cores."""

    cores: int
    threads: int
    joined: bool
    pools: bool

    def starts(self) -> list[Way]:
        """One run on every core, one run on all cores, and where there are many, one on half of them."""
        ways = [Way(1, self.cores), Way(self.threads, max(1, self.cores // self.threads))]
        if self.cores >= 4:
            ways.append(Way(min(self.threads, self.cores // 2), 2))
        return [*dict.fromkeys(ways)]

    def beside(self, way: Way) -> list[Way]:
        """The ways that differ from `way` in a single respect."""
        at_once = {way.at_once - 1, way.at_once + 1, way.at_once // 2, way.at_once * 2}
        ways = [replace(way, at_once=runs) for runs in sorted(at_once) if runs >= 1]
        for threads in (way.threads // 2, way.threads * 2):
            if threads >= 1:
                # The same cores among fewer or more runs; and as many runs with fewer or more threads.
                ways.append(replace(way, threads=threads, at_once=max(1, way.used_threads // threads)))
                ways.append(replace(way, threads=threads))
        if self.joined:
            ways += [replace(way, joined=items) for items in (way.joined // 2, way.joined * 2) if items >= 1]
        if self.pools and way.threads > 1:
            ways.append(replace(way, spinning=not way.spinning))
            ways.append(replace(way, threads=self.threads, shared=not way.shared))
        return [*dict.fromkeys(other for other in ways if other != way and self._is_sensible(other))]

    def _is_sensible(self, way: Way) -> bool:
        over = 2 if self.pools else 1  # OpenVINO has no more streams than cores
        fits = way.threads <= self.threads and max(way.used_threads, way.at_once) <= over * self.cores
        alone = way.threads == 1 or (way.shared and way.at_once == 1)  # nobody to wait for, or to share with
        return fits and way.joined <= 64 and not (alone and (way.spinning or way.shared))


Measure = Callable[[Sequence[Choice]], Mapping[Choice, float]]


def climb(
    starts: Iterable[Choice],
    measure: Measure,
    sides: Mapping[str, Sides],
    value_of: Mapping[Choice, float] | None = None,
) -> dict[Choice, float]:
    """The value of every choice that was measured or is in `value_of`, on one scale. Larger is better; 0 means that a
    choice breaks a limit.

    In at most six rounds, the neighbours of the two best choices are measured, until the best gains less than 2 %.
    `measure` returns the values of choices that it measured side by side, or no values if no time is left. The best
    choice so far takes part in every round: the machine's speed drifts from round to round, and the value of that
    choice brings the others to one scale.
    """
    value_of = dict(value_of or {})
    wanted = [choice for choice in dict.fromkeys(starts) if choice not in value_of]
    for _ in range(6):
        if not wanted:
            break
        before = best_of(value_of, 1)
        values = measure([*before, *wanted])
        if not values:
            break
        scale = value_of[before[0]] / values[before[0]] if before and values[before[0]] > 0.0 else 1.0
        value_of |= {choice: scale * values[choice] for choice in wanted}
        if before and value_of[best_of(value_of, 1)[0]] < 1.02 * value_of[before[0]]:
            break
        beside = [
            Choice(choice.model, way)
            for choice in best_of(value_of, 2)
            if value_of[choice] > 0.0
            for way in sides[choice.model].beside(choice.way)
        ]
        wanted = [choice for choice in dict.fromkeys(beside) if choice not in value_of]
    return value_of


def best_of(value_of: Mapping[Choice, float], most: int) -> list[Choice]:
    """The choices with the largest values, best first."""
    return sorted(value_of, key=lambda choice: (-value_of[choice], choice))[:most]
