"""Race models side by side, and measure the errors of the same sessions. Chooses nothing."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import onnx

from taglio import weights
from taglio.data.dataset import Sample
from taglio.error.loss import Metric
from taglio.error.tally import Outputs, Reference
from taglio.errors import BadData, TaglioError, one_line
from taglio.flow.work import Work
from taglio.memory import make_room
from taglio.profile.stopwatch import Effort, Timed
from taglio.runtimes.onnxruntime import SessionOptions
from taglio.runtimes.session import Session, why_failed
from taglio.scratch import scratch

_MOST_ROUNDS = 400
# The error of an open model. Raises BadData for inputs that it cannot run.
ErrorOf = Callable[[Session], float]


@dataclass(frozen=True, slots=True, eq=False)
class RaceResult:
    """What was measured of one model: times, and its error if it was judged. Without times, `refused` says why."""

    timed: Timed | None = None
    error: float | None = None
    refused: str = ""


def race(
    work: Work,
    models: Mapping[str, Callable[[], onnx.ModelProto]],
    seconds: float,
    *,
    kernels: bool = True,
    places: Mapping[str, str] | None = None,
    error_of: ErrorOf | None = None,
    judged: Collection[str] = (),
) -> dict[str, RaceResult]:
    """Time `models` in interleaved rounds of about `seconds` in all, and their `kernels`.

    With `places` they are opened there from files, and no kernels are timed. `error_of` measures the errors of those
    `judged` as they are opened. A model that does not run is refused. Raises BadData if the first model does not run,
    and MeasurementFailed if another fails while it is timed.
    """
    errors: dict[str, float] = {}
    refused: dict[str, str] = {}

    def opened_in_race(name: str, session: Session) -> None:
        if error_of is not None and name in judged:
            errors[name] = error_of(session)

    options = {} if places is None else {name: work.setup.options(place) for name, place in places.items()}
    timed = work.lab.time(
        models,
        work.timed,
        work.setup.options(),
        Effort(maximum=_MOST_ROUNDS, budget_s=seconds),
        kernels=kernels and places is None,
        progress=work.progress,
        limit_bytes=work.memory_bytes,
        places=options or None,
        refused=refused,
        once_s=work.setup.run_s,
        opened=opened_in_race,
    )
    first = next(iter(models))
    if first in refused:
        raise BadData(f"{work.name}: {refused[first]}")
    if error_of is not None:
        for name in (timed.keys() - errors.keys()) & {*judged}:  # slow models are timed once, with their kernels
            try:
                with opened(work, models[name](), options.get(name, work.setup.options())) as session:
                    errors[name] = error_of(session)
            except TaglioError:
                continue
    refused |= {name: "it was not timed" for name in models if name not in timed and name not in refused}
    return {name: RaceResult(timed.get(name), errors.get(name), refused.get(name, "")) for name in models}


@contextmanager
def opened(work: Work, proto: onnx.ModelProto, options: SessionOptions) -> Iterator[Session]:
    """A session of one model, from a file as it is deployed. Raises BadModel if the runtime rejects it."""
    make_room(work.memory_bytes)
    with scratch() as folder:
        path = folder / "model.onnx"
        weights.write(path, proto)
        yield work.lab.open(path, options)


def answer(work: Work, session: Session, sample: Sample, label: str = "") -> Outputs:
    """The outputs of a model for a held-out input. Raises BadData if it cannot run it."""
    try:
        return session.run([*work.outputs], dict(sample))
    except TaglioError:
        raise
    except Exception as error:  # the runtimes' exceptions have no useful common base class
        raise BadData(f"{label}cannot run the held-out inputs: {why_failed(error)}") from None


def loss_beside(work: Work, reference: Reference, metric: Metric) -> ErrorOf:
    """What measures a model's loss of `metric` beside a reference."""
    return lambda session: reference.loss(metric, lambda sample: answer(work, session, sample))


def reason(error: BaseException) -> str:
    """Why something was left out, in one line."""
    return one_line(error, 200)
