"""Format numbers in the units of the page. Knows no markup."""

from math import floor, isfinite, log10

from taglio.error.loss import RELATIVE_L2, Metric
from taglio.error.tally import RUINED

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_NBSP = "\u00a0"
MISSING = "–"


def ms(seconds: float | None) -> str:
    """Milliseconds with three significant digits."""
    return MISSING if seconds is None else f"{figures(seconds * 1e3)}{_NBSP}ms"


def percent(share: float | None) -> str:
    """A share as a percentage with three significant digits."""
    return MISSING if share is None else f"{figures(share * 100)}{_NBSP}%"


def limit(share: float | None) -> str:
    """A share set by the user, as a percentage without trailing zeros."""
    return MISSING if share is None else f"{share * 100:.6g}{_NBSP}%"


def shown(metric: Metric, loss: float | None) -> str:
    """A loss in the metric's unit; words for answers that are not finite."""
    if loss is not None and metric.name == RELATIVE_L2 and loss >= RUINED:
        return f"NaN{_NBSP}or{_NBSP}∞"
    if loss is None or metric.name == RELATIVE_L2:
        return percent(loss)
    return metric.text(loss).replace(" ", _NBSP)


def allowed(metric: Metric, loss: float) -> str:
    """The user's limit in the metric's unit."""
    return f"limit {limit(loss) if metric.name == RELATIVE_L2 else shown(metric, loss)}"


def size(count: float) -> str:
    """Bytes in decimal units."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f}{_NBSP}B" if unit == "B" else f"{count:.1f}{_NBSP}{unit}"
        count /= 1000
    return f"{count:.2f}{_NBSP}GB"


def figures(value: float) -> str:
    """A number with three significant digits; in powers of ten if it would have many decimals."""
    if not isfinite(value):
        return "∞" if value > 0 else "−∞" if value < 0 else MISSING
    if value == 0.0:
        return "0"
    power = floor(log10(abs(value)) + 1e-12)
    if -4 <= power < 6:
        text = f"{value:.{max(0, 2 - power)}f}"
        return text.replace("-", "−")
    head = value / 10.0**power
    return f"{head:.1f}".replace("-", "−") + f"×10{str(power).translate(_SUPERSCRIPT)}"


def times(ratio: float | None) -> str:
    """A ratio such as "2.00×"."""
    return MISSING if ratio is None else f"{figures(ratio)}×"


def about(ratio: float) -> str:
    """A speed-up that no race confirmed, with two digits, such as "about 1.3 ×"."""
    if not isfinite(ratio):
        return f"about {figures(ratio)} ×"
    text = f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.1f}" if ratio >= 1 else f"{ratio:.2g}"
    return f"about {text} ×"
