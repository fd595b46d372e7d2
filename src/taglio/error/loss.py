"""The metric that a bound is on: its unit, its direction, and the loss that is kept under the bound. Runs no model.

A loss is 0 for the float model and grows as outputs change; planning, searching and fitting know nothing else. A metric
turns values of its own unit into losses and back:

    relative-l2   ‖y − ŷ‖ / ‖y‖                            loss = value
    l2-per-size   ‖y − ŷ‖ / size, root mean square          loss = value          (the notes' metric)
    sqnr          20 log10(‖y‖ / ‖y − ŷ‖) in dB             loss = 10^(−value / 20)
    cosine        1 − y·ŷ / (‖y‖ ‖ŷ‖)                      loss = √(2 · value), an angle for small ones
    top1          share of inputs whose largest score stays  loss = 1 − value
    module:function   a number from outputs and labels      loss = how much worse than the float model's

The first four are smooth: the noise model is fitted to their loss. The others are steps: the noise model is fitted to
relative L2, and a monotone link leads from there to the loss.
"""

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite, log10, sqrt
from pathlib import Path
from typing import Any

import numpy as np

from taglio.errors import BadData, BadOption

RELATIVE_L2, L2_PER_SIZE, SQNR, COSINE, TOP1 = "relative-l2", "l2-per-size", "sqnr", "cosine", "top1"
SMOOTH = (RELATIVE_L2, L2_PER_SIZE, SQNR, COSINE)
Outputs = Sequence[np.ndarray]


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric by the name under which the user asks for it. `float_value` is the float model's own value of a user's
    function, which its losses are counted from."""

    name: str = RELATIVE_L2
    larger_is_better: bool = False
    float_value: float = 0.0

    @property
    def smooth(self) -> bool:
        """Whether small noise changes the loss a little, so that the noise model can be fitted to the loss itself."""
        return self.name in SMOOTH

    @property
    def basis(self) -> "Metric":
        """What the noise model is fitted to: the metric itself, or relative L2 where it moves in steps."""
        return self if self.smooth else RELATIVE

    @property
    def own(self) -> bool:
        """Whether it is a function of the user's."""
        return ":" in self.name

    def loss(self, value: float) -> float:
        """Loss of a value in the metric's unit."""
        match self.name:
            case "sqnr":
                return float(10.0 ** (-value / 20.0))
            case "cosine":
                return sqrt(2.0 * max(0.0, value))
            case "top1":
                return 1.0 - value
        if self.own:
            return max(0.0, self.float_value - value if self.larger_is_better else value - self.float_value)
        return value

    def value(self, loss: float) -> float:
        """The value in the metric's unit that `loss` stands for."""
        match self.name:
            case "sqnr":
                return -20.0 * log10(loss) if loss > 0.0 else inf
            case "cosine":
                return 0.5 * loss**2
            case "top1":
                return 1.0 - loss
        if self.own:
            return self.float_value - loss if self.larger_is_better else self.float_value + loss
        return loss

    @property
    def title(self) -> str:
        """What it is called before a value."""
        return "error" if self.name == RELATIVE_L2 else self.name

    @property
    def axis(self) -> tuple[str, float]:
        """How losses are drawn, and differences of them said: a title with the unit, and units in a loss of 1."""
        match self.name:
            case "relative-l2":
                return "error, %", 100.0
            case "sqnr":
                return "noise ÷ signal, %", 100.0
            case "cosine":
                return "angle between outputs, rad", 1.0
            case "top1":
                return "answers that change, %", 100.0
        return f"{self.name}, {'worse than float by' if self.own else 'root mean square'}", 1.0

    def text(self, loss: float, digits: int = 4) -> str:
        """`loss` as the user reads it, in the metric's unit; `digits` behind the point of a relative error in %."""
        value = self.value(loss)
        match self.name:
            case "relative-l2":
                return f"{value:.{digits}%}"
            case "sqnr":
                return f"{value:.2f} dB"
            case "top1":
                return f"{value:.2%} agree"
        return f"{value:.5g}"

    def limit(self, loss: float, digits: int = 4) -> str:
        """The bound `loss` as the user reads it: which side of it is allowed is said."""
        return f"at {'least' if self.larger_is_better else 'most'} {self.text(loss, digits)}"

    def difference(self, loss: float) -> str:
        """A difference of two losses of a metric that moves in steps."""
        scale = self.axis[1]
        return f"{loss * scale:.3g}{'%' if scale == 100.0 else ''}"

    def bound(self, value: float) -> float:
        """The largest loss that the bound `value`, in the metric's unit, allows. Raises BadOption for one that even the
        float model breaks, or that no model can break."""
        if not isfinite(value) or (self.name != SQNR and not self.own and value < 0.0):
            raise BadOption(f"--max-error {value}: give a value that {self.name} can have")
        if self.name == TOP1 and value > 1.0:
            raise BadOption(f"--max-error {value}: top1 is a share of inputs that agree: give at most 1, such as 0.99")
        if self.own:
            margin = self.float_value - value if self.larger_is_better else value - self.float_value
            if margin < 0.0:
                raise BadOption(
                    f"--max-error {value}: the float model itself has {self.name} = {self.float_value:.5g}: "
                    f"give a bound that is {'below' if self.larger_is_better else 'above'} that"
                )
        return self.loss(value)


RELATIVE = Metric()


def parse_metric(text: str) -> Metric:
    """The metric called `text`. Raises BadOption for an unknown one or a function that cannot be imported."""
    name = text.strip() or RELATIVE_L2
    if ":" in name:
        function = user_function(name)
        return Metric(name, not getattr(function, "smaller_is_better", False))
    if name not in (*SMOOTH, TOP1):
        raise BadOption(
            f'--metric "{text}" is none of {", ".join((*SMOOTH, TOP1))}: choose one, or a function as module:function'
        )
    return Metric(name, name in (SQNR, TOP1))


def user_function(name: str) -> Callable[[Mapping[str, np.ndarray], Any], Any]:
    """The function behind `module:function`; modules are also looked for in the current folder. Raises BadOption."""
    module, _, attribute = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # a user's module may raise anything while it is imported
        reason = " ".join(str(error).split())[:200]
        raise BadOption(f"--metric {name}: cannot be imported ({type(error).__name__}: {reason})") from None
    if not callable(found):
        raise BadOption(f"--metric {name}: is a {type(found).__name__}, not a function")
    return found  # type: ignore[no-any-return]


def source_of(name: str) -> str:
    """Which file the user's function was imported from; modules of the current folder come last."""
    function = user_function(name)
    return str(getattr(sys.modules.get(name.partition(":")[0]), "__file__", None) or f"{function!r}")


def call_user(name: str, outputs: Mapping[str, np.ndarray], labels: np.ndarray | None) -> float:
    """The user's number for `outputs` [samples, ...] by name. Raises BadData where it raises or returns no number."""
    try:
        result = user_function(name)(outputs, labels)
    except BadOption:
        raise
    except Exception as error:  # a user's function may raise anything
        reason = " ".join(str(error).split())[:200]
        raise BadData(f"--metric {name}: raised {type(error).__name__}: {reason}") from None
    try:
        value = float(result)
    except (TypeError, ValueError):
        raise BadData(f"--metric {name}: returned {type(result).__name__} {str(result)[:60]!r}, not a number") from None
    if not isfinite(value):
        raise BadData(f"--metric {name}: returned {value}: it must be finite for every model that is tried")
    return value


class Tally:
    """Losses of one set of changed outputs against the reference, sample by sample.

    Only sums are kept, but for a user's function, which sees all outputs at once.
    """

    def __init__(self, names: Sequence[str], metric: Metric | None = None) -> None:
        """`names` of the outputs; `metric` is relative L2 where None."""
        self._metric = metric or RELATIVE
        self._names = tuple(names)
        count = len(self._names)
        self._difference, self._reference, self._along = (np.zeros(count) for _ in range(3))
        self._sizes = np.zeros(count)
        self._samples = 0
        self._agree = self._rows = 0
        self._kept: list[list[np.ndarray]] = []

    def add(self, reference: Outputs, changed: Outputs) -> list[np.ndarray]:
        """Count one sample; the differences ŷ − y, flat, per output."""
        differences = []
        self._samples += 1
        for index, (y, z) in enumerate(zip(reference, changed, strict=True)):
            # Integer outputs (class indices) count as numbers; float64 sums keep small differences.
            a, b = np.asarray(y, np.float32).ravel(), np.asarray(z, np.float32).ravel()
            difference = b - a
            differences.append(difference)
            self._difference[index] += float(np.dot(difference, difference))
            self._reference[index] += float(np.dot(a, a))
            if self._metric.name == COSINE:
                self._along[index] += float(np.dot(a, difference))
            self._sizes[index] = a.size
        if self._metric.name == TOP1:
            rows, agree = _agreement(self._names[0], reference[0], changed[0])
            self._rows, self._agree = self._rows + rows, self._agree + agree
        if self._metric.own:
            self._kept.append([np.asarray(z) for z in changed])
        return differences

    def l2(self) -> np.ndarray:
        """Relative L2 error per output, or what the noise model is fitted to: l2-per-size where that is the metric.

        Raises BadData for an output that is NaN, or zero on all samples while the changed one is not.
        """
        result = np.zeros(len(self._names))
        for index, name in enumerate(self._names):
            difference, reference = self._difference[index], self._reference[index]
            if not isfinite(reference):
                raise BadData(f"output {name} of the float model is NaN or infinite on the data: check preprocessing")
            if self._metric.name == L2_PER_SIZE:
                value = sqrt(difference / self._samples) / self._sizes[index] if isfinite(difference) else inf
            elif reference == 0.0:
                if difference != 0.0:  # NaN too
                    raise BadData(
                        f"output {name} of the float model is zero on all samples: its relative error is undefined"
                    )
                value = 0.0
            else:
                value = sqrt(difference / reference) if isfinite(difference) else inf
            result[index] = value
        return result

    def squares(self) -> np.ndarray:
        """‖ŷ − y‖² per output."""
        return self._difference

    def references(self) -> np.ndarray:
        """‖y‖² per output."""
        return self._reference

    def losses(self, labels: np.ndarray | None = None) -> np.ndarray:
        """Loss per output; of a metric that looks at all outputs together, the same for each."""
        name = self._metric.name
        if name == COSINE:
            return np.array([self._angle(index, l2) for index, l2 in enumerate(self.l2())])
        if name == TOP1:
            return np.full(len(self._names), 1.0 - self._agree / max(1, self._rows))
        if self._metric.own:
            value = call_user(name, self.outputs(), labels)
            return np.full(len(self._names), self._metric.loss(value))
        return self.l2()

    def _angle(self, output: int, l2: float) -> float:
        """√(2 · cosine distance), from y · (ŷ − y) and ‖ŷ − y‖: 1 − cos of the sums themselves loses small angles."""
        if not isfinite(l2):
            return 2.0
        y, along, square = sqrt(self._reference[output]), self._along[output], self._difference[output]
        longer = 2.0 * along + square  # ‖ŷ‖² − ‖y‖²
        z = sqrt(max(0.0, y * y + longer))
        if y == 0.0 or z == 0.0:
            return 0.0 if square == 0.0 else sqrt(2.0)
        return sqrt(max(0.0, square - (longer / (y + z)) ** 2) / (y * z))

    def value(self, labels: np.ndarray | None = None) -> float:
        """The largest loss over outputs."""
        return float(self.losses(labels).max())

    def outputs(self) -> dict[str, np.ndarray]:
        """The changed outputs of all samples, stacked along the first axis (kept for a user's function alone)."""
        return {
            name: np.concatenate([np.atleast_1d(sample[index]) for sample in self._kept])
            for index, name in enumerate(self._names)
        }


def _agreement(name: str, reference: np.ndarray, changed: np.ndarray) -> tuple[int, int]:
    """Rows of class scores, and how many of them have their largest score at the same class."""
    y, z = np.asarray(reference), np.asarray(changed)
    if y.ndim != 2 or y.shape[1] < 2:
        raise BadData(
            f"--metric top1: output {name} has shape {list(y.shape)}, not [inputs, classes]: "
            "use relative-l2, or a function of your own"
        )
    return y.shape[0], int((y.argmax(axis=1) == z.argmax(axis=1)).sum())
