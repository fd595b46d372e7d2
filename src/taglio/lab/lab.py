"""The lab: all that a search opens and times, as one value. Chooses nothing."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from taglio.confirm.bench import Bench
from taglio.data.dataset import Sample
from taglio.error.switchable import Switchable
from taglio.profile.stopwatch import Stopwatch
from taglio.runtimes.onnxruntime import SessionOptions
from taglio.runtimes.session import Session, opener


def _open(path: Path, options: SessionOptions) -> Session:
    return opener(options.runtime)(path, options)


@dataclass(frozen=True, slots=True)
class Lab:
    """What a search measures with; the default is this machine. Tests give a simulated one.

    `stopwatch` times models side by side, with their kernels. `switchable` opens the graph whose blocks can be switched
    to each form, and `open` a model as it is deployed. `openings` starts the process that opens and runs delivered
    folders on some inputs.
    """

    stopwatch: Callable[..., Stopwatch] = Stopwatch
    switchable: Callable[..., Switchable] = Switchable
    open: Callable[[Path, SessionOptions], Session] = _open
    openings: Callable[[Sequence[Sample]], AbstractContextManager[Bench]] = Bench


THIS_MACHINE = Lab()
