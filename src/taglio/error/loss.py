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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf, isfinite, log10, sqrt
from pathlib import Path
from typing import Any

import numpy as np

from taglio.errors import BadData, BadOption

RELATIVE_L2, L2_PER_SIZE, SQNR, COSINE, TOP1 = "relative-l2", "l2-per-size", "sqnr", "cosine", "top1"
SMOOTH = (RELATIVE_L2, L2_PER_SIZE, SQNR, COSINE)


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
            raise BadOption(f"`max_error` {value}: give a value that {self.name} can have")
        if self.name == TOP1 and value > 1.0:
            raise BadOption(f"`max_error` {value}: top1 is a share of inputs that agree: give at most 1, such as 0.99")
        if self.own:
            margin = self.float_value - value if self.larger_is_better else value - self.float_value
            if margin < 0.0:
                raise BadOption(
                    f"`max_error` {value}: the float model itself has {self.name} = {self.float_value:.5g}: "
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
            f'`metric` "{text}" is none of {", ".join((*SMOOTH, TOP1))}: choose one, or a function as module:function'
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
        raise BadOption(f"`metric` {name}: cannot be imported ({type(error).__name__}: {reason})") from None
    if not callable(found):
        raise BadOption(f"`metric` {name}: is a {type(found).__name__}, not a function")
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
        raise BadData(f"`metric` {name}: raised {type(error).__name__}: {reason}") from None
    try:
        value = float(result)
    except (TypeError, ValueError):
        raise BadData(f"`metric` {name}: returned {type(result).__name__} {str(result)[:60]!r}, not a number") from None
    if not isfinite(value):
        raise BadData(f"`metric` {name}: returned {value}: it must be finite for every model that is tried")
    return value
