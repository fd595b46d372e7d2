"""Predicted against true, a panel for each model, and learning curves, as SVG text. Draws; computes no figure."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import log10

import numpy as np

_SIDE, _MARGIN, _TOP = 230, 46, 44
_COLOURS = ("#8a8a8a", "#4c78a8", "#b279a2", "#e45756", "#54a24b", "#f2a541", "#72b7b2")


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """Values to draw under one name."""

    name: str
    x: np.ndarray
    y: np.ndarray


def scatter(title: str, axis: str, panels: Sequence[Series]) -> str:
    """Predicted (y) against true (x), one square panel each, all on the same axes."""
    high = float(max(max(each.x.max(), each.y.max()) for each in panels)) * 1.05
    low = min(0.0, float(min(each.y.min() for each in panels)))
    width = _MARGIN + len(panels) * (_SIDE + _MARGIN)
    body = [_text(width / 2, 18, title, "middle", 14)]
    for index, each in enumerate(panels):
        left = _MARGIN + index * (_SIDE + _MARGIN)

        def place(x: float, y: float, left: float = left) -> tuple[float, float]:
            return left + (x - low) / (high - low) * _SIDE, _TOP + _SIDE - (y - low) / (high - low) * _SIDE

        body.append(_frame(left))
        (x0, y0), (x1, y1) = place(low, low), place(high, high)
        body.append(f'<line x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}" stroke="#999"/>')
        for x, y in zip(each.x, each.y, strict=True):
            cx, cy = place(float(x), float(y))
            body.append(f'<circle cx="{cx:.1f}" cy="{cy:.1f}" r="2.2" fill="{_COLOURS[3]}" fill-opacity=".6"/>')
        for value in _ticks(low, high):
            x, y = place(value, value)
            body += [
                _text(x, _TOP + _SIDE + 14, f"{value:g}", "middle", 10),
                _text(left - 4, y + 3, f"{value:g}", "end"),
            ]
        body.append(_text(left + _SIDE / 2, _TOP - 6, each.name, "middle", 12))
        body.append(_text(left + _SIDE / 2, _TOP + _SIDE + 28, f"measured {axis}", "middle", 10))
    return _svg(width, _TOP + _SIDE + 40, body)


def curves(title: str, x_axis: str, y_axis: str, lines: Sequence[Series]) -> str:
    """Lines on logarithmic axes, named at the right."""
    xs = np.concatenate([each.x for each in lines])
    ys = np.concatenate([each.y for each in lines])
    x0, x1, y0, y1 = (log10(float(v)) for v in (xs.min(), xs.max(), ys.min() / 1.2, ys.max() * 1.2))
    wide, high = 2 * _SIDE, int(1.3 * _SIDE)
    body = [_text(_MARGIN + wide / 2, 18, title, "middle", 14)]

    def place(x: float, y: float) -> tuple[float, float]:
        return _MARGIN + (log10(x) - x0) / (x1 - x0) * wide, _TOP + high - (log10(y) - y0) / (y1 - y0) * high

    body.append(f'<rect x="{_MARGIN}" y="{_TOP}" width="{wide}" height="{high}" fill="none" stroke="#bbb"/>')
    for index, each in enumerate(lines):
        colour = _COLOURS[index % len(_COLOURS)]
        points = " ".join(
            f"{a:.1f},{b:.1f}" for a, b in (place(float(x), float(y)) for x, y in zip(each.x, each.y, strict=True))
        )
        body.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        body.append(_text(_MARGIN + wide + 10, _TOP + 14 + 16 * index, f"\u2014 {each.name}", "start", 11, colour))
    body += [
        _text(place(value, 10**y0)[0], _TOP + high + 14, f"{value:g}", "middle", 9)
        for value in sorted({float(each) for each in xs})
    ]
    for value in (0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0):
        if y0 <= log10(value) <= y1:
            y = place(10**x0, value)[1]
            body.append(f'<line x1="{_MARGIN}" y1="{y:.1f}" x2="{_MARGIN + wide}" y2="{y:.1f}" stroke="#eee"/>')
            body.append(_text(_MARGIN - 4, y + 3, f"{value:.1%}", "end", 9))
    body.append(_text(_MARGIN + wide / 2, _TOP + high + 30, f"{x_axis}; vertical: {y_axis}", "middle", 11))
    return _svg(_MARGIN + wide + 200, _TOP + high + 40, body)


def _ticks(low: float, high: float) -> list[float]:
    step = 10.0 ** np.floor(log10((high - low) / 3.0))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= 5)
    return [float(round(value, 12)) for value in np.arange(np.ceil(low / step), high / step) * step]


def _frame(left: float) -> str:
    return f'<rect x="{left}" y="{_TOP}" width="{_SIDE}" height="{_SIDE}" fill="none" stroke="#bbb"/>'


def _text(x: float, y: float, text: str, anchor: str, size: int = 10, colour: str = "#222") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{colour}">{escape(text)}</text>'
    )


def _svg(width: float, height: float, body: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" font-family="sans-serif">\n<rect width="100%" height="100%" fill="#fff"/>\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )
