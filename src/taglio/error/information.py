"""Detect outputs that lost their information, however small their error. Pure.

If values around 1000 differ by less than 1 %, an error of 1 % can hide all of their differences. So a few hundred
values of each part are kept per input, and checked: do they still differ, in the same order; and do their changes from
input to input still follow the float model's? Only values away from the bulk of the float model's count: the order
within the noise floor of a detector's scores is irrelevant.
"""

import numpy as np

_KEPT, _JUDGED = 256, 8192
# The fewest values off the bulk to judge by.
_FEWEST = 16


class Watch:
    """Keeps a few values per input: at random places, at the largest value in each stretch of the first input (most
    scores are noise), and at the largest value in each stretch of the input itself."""

    def __init__(self) -> None:
        self._drawn: list[tuple[np.ndarray, np.ndarray]] = []
        self._peaks: list[tuple[np.ndarray, np.ndarray]] = []
        self._places: dict[int, np.ndarray] = {}

    def add(self, reference: np.ndarray, changed: np.ndarray) -> None:
        """Add one input's values, flat: `reference` of the float model, and `changed`."""
        size = len(reference)
        if size == 0:
            return
        if size <= _KEPT:
            self._drawn.append((reference.copy(), changed.copy()))
            return
        stretch = size // _KEPT
        peaks = np.abs(reference[: stretch * _KEPT].reshape(_KEPT, stretch)).argmax(axis=1)
        peaks += np.arange(_KEPT) * stretch
        if size not in self._places:
            self._places[size] = np.concatenate([np.random.default_rng(size).integers(0, size, _KEPT), peaks])
        places = self._places[size]
        self._drawn.append((reference[places], changed[places]))
        self._peaks.append((reference[peaks], changed[peaks]))

    def lost(self, *, ordered: bool = True) -> str:
        """The loss of information, as words that follow "output y", or "". Unless `ordered`, neither the order of
        values nor their changes from input to input are checked."""
        kept = [*self._drawn, *self._peaks]
        if not kept:
            return ""
        a, b = (np.concatenate(values)[:: 1 + sum(map(len, values)) // _JUDGED] for values in zip(*kept, strict=True))
        return _values_lost(a, b, ordered) or (self._change_lost() if ordered else "")

    def _change_lost(self) -> str:
        if len(self._drawn) < 4 or len({len(a) for a, _ in self._drawn}) > 1:
            return ""
        a, b = (np.stack(values).astype(np.float64) for values in zip(*self._drawn, strict=True))
        change, changed = a - a.mean(axis=0), b - b.mean(axis=0)
        if _root(change) <= 1e-2 * _root(a):  # the same for every input
            return ""
        step = 1 + change.size // _JUDGED
        off_bulk = _off_bulk(change.ravel()[::step])
        if np.count_nonzero(off_bulk) < _FEWEST:
            return ""
        if _root(changed) == 0.0:
            return "is the same for every input"
        kept = _keeps_order(change.ravel()[::step], changed.ravel()[::step], off_bulk)
        return "" if kept else "no longer depends on the input"


def _values_lost(a: np.ndarray, b: np.ndarray, ordered: bool) -> str:
    if _is_constant(a):
        return ""
    off_bulk = _off_bulk(a)
    count = np.count_nonzero(off_bulk)
    if count >= 4 and (b == b[0]).all():
        return f"is {b[0]:.4g} everywhere"
    if count < _FEWEST:
        return ""
    value, _ = _commonest(b[off_bulk])
    # Small moves do not make a value another: 8 bits round a saturated sigmoid to 0 or 1.
    moved = np.abs(a - value) > 0.02 * np.std(a.astype(np.float64))
    share = float(np.mean((b == value)[off_bulk] & moved[off_bulk]))
    float_share = 1.0 if _is_constant(a[off_bulk]) else _commonest(a[off_bulk])[1]
    if share > 0.5 and share > float_share + 0.25:
        if share == 1.0:
            return f"is {value:.4g} everywhere"
        return f"is {value:.4g} in {share:.0%} of its values"
    return "" if not ordered or _keeps_order(a, b, off_bulk) else "ranks its values in a different order"


def _keeps_order(a: np.ndarray, b: np.ndarray, off_bulk: np.ndarray) -> bool:
    """Whether the values `off_bulk` have the same order in `a` and `b` (a rank correlation of a half), or else all
    values do: those values of a mask are all 1 and have no order."""
    return max(rank_correlation(a[off_bulk], b[off_bulk]), rank_correlation(a, b)) >= 0.5


def rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Spearman's rank correlation; ties have their mean rank. 0 if either array is constant."""
    x, y = _ranks(a), _ranks(b)
    x, y = x - x.mean(), y - y.mean()
    norm = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / norm if norm > 0.0 else 0.0


def _is_constant(values: np.ndarray) -> bool:
    return bool(np.std(values.astype(np.float64)) <= 1e-5 * _root(values))


def _off_bulk(a: np.ndarray) -> np.ndarray:
    """The values that count: those a tenth of the standard deviation or more from the median."""
    return np.asarray(np.abs(a - np.median(a)) > 0.1 * np.std(a.astype(np.float64)))


def _ranks(values: np.ndarray) -> np.ndarray:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - 0.5 * (counts - 1.0))[inverse])


def _commonest(values: np.ndarray) -> tuple[float, float]:
    """The value that occurs most often, and its share."""
    distinct, counts = np.unique(values, return_counts=True)
    most = int(np.argmax(counts))
    return float(distinct[most]), float(counts[most]) / len(values)


def _root(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(values.astype(np.float64) ** 2)))
