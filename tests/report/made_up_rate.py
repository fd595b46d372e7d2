"""The made-up rate of a plan, without a limit on latency and with one."""

from dataclasses import replace

from taglio.runtimes.way import Way
from taglio.ways.result import Figure, Load, Rate, TriedWay

CHOSEN, DEFAULT = Way(1, 2), Way(2)


def tried(model: str, way: Way, capacity_per_s: float, latency_s: float) -> TriedWay:
    return TriedWay(model, "onnxruntime", way, capacity_per_s, None, latency_s, 84_000_000)


def made_up_rate() -> Rate:
    """The capacity alone. The default way is the slowest of the eight that were tried."""
    ways = (
        tried("plan 1", CHOSEN, 163.0, 14e-3),
        *(tried("plan 1", Way(1, 2, joined), 160.0 - joined, 14e-3 * joined) for joined in (2, 4, 8, 16)),
        tried("float32", CHOSEN, 104.0, 21e-3),
        tried("float32", DEFAULT, 99.0, 11e-3),
        tried("plan 1", DEFAULT, 98.0, 9e-3),
    )
    loads = (
        Load(0.1, 16.3, 100, 7e-3, 9e-3, None),
        Load(0.5, 81.5, 400, 9e-3, 18e-3, 25e-3),
        Load(0.9, 146.7, 800, 25e-3, 70e-3, 110e-3),
    )
    return Rate(
        "plan 1",
        "onnxruntime",
        CHOSEN,
        Figure(163.0, 158.0, 168.0),
        Figure(1.52, 1.47, 1.58),
        Figure(1.60, 1.55, 1.66),
        callers=2,
        openings=8,
        memory_bytes=84_000_000,
        loads=loads,
        tried=ways,
        alone="an input has no dynamic batch dimension",
        left_out=("float32 with 4 runs at once",),
    )


def made_up_limited_rate() -> Rate:
    """The same with a limit of 50 ms, which the ways that join 16 items keep at no rate."""
    rate = made_up_rate()
    limited = tuple(
        replace(way, rate_per_s=0.0 if way.way.joined == 16 else 0.9 * way.capacity_per_s) for way in rate.tried
    )
    rate = replace(rate, tried=limited, base_rate_per_s=93.0)
    return replace(rate, max_latency_s=0.05, rate_per_s=Figure(149.0, 145.0, 153.0), p95_s=43.8e-3)
