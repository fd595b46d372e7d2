"""Metrics: their units, directions, and conversion to the loss that a limit is on. Runs no model.

A loss is 0 for the float model and grows as outputs change; planning, searching and fitting use only losses. A metric
converts values in its own unit to losses and back:

    relative-l2   ‖y − ŷ‖ / ‖y‖                            loss = value
    sqnr          20 log10(‖y‖ / ‖y − ŷ‖) in dB             loss = 10^(−value / 20)
    cosine        1 − y·ŷ / (‖y‖ ‖ŷ‖)                      loss = √(2 · value), an angle for small ones
    top1, ctc, …  how well a task is done (tasks/)          loss = how much worse than the float model
    module:function   a number from outputs and labels      loss = how much worse than the float model

The first three are smooth: the noise model is fitted to their loss. The others move in steps: the noise model is fitted
to relative L2, and a monotone link leads from there to the loss. A task without labels compares with the float model's
own answers, so the float model's value is 1. For perplexity, which has no upper limit, the loss is relative.
"""

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf, isfinite, isnan, log10, sqrt
from pathlib import Path
from typing import Any, Literal

import numpy as np

from taglio.error.tasks.task import TASKS, TOP1, Task, names_task, parse_task, task_text
from taglio.errors import BadData, BadOption, with_kind

RELATIVE_L2, SQNR, COSINE = "relative-l2", "sqnr", "cosine"
SMOOTH = (RELATIVE_L2, SQNR, COSINE)
# What limits a metric: the worst value where smaller is better, the worst where larger is, or the largest loss.
Argument = Literal["max_error", "min_score", "max_drop"]
ARGUMENTS: tuple[Argument, ...] = ("max_error", "min_score", "max_drop")
# A limit beyond this is most likely meant for the other argument: 99 % is a score, and 1 % is a drop.
_LARGEST_DROP = 0.5


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric by the name that the user gives. Losses of a user's function, or of a task scored against labels
    (`labelled`), are relative to `float_value`, the float model's own value. `worst_input` takes the largest loss of a
    single input instead of that of all inputs together."""

    name: str = RELATIVE_L2
    larger_is_better: bool = False
    float_value: float = 0.0
    labelled: bool = False
    worst_input: bool = False

    @property
    def smooth(self) -> bool:
        """Whether small noise changes the loss a little, so that the noise model can be fitted to the loss itself."""
        return self.name in SMOOTH

    @property
    def basis(self) -> "Metric":
        """The metric that the noise model is fitted to: itself if smooth, else relative L2."""
        return self if self.smooth else RELATIVE

    @property
    def own(self) -> bool:
        """Whether it is a user's function."""
        return ":" in self.name and not names_task(self.name)

    @property
    def task(self) -> Task:
        """The task that it scores, if it is neither smooth nor a user's function."""
        return parse_task(self.name)

    @property
    def _float(self) -> float:
        return self.float_value if self.own or self.labelled else 1.0

    @property
    def _relative(self) -> bool:
        return not self.larger_is_better and not self.smooth and not self.own

    def loss(self, value: float) -> float:
        """Loss of a value in the metric's unit."""
        match self.name:
            case "relative-l2":
                return value
            case "sqnr":
                return float(10.0 ** (-value / 20.0))
            case "cosine":
                return sqrt(2.0 * max(0.0, value))
        if isnan(value):
            return inf
        worse = self._float - value if self.larger_is_better else value - self._float
        return max(0.0, worse / self._float if self._relative else worse)

    def value(self, loss: float) -> float:
        """The value in the metric's unit that corresponds to `loss`."""
        match self.name:
            case "relative-l2":
                return loss
            case "sqnr":
                return -20.0 * log10(loss) if loss > 0.0 else inf
            case "cosine":
                return 0.5 * loss**2
        if self._relative:
            return self._float * (1.0 + loss)
        return self._float - loss if self.larger_is_better else self._float + loss

    @property
    def title(self) -> str:
        """The label in front of a loss."""
        title = "error" if self.name == RELATIVE_L2 else f"{self.name} loss" if self.labelled else self.name
        return f"{title} of the worst input" if self.worst_input else title

    @property
    def by_input(self) -> bool:
        """Whether it has a value for one input alone, of which the value of all inputs is a mean."""
        return self.smooth or (not self.own and not self.labelled and self.task.by_input)

    @property
    def axis(self) -> tuple[str, float]:
        """For charts and differences of losses: a title with the unit, and the number of units in a loss of 1."""
        match self.name:
            case "relative-l2":
                return "error, %", 100.0
            case "sqnr":
                return "noise ÷ signal, %", 100.0
            case "cosine":
                return "angle between outputs, rad", 1.0
        if self.own:
            return f"{self.name}, worse than float by", 1.0
        return "answers that change, %" if self.name == TOP1 else f"{self.name}, worse than float by, %", 100.0

    def text(self, loss: float, digits: int = 4) -> str:
        """`loss` as text in the metric's unit; relative error in % has `digits` decimals. With labels the text is the
        loss itself, how much worse than the float model the task is done."""
        value = self.value(loss)
        if self.labelled:
            return f"{loss:.2%}"
        if self.name == RELATIVE_L2:
            return f"{value:.{digits}%}"
        if self.name == SQNR:
            return f"{value:.2f} dB"
        return f"{value:.5g}" if self.smooth or self.own else f"{value:.2%} agree"

    def limit(self, loss: float, digits: int = 4) -> str:
        """The limit `loss` as text, "at most" or "at least" a value."""
        least = self.larger_is_better and not self.labelled
        return f"at {'least' if least else 'most'} {self.text(loss, digits)}"

    def difference(self, loss: float) -> str:
        """A difference of two losses, as text, of a metric that moves in steps."""
        scale = self.axis[1]
        return f"{loss * scale:.3g}{'%' if scale == 100.0 else ''}"

    def score_text(self, value: float) -> str:
        """A value of a task scored against labels, as text."""
        return f"{value:.5g}" if self._relative else f"{value:.2%}"

    @property
    def argument(self) -> Argument:
        """The argument that limits the number in `text`."""
        return "max_drop" if self.labelled else "min_score" if self.larger_is_better else "max_error"

    def suits(self, argument: Argument, value: float) -> None:
        """Raises BadOption for an argument that does not limit this metric, or a value that it cannot have.

        `max_error` is the worst value of a metric of which smaller is better, `min_score` the worst of one of which
        larger is better, and `max_drop` how much worse than the float model a task or a function may be.
        """
        if not isfinite(value) or (value < 0.0 and not self.own and self.name != SQNR):
            raise BadOption(f"`{argument}` is {value}: give a finite number of at least 0")
        match argument:
            case "max_error":
                self._refuse_error(value)
            case "min_score":
                self._refuse_score(value)
            case "max_drop":
                self._refuse_drop(value)

    def bound(self, argument: Argument, value: float) -> float:
        """The largest loss that a limit allows, which is in the unit of its argument. Raises BadOption for a limit that
        does not suit the metric, or that even the float model breaks."""
        self.suits(argument, value)
        if argument == "max_drop":
            return value
        if self.smooth:
            return self.loss(value)
        margin = self._float - value if self.larger_is_better else value - self._float
        if margin < 0.0:
            below = "below" if self.larger_is_better else "above"
            raise BadOption(
                f"`{argument}` {value:g}: the float model itself has {self.name} = {self._float:.5g}: give a bound "
                f"that is {below} that, or `max_drop` for how much worse it may be"
            )
        if argument == "min_score" and not self.own and value < 0.5 * self._float:
            raise BadOption(
                f"`min_score` {value:g}: the float model itself has {self.name} = {self._float:.5g}, more than twice "
                f"that: give `max_drop` {value:g} if it is how much worse the plan may be"
            )
        return self.loss(value)

    def _refuse_error(self, value: float) -> None:
        if self.larger_is_better:
            raise BadOption(f"`max_error` {value:g}: {self.name} is a score, not an error: give {self._instead(value)}")
        if self.name == RELATIVE_L2 and value > 1.0:
            raise BadOption(f"`max_error` is {value:g}, which is {value:.0%}: for {value:g} % give {value / 100:g}")
        # Vectors at a larger distance have an angle of more than 60 degrees: most likely a similarity is meant.
        if self.name == COSINE and value > 0.5:
            raise BadOption(
                f"`max_error` {value:g}: cosine is the distance 1 - similarity: for a similarity of at least "
                f"{value:g} give {max(0.0, 1.0 - value):.6g}"
            )

    def _refuse_score(self, value: float) -> None:
        if not self.larger_is_better:
            other = f" {max(0.0, 1.0 - value):.6g}" if self.name == COSINE else ""
            raise BadOption(
                f"`min_score` {value:g}: {self.name} is an error (smaller is better): give `max_error`{other}"
            )
        if self.name != SQNR and not self.own and value > 1.0:
            raise BadOption(f"`min_score` {value:g}: {self.name} is at most 1: for {value:g} % give {value / 100:g}")

    def _refuse_drop(self, value: float) -> None:
        if value < 0.0:
            raise BadOption(f"`max_drop` is {value}: give a finite number of at least 0")
        if self.smooth:
            other = "`min_score` in dB" if self.name == SQNR else f"`max_error` {value:g}"
            raise BadOption(f"`max_drop` {value:g}: {self.name} is itself a difference from float: give {other}")
        if not self.own and value > _LARGEST_DROP:
            other = "min_score" if self.larger_is_better else "max_error"
            raise BadOption(
                f"`max_drop` {value:g}: {self.name} would lose more than half: give how much worse than float it may "
                f"be, such as 0.01, or `{other}` {value:g} for the worst value"
            )

    def _instead(self, value: float) -> str:
        """The arguments to give instead of `max_error` for a score."""
        if self.name == SQNR:
            return f"`min_score` {value:g} for the least decibels"
        if self.own:
            return f"`min_score` {value:g} for the worst value, or `max_drop` for how much worse than float it may be"
        if value <= _LARGEST_DROP:
            return f"`max_drop` {value:g} for how much worse than float it may be, or `min_score` for the worst score"
        return f"`min_score` {value:g} for the worst score, or `max_drop` for how much worse than float it may be"


@dataclass(frozen=True, slots=True)
class Bound:
    """A limit on a further metric: as a loss, or still as the user gave it."""

    metric: Metric
    max_error: float

    def share(self, loss: float) -> float:
        """`loss` as a share of the limit: more than 1 breaks it."""
        if self.max_error > 0.0:
            return loss / self.max_error
        return inf if loss > 0.0 else 0.0


RELATIVE = Metric()


def parse_metric(text: str) -> Metric:
    """The metric that `text` names: a name, a task with parameters such as detection:iou=0.5, or module:function.
    Raises BadOption for an unknown name or a function that cannot be imported."""
    name = text.strip() or RELATIVE_L2
    if name in SMOOTH:
        return Metric(name, name == SQNR)
    if names_task(name):
        task = parse_task(name)
        return Metric(task_text(task), task.larger_is_better)
    if ":" in name:
        function = user_function(name)
        return Metric(name, not getattr(function, "smaller_is_better", False))
    raise BadOption(
        f'`metric` "{text}" is not one of {", ".join((*SMOOTH, *TASKS))}: choose one, or a function as module:function'
    )


def user_function(name: str) -> Callable[[Mapping[str, np.ndarray], Any], Any]:
    """The function `module:function`; modules in the current folder are imported too. Raises BadOption."""
    module, _, attribute = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        function = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # a user's module may raise anything while it is imported
        raise BadOption(f"`metric` {name}: cannot be imported ({with_kind(error)})") from None
    if not callable(function):
        raise BadOption(f"`metric` {name}: has the type {type(function).__name__}: give a function")
    return function  # type: ignore[no-any-return]


def source_of(name: str) -> str:
    """The file that the user's function was imported from."""
    function = user_function(name)
    return str(getattr(sys.modules.get(name.partition(":")[0]), "__file__", None) or f"{function!r}")


def call_user(name: str, outputs: Mapping[str, np.ndarray], labels: np.ndarray | None) -> float:
    """The result of the user's function for `outputs` [samples, ...] by name. Raises BadData if the function raises or
    returns anything but a finite number."""
    try:
        returned = user_function(name)(outputs, labels)
    except BadOption:
        raise
    except Exception as error:  # a user's function may raise anything
        raise BadData(f"`metric` {name}: raised {with_kind(error)}") from None
    try:
        value = float(returned)
    except (TypeError, ValueError):
        kind = type(returned).__name__
        raise BadData(f"`metric` {name}: returned {kind} {str(returned)[:60]!r}, not a number") from None
    if not isfinite(value):
        raise BadData(f"`metric` {name}: returned {value}: it must be finite for every model")
    return value
