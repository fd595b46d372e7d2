"""Race models side by side, and measure the errors of the same sessions. Chooses nothing."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import onnx

from taglio import weights
from taglio.data.dataset import Sample
from taglio.error.loss import Metric
from taglio.error.tally import Outputs, Reference
from taglio.errors import BadData, TaglioError
from taglio.lab.work import Work
from taglio.memory import make_room
from taglio.profile.stopwatch import Loss, Timings
from taglio.runtimes.onnxruntime import SessionOptions
from taglio.runtimes.session import Session, why_failed
from taglio.scratch import scratch

_MOST_ROUNDS = 400


def race(
    work: Work,
    models: Mapping[str, Callable[[], onnx.ModelProto]],
    seconds: float,
    *,
    kernels: bool = True,
    places: Mapping[str, str] | None = None,
    loss: Loss | None = None,
) -> Timings:
    """Time `models` in interleaved rounds of about `seconds` in all, and their `kernels`.

    With `places` they are opened there from files, and no kernels are timed. `loss` measures the error of each
    as it is opened. A model that does not run is refused. Raises BadData if the first model does not run, and
    MeasurementFailed if another fails while it is timed.
    """
    timings = work.stopwatch.time(
        models,
        replace(work.within(seconds), maximum=_MOST_ROUNDS),
        kernels=kernels and places is None,
        places={name: work.setup.options(place) for name, place in (places or {}).items()},
        loss=loss,
    )
    first = next(iter(models))
    if first in timings.refused:
        raise BadData(f"{work.name}: {timings.refused[first]}")
    return timings


@contextmanager
def opened(work: Work, proto: onnx.ModelProto, options: SessionOptions) -> Iterator[Session]:
    """A session of one model, from a file as it is deployed. Raises BadModel if the runtime rejects it."""
    make_room(work.memory_bytes)
    with scratch() as folder:
        path = folder / "model.onnx"
        weights.write(path, proto)
        yield work.lab.open(path, options)


def answer(work: Work, session: Session, sample: Sample) -> Outputs:
    """The outputs of a model for a held-out input. Raises BadData if it cannot run it."""
    try:
        return session.run([*work.outputs], dict(sample))
    except TaglioError:
        raise
    except Exception as error:  # the runtimes' exceptions have no useful common base class
        raise BadData(f"cannot run the held-out inputs: {why_failed(error)}") from None


def loss_beside(work: Work, reference: Reference, metric: Metric) -> Loss:
    """A function that measures a model's loss of `metric` against a reference."""
    return lambda session: reference.loss(metric, lambda sample: answer(work, session, sample))
