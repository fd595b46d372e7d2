"""The load that a model is put under, as a value. Measures nothing."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Demand:
    """Requests that arrive at random: `per_s` on average, or a `share` of the capacity. The other one is None."""

    share: float | None = None
    per_s: float | None = None

    def __post_init__(self) -> None:
        numbers = [value for value in (self.share, self.per_s) if value is not None]
        if len(numbers) != 1 or numbers[0] <= 0.0:
            raise ValueError(f"a demand is a share or a rate above 0, but is {self}")

    def at(self, capacity_per_s: float) -> tuple[float, float]:
        """The share of a capacity, and the requests per second."""
        if self.share is not None:
            return self.share, self.share * capacity_per_s
        assert self.per_s is not None
        return self.per_s / capacity_per_s, self.per_s
