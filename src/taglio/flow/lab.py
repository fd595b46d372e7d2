"""Race models side by side, and measure the errors of the same sessions. Chooses nothing."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import onnx

from taglio import weights
from taglio.error.loss import Metric
from taglio.error.tally import Reference
from taglio.errors import BadData, TaglioError, one_line
from taglio.flow.work import Work
from taglio.memory import make_room
from taglio.profile.stopwatch import Effort, Timed
from taglio.runtimes.onnxruntime import SessionOptions
from taglio.runtimes.session import Session, opener, why_failed
from taglio.scratch import scratch

_MOST_ROUNDS = 400


@dataclass(frozen=True, slots=True, eq=False)
class Raced:
    """What was measured of one model: times, and the loss on the inputs of the race's reference. None and the reason
    in `refused` if it does not run."""

    timed: Timed | None = None
    error: float | None = None
    refused: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Judging:
    """The inputs and answers that errors are measured beside, and the metric."""

    reference: Reference
    metric: Metric

    def error(self, work: Work, session: Session) -> float:
        """The loss of a session's answers. Raises BadData for inputs that it cannot run."""
        try:
            return float(self.reference.loss(self.metric, partial(session.run, [*work.outputs])))
        except TaglioError:
            raise
        except Exception as error:  # the runtimes' exceptions have no useful common base class
            raise BadData(f"cannot run the held-out inputs: {why_failed(error)}") from None


def race(
    work: Work,
    models: Mapping[str, Callable[[], onnx.ModelProto]],
    seconds: float,
    *,
    places: Mapping[str, str] | None = None,
    judging: Judging | None = None,
) -> dict[str, Raced]:
    """Time `models` in interleaved rounds of about `seconds` in all, each in its place of `places`.

    Without `places` all run in the place of `work`, and their kernels are timed too. With `judging`, errors are
    measured as the sessions are opened. A model that does not run is refused. Raises BadModel or MeasurementFailed if
    the first model does not run.
    """
    errors: dict[str, float] = {}
    refused: dict[str, str] = {}

    def judge(name: str, session: Session) -> None:
        if judging is not None:
            errors[name] = judging.error(work, session)

    effort = Effort(maximum=_MOST_ROUNDS, budget_s=seconds)
    timed = work.time(models, effort, kernels=places is None, places=places, refused=refused, opened=judge)
    first = next(iter(models))
    if first in refused:
        raise BadData(f"{work.name}: {refused[first]}")
    if judging is not None:
        for name in timed.keys() - errors.keys():  # slow models are timed once, with their kernels
            there = work.setup.options(places[name] if places else "")
            if (error := error_of(work, models[name], there, judging)) is not None:
                errors[name] = error
    return {
        name: Raced(timed.get(name), errors.get(name), refused.get(name, "" if name in timed else "it was not timed"))
        for name in models
    }


def error_of(
    work: Work, build: Callable[[], onnx.ModelProto], options: SessionOptions, judging: Judging
) -> float | None:
    """The error of one model, in a session of its own; None if it does not run."""
    make_room(work.memory_bytes)
    with scratch() as folder:
        path = folder / "model.onnx"
        weights.write(path, build())
        try:
            return judging.error(work, opener(options.runtime)(path, options))
        except TaglioError:
            return None


def reason(error: BaseException) -> str:
    """Why something was left out, in one line."""
    return one_line(error, 200)
