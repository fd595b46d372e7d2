"""The load that a model is put under, as a value. Measures nothing."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Demand:
    """Requests that arrive at random: so many a second on average, or a share of the capacity."""

    amount: float
    is_share: bool

    def at(self, capacity_per_s: float) -> tuple[float, float]:
        """The share of a capacity, and the requests per second."""
        if self.is_share:
            return self.amount, self.amount * capacity_per_s
        return self.amount / capacity_per_s, self.amount
