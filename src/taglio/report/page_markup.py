"""Markup that escapes by construction, and numbers in the units the page shows. Knows nothing of models."""

from collections.abc import Sequence
from html import escape
from math import floor, inf, isfinite, log10

from taglio.error.loss import RELATIVE_L2, Metric

_VOID = frozenset({"br", "col", "link", "meta", "wbr"})
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_NBSP = "\u00a0"
MISSING = "–"


class Html(str):
    """Text that is markup already: everything else is escaped where it enters a tag."""

    __slots__ = ()


def tag(element: str, /, *children: object, **attributes: object) -> Html:
    """One element. Children that are not Html are escaped, None is skipped; `class_` and `stroke_width` are written
    `class` and `stroke-width`; an attribute that is None or False is left out."""
    head = [element]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        written = key.rstrip("_").replace("_", "-")
        head.append(written if value is True else f'{written}="{escape(_text(value))}"')
    if element in _VOID:
        return Html(f"<{' '.join(head)}>")
    return Html(f"<{' '.join(head)}>{join(*children)}</{element}>")


def join(*children: object) -> Html:
    """Children one after another, escaped where they are not Html."""
    return Html(
        "".join(each if isinstance(each, Html) else escape(_text(each)) for each in children if each is not None)
    )


def table(
    head: Sequence[object],
    rows: Sequence[Sequence[object]],
    *,
    class_: str = "",
    caption: str = "",
    words: frozenset[int] = frozenset(),
) -> Html:
    """A plain table in a container of its own that scrolls sideways. The first column holds row headers; the columns
    in `words` are aligned left, as text is."""

    def cell(name: str, index: int, content: object, scope: str | None = None) -> Html:
        return tag(name, content, scope=scope, class_="words" if index in words else None)

    body = [
        tag("tr", tag("th", row[0], scope="row"), *(cell("td", index, row[index]) for index in range(1, len(row))))
        for row in rows
    ]
    return tag(
        "div",
        tag(
            "table",
            tag("caption", caption) if caption else None,
            tag("thead", tag("tr", *(cell("th", index, each, "col") for index, each in enumerate(head))))
            if head
            else None,
            tag("tbody", *body),
            class_=class_ or None,
        ),
        class_="scroll",
    )


def breakable(name: str) -> Html:
    """A long name that a line may break after any of its slashes."""
    return Html(join(name).replace("/", f"/{tag('wbr')}"))


def ms(seconds: float | None, decimals: int | None = None) -> str:
    """Milliseconds with three significant digits, or as many decimals as the table's other rows."""
    if seconds is None:
        return MISSING
    value = seconds * 1e3
    return f"{value:.{decimals}f}{_NBSP}ms" if decimals is not None else f"{figures(value)}{_NBSP}ms"


def signed_ms(seconds: float, decimals: int) -> str:
    """Milliseconds with a sign."""
    value = round(seconds * 1e3, decimals)
    sign = "+" if value > 0 else "−" if value < 0 else "±"
    return f"{sign}{abs(value):.{decimals}f}{_NBSP}ms"


def ms_decimals(largest_s: float) -> int:
    """Decimals that give the largest of a column's times three or four digits."""
    value = abs(largest_s) * 1e3
    return max(1, min(4, 2 - floor(log10(value)))) if 0.0 < value < inf else 2


def percent(share: float | None) -> str:
    """A share as a percentage with three significant digits."""
    return MISSING if share is None else f"{figures(share * 100)}{_NBSP}%"


def limit(share: float | None) -> str:
    """A share that somebody asked for, as a percentage without trailing zeros."""
    return MISSING if share is None else f"{share * 100:.6g}{_NBSP}%"


def shown(metric: Metric, loss: float | None) -> str:
    """A loss in the metric's unit."""
    if loss is None or metric.name == RELATIVE_L2:
        return percent(loss)
    return metric.text(loss).replace(" ", _NBSP)


def allowed(metric: Metric, loss: float) -> str:
    """A bound that somebody asked for, in the metric's unit, and which side of it is meant."""
    value = limit(loss) if metric.name == RELATIVE_L2 else shown(metric, loss)
    return f"at {'least' if metric.larger_is_better else 'most'} {value}"


def size(count: float) -> str:
    """Bytes in decimal units."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f}{_NBSP}B" if unit == "B" else f"{count:.1f}{_NBSP}{unit}"
        count /= 1000
    return f"{count:.2f}{_NBSP}GB"


def figures(value: float, digits: int = 3) -> str:
    """A number with `digits` significant digits, in powers of ten where decimals would be many."""
    if not isfinite(value):
        return "∞" if value > 0 else MISSING
    if value == 0.0:
        return "0"
    power = floor(log10(abs(value)) + 1e-12)
    if -4 <= power < 6:
        text = f"{value:.{max(0, digits - 1 - power)}f}"
        return text.replace("-", "−")
    head = value / 10.0**power
    return f"{head:.1f}".replace("-", "−") + f"×10{str(power).translate(_SUPERSCRIPT)}"


def times(ratio: float) -> str:
    """A ratio as in "2.0×"."""
    return f"{ratio:.2f}×" if ratio < 10 else f"{ratio:.1f}×"


def plural(count: int, noun: str) -> str:
    """ "1 block", "2 blocks"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _text(value: object) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
