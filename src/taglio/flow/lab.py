"""Race models side by side, and measure the errors of the same sessions. Chooses nothing."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import onnx

from taglio.error.loss import Metric
from taglio.error.tally import Reference
from taglio.errors import BadData, TaglioError, one_line
from taglio.flow.work import Work
from taglio.profile.stopwatch import Timed
from taglio.runtimes.session import Session, why_failed

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
    measured as the sessions are opened. A model that does not run is refused. Raises BadData if the first one does not
    run.
    """

    def loss(_: str, session: Session) -> float | None:
        return None if judging is None else judging.error(work, session)

    effort = replace(work.within(seconds), maximum=_MOST_ROUNDS)
    timings = work.time(models, effort, kernels=places is None, places=places, loss=loss)
    first = next(iter(models))
    if first in timings.refused:
        raise BadData(f"{work.name}: {timings.refused[first]}")
    raced = {name: Raced(timed, timed.loss) for name, timed in timings.timed.items()}
    raced |= {name: Raced(refused=reason) for name, reason in timings.refused.items()}
    return {name: raced[name] for name in models}


def reason(error: BaseException) -> str:
    """Why something was left out, in one line."""
    return one_line(error, 200)
