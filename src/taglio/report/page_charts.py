"""Charts as inline SVG and HTML bars: axes, marks, labels that avoid each other. Knows nothing of models."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, floor, isfinite, log10

from taglio.report.page_markup import Html, figures, join, tag

_WIDTH, _HEIGHT = 480.0, 372.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 74.0, 14.0, 14.0, 50.0
# Room at the foot of a logarithmic axis for exact zeros.
_ZERO_LANE = 0.1
_LETTER = 7.0


@dataclass(frozen=True, slots=True)
class Axis:
    """Maps values to 0..1. On a logarithmic axis with `zero`, 0 has a lane of its own at the start."""

    title: str
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    logarithmic: bool = False
    zero: bool = False

    def at(self, value: float) -> float:
        """Position of `value`; what lies outside is put on the edge."""
        if not isfinite(value):
            share = 1.0 if value > 0.0 else 0.0
        elif not self.logarithmic:
            share = (value - self.low) / (self.high - self.low)
        elif value <= 0.0:
            share = 0.0
        else:
            share = (log10(value) - log10(self.low)) / (log10(self.high) - log10(self.low))
            share = _ZERO_LANE + (1.0 - _ZERO_LANE) * share if self.zero else share
        return min(1.0, max(0.0, share))


def linear(title: str, values: Sequence[float], *, from_zero: bool = False) -> Axis:
    """An axis with round ticks around `values`."""
    known = [value for value in values if isfinite(value)]
    low, high = min(known, default=0.0), max(known, default=1.0)
    margin = (high - low) * 0.08 or abs(high) * 0.1 or 1.0
    floor_at = 0.0 if low >= 0.0 else low - margin  # negative values, such as time lost, have room of their own
    low, high = (floor_at if from_zero else max(floor_at, low - margin)), high + margin
    raw = (high - low) / 6
    power = 10.0 ** floor(log10(raw))
    step = next(power * each for each in (1, 2, 2.5, 5, 10) if power * each >= raw * 0.999)
    decimals = max(0, -floor(log10(step) + 1e-9) + (1 if abs(step / power - 2.5) < 1e-6 else 0))
    ticks = [index * step for index in range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1)]
    return Axis(title, low, high, tuple((tick, f"{tick:.{decimals}f}") for tick in ticks))


def logarithmic(title: str, values: Sequence[float], *, zero: bool = False) -> Axis:
    """A logarithmic axis around the positive of `values`; ticks between decades where those are few."""
    positive = [value for value in values if isfinite(value) and value > 0.0] or [1.0]
    low, high = min(positive) / 1.25, max(positive) * 1.25
    powers = range(floor(log10(low)), ceil(log10(high)) + 1)
    every = max(1, round(log10(high / low) / 6))
    shown: list[tuple[float, str]] = []
    for steps in ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)):
        ticks = [step * 10.0**power for power in powers if power % every == 0 for step in steps]
        shown = [(tick, f"{tick:.4g}" if tick >= 1e-4 else figures(tick, 1)) for tick in ticks if low <= tick <= high]
        if len(shown) > 3:
            break
    return Axis(title, low, high, tuple([(0.0, "0"), *shown] if zero else shown), True, zero)


class Chart:
    """A scatter chart that is being drawn: first what lies behind, then marks, then labels."""

    def __init__(self, x: Axis, y: Axis, label: str) -> None:
        self._x, self._y, self._label = x, y, label
        self._parts: list[Html] = []
        self._taken: list[tuple[float, float, float, float]] = []
        self._frame()

    def x(self, value: float) -> float:
        """Pixels from the left."""
        return _LEFT + self._x.at(value) * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        """Pixels from the top."""
        return _HEIGHT - _BOTTOM - self._y.at(value) * (_HEIGHT - _TOP - _BOTTOM)

    def line(self, function: Callable[[float], float], class_: str) -> None:
        """The graph of `function` as far as both axes reach."""
        points = self._inside(function)
        if points:
            self._parts.append(tag("polyline", points=_points(points), class_=class_))

    def band(self, lower: Callable[[float], float], upper: Callable[[float], float], class_: str) -> None:
        """The area between two functions."""
        xs = self._samples()
        edge = [(self.x(x), self.y(lower(x))) for x in xs] + [(self.x(x), self.y(upper(x))) for x in reversed(xs)]
        self._parts.append(tag("polygon", points=_points(edge), class_=class_))

    def area_above(self, value: float, class_: str) -> None:
        """Everything above a value of y."""
        top, left, right = _TOP, _LEFT, _WIDTH - _RIGHT
        self._parts.append(tag("rect", x=left, y=top, width=right - left, height=self.y(value) - top, class_=class_))

    def across(self, y: float, class_: str, text: str) -> None:
        """A horizontal line from side to side, named at its right end."""
        right, at = _WIDTH - _RIGHT, self.y(y)
        self._parts.append(tag("line", x1=_LEFT, x2=right, y1=at, y2=at, class_=class_))
        self._parts.append(tag("text", text, x=right - 4, y=at - 5, class_="note", text_anchor="end"))
        self._taken.append((right - 4 - _LETTER * len(text), at - 16, right, at + 2))

    def segment(self, x0: float, x1: float, y: float, class_: str) -> None:
        """A horizontal stroke."""
        self._parts.append(tag("line", x1=self.x(x0), x2=self.x(x1), y1=self.y(y), y2=self.y(y), class_=class_))

    def mark(self, shape: str, x: float, y: float, class_: str, title: str, radius: float = 4.5) -> None:
        """A point, with what it says when pointed at."""
        px, py = self.x(x), self.y(y)
        reach = tag("circle", cx=px, cy=py, r=radius + 5, class_="reach")
        self._parts.append(tag("g", tag("title", title), reach, drawn(shape, px, py, radius, class_), class_="mark"))
        self._taken.append((px - radius, py - radius, px + radius, py + radius))

    def label(self, x: float, y: float, text: str, class_: str = "") -> None:
        """Text beside a point, on the side where it covers least."""
        px, py, width, reach = self.x(x), self.y(y), _LETTER * len(text), 10.0
        sides = (
            (px + reach, py + 4, "start"),
            (px - reach, py + 4, "end"),
            (px, py - reach, "middle"),
            (px, py + reach + 10, "middle"),
            (px + reach, py - reach, "start"),
            (px + reach, py + reach + 8, "start"),
            (px - reach, py - reach, "end"),
            (px - reach, py + reach + 8, "end"),
        )
        best = min(sides, key=lambda side: self._covered(_extent(side, width)))
        self._taken.append(_extent(best, width))
        anchor = {"text_anchor": best[2]}
        self._parts.append(tag("text", text, x=best[0], y=best[1], class_=f"label {class_}".strip(), **anchor))

    def draw(self) -> Html:
        """The finished picture."""
        box = f"0 0 {_WIDTH:.0f} {_HEIGHT:.0f}"
        return tag("svg", *self._parts, viewBox=box, class_="chart", role="img", aria_label=self._label)

    def _frame(self) -> None:
        bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
        for value, text in self._x.ticks:
            x = self.x(value)
            self._parts.append(tag("line", x1=x, x2=x, y1=_TOP, y2=bottom, class_="grid"))
            self._parts.append(tag("text", text, x=x, y=bottom + 17, class_="tick", text_anchor="middle"))
        for value, text in self._y.ticks:
            y = self.y(value)
            self._parts.append(tag("line", x1=_LEFT, x2=right, y1=y, y2=y, class_="grid"))
            self._parts.append(tag("text", text, x=_LEFT - 8, y=y + 4, class_="tick", text_anchor="end"))
        self._parts.append(tag("line", x1=_LEFT, x2=right, y1=bottom, y2=bottom, class_="axis"))
        middle, height = (_LEFT + right) / 2, (_TOP + bottom) / 2
        self._parts.append(tag("text", self._x.title, x=middle, y=_HEIGHT - 8, class_="title", text_anchor="middle"))
        turned = f"translate(14 {height:.0f}) rotate(-90)"
        self._parts.append(tag("text", self._y.title, transform=turned, class_="title", text_anchor="middle"))

    def _samples(self) -> list[float]:
        low, high, count = self._x.low, self._x.high, 160
        if self._x.logarithmic:
            return [low * (high / low) ** (index / count) for index in range(count + 1)]
        return [low + (high - low) * index / count for index in range(count + 1)]

    def _inside(self, function: Callable[[float], float]) -> list[tuple[float, float]]:
        low, high = self._y.low * (1 - 1e-9), self._y.high * (1 + 1e-9)
        return [(self.x(x), self.y(function(x))) for x in self._samples() if low <= function(x) <= high]

    def _covered(self, box: tuple[float, float, float, float]) -> float:
        outside = max(0.0, _LEFT - box[0]) + max(0.0, box[2] - _WIDTH) + max(0.0, _TOP - 8 - box[1])
        outside += max(0.0, box[3] - (_HEIGHT - _BOTTOM))
        return 50.0 * outside + sum(_overlap(box, other) for other in self._taken)


def drawn(shape: str, x: float, y: float, radius: float, class_: str) -> Html:
    """One mark around a point: circle, square, diamond or ring."""
    if shape == "square":
        side = radius * 1.8
        return tag("rect", x=x - side / 2, y=y - side / 2, width=side, height=side, class_=class_)
    if shape == "diamond":
        reach = radius * 1.3
        return tag(
            "polygon", points=_points([(x, y - reach), (x + reach, y), (x, y + reach), (x - reach, y)]), class_=class_
        )
    if shape == "ring":
        inner = tag("circle", cx=x, cy=y, r=radius, class_=class_)
        return join(tag("circle", cx=x, cy=y, r=radius + 4, class_=f"{class_} ring"), inner)
    return tag("circle", cx=x, cy=y, r=radius, class_=class_)


def _points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _extent(side: tuple[float, float, str], width: float) -> tuple[float, float, float, float]:
    x, y, anchor = side
    left = x - {"start": 0.0, "middle": width / 2, "end": width}[anchor]
    return (left, y - 11, left + width, y + 3)


def _overlap(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> float:
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    return width * height if width > 0.0 and height > 0.0 else 0.0


@dataclass(frozen=True, slots=True)
class Bar:
    """One row of a waterfall, from `start` to `end` in the chart's own unit. `value` is what stands at its right."""

    label: str
    start: float
    end: float
    value: str
    class_: str
    title: str = ""


def waterfall(bars: Sequence[Bar]) -> Html:
    """Rows of bars on one scale, in HTML so that text keeps its size on any screen."""
    low = min((min(bar.start, bar.end) for bar in bars), default=0.0)
    low = min(0.0, low)
    span = max((max(bar.start, bar.end) for bar in bars), default=1.0) - low or 1.0
    rows = []
    for bar in bars:
        left, right = sorted(((bar.start - low) / span, (bar.end - low) / span))
        style = f"left:{left * 100:.2f}%;width:{(right - left) * 100:.2f}%"
        track = tag("span", tag("i", class_=bar.class_, style=style), class_="track")
        label = tag("span", bar.label, class_="what", title=bar.title or bar.label)
        rows.append(tag("li", label, track, tag("span", bar.value, class_="value"), class_=f"is-{bar.class_}"))
    return tag("ol", *rows, class_="waterfall")
