"""What the search over ways found, and what was confirmed of it. Values only."""

from dataclasses import dataclass

from taglio.runtimes.way import Way


@dataclass(frozen=True, slots=True)
class Figure:
    """A value with the ends of a 90 % interval over openings."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        """As a ratio, such as `1.52 × (1.47 to 1.58)`."""
        return f"{self.value:.2f} × ({self.low:.2f} to {self.high:.2f})"

    def as_rate(self, noun: str) -> str:
        """As a rate, such as `149 requests/s (145 to 153)`."""
        return f"{_figures(self.value)} {noun}/s ({_figures(self.low)} to {_figures(self.high)})"


@dataclass(frozen=True, slots=True)
class TriedWay:
    """A way that was measured in the search, whose figures select and are not confirmed. `model` is the plan's name.

    `capacity_per_s`: items per second with as many callers as the way has runs at once. `rate_per_s`: the highest rate
    of requests that arrive at random within the limit on latency (None without a limit). `latency_s`: the latency of 19
    of 20 requests at that rate, or of 19 of 20 runs without a limit. `memory_bytes`: the memory of the open model.
    """

    model: str
    runtime: str
    way: Way
    capacity_per_s: float
    rate_per_s: float | None
    latency_s: float
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Load:
    """Requests that arrived at random at a `share` of the capacity, `per_s` on average: the latency of half, 19 of 20
    and 99 of 100 of them. A percentile of too few requests is None."""

    share: float
    per_s: float
    requests: int
    p50_s: float
    p95_s: float | None
    p99_s: float | None


@dataclass(frozen=True, slots=True)
class Rate:
    """The way that was chosen for a rate, and its figures, measured beside the source model in ONNX Runtime with
    default options.

    `capacity_per_s`: items per second if as many callers as the way has runs at once ask again as soon as they are
    answered. `over_one`: the capacity divided by that of the source with one caller. `over_many`: divided by that of
    the source with `callers` callers, as many as the way has runs at once. `max_latency_s`: the limit. `rate_per_s`:
    the highest rate of requests that arrive at random at which `p95_s`, the latency of 19 of 20 of them, is at most 0.9
    of the limit. Without `p95_s`, no load confirmed the rate. `base_rate_per_s`: the same for the source with one
    caller or with many, whichever is higher, or an upper end (flow/rate.py). `alone`: why requests are
    not joined, or "". `left_out`: what there was no time for. `memory_bytes`: the memory of the open model.
    """

    model: str
    runtime: str
    way: Way
    capacity_per_s: Figure
    over_one: Figure
    over_many: Figure
    callers: int
    openings: int
    memory_bytes: int
    max_latency_s: float | None = None
    rate_per_s: Figure | None = None
    p95_s: float | None = None
    base_rate_per_s: float | None = None
    loads: tuple[Load, ...] = ()
    tried: tuple[TriedWay, ...] = ()
    alone: str = ""
    left_out: tuple[str, ...] = ()

    @property
    def limit(self) -> str:
        """The limit on latency, such as `50 ms`; "" without one."""
        return "" if self.max_latency_s is None else f"{self.max_latency_s * 1e3:.6g} ms"

    @property
    def capacity(self) -> str:
        """The capacity as text, such as `163 items/s`."""
        return f"{_figures(self.capacity_per_s.value)} items/s"

    @property
    def capacity_gain(self) -> str:
        """The gain in capacity as text, such as `1.52 × (1.47 to 1.58) the capacity of float32 in ONNX Runtime with one
        caller, 1.60 × with 2 callers`."""
        many = f", {self.over_many.value:.2f} × with {self.callers} callers" if self.callers > 1 else ""
        return f"{self.over_one} the capacity of float32 in ONNX Runtime with one caller{many}"

    def __str__(self) -> str:
        """One line. With a limit on latency it begins with the rate that keeps the limit. Without a limit, or if no
        load confirmed a rate, it begins with `capacity_gain` and the capacity."""
        if self.max_latency_s is None:
            return f"{self.capacity_gain}; {self.capacity}"
        if self.rate_per_s is None:
            return f"{self.capacity_gain}; {self.capacity}, but no rate keeps {self.limit}"
        if self.p95_s is None:
            about = f"about {_figures(self.rate_per_s.value)} requests/s within {self.limit}, not confirmed"
            return f"{self.capacity_gain}; {self.capacity}; {about}"
        within = f"19 of 20 answered within {_figures(self.p95_s * 1e3)} ms (limit {self.limit})"
        base = "float32 keeps that at no rate"
        if self.base_rate_per_s:
            base = f"{self.rate_per_s.value / self.base_rate_per_s:.2f} × float32's {_figures(self.base_rate_per_s)}"
        return f"{self.rate_per_s.as_rate('requests')}, {within}, {base}; capacity {self.capacity}"


def _figures(value: float) -> str:
    return f"{value:.3g}" if value < 100.0 else f"{value:.0f}"
