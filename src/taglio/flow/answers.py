"""What built models answer on the held-out inputs: error and accuracy of the very files that would be deployed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx

from taglio import artifact
from taglio.error.loss import Metric, Outputs, Tally
from taglio.errors import BadData
from taglio.flow.workspace import Work
from taglio.profile.measure import FLOAT_RUN
from taglio.runtimes.onnxruntime import NAME, open_session, run_session
from taglio.runtimes.session import Session, opener
from taglio.scratch import scratch


@dataclass(frozen=True, slots=True)
class Answers:
    """`error` is the loss against the float model; `accuracy` top-1, None without labels that fit."""

    error: float
    accuracy: float | None


def answers(work: Work, models: Mapping[str, Callable[[], onnx.ModelProto]], metric: Metric) -> dict[str, Answers]:
    """Answers of each of `models`, and of the float model as FLOAT_RUN, on all held-out inputs.

    The reference is the float model in ONNX Runtime; what is judged runs in the runtime of the set-up, with its options
    and one input at a time, as it will be deployed. `metric` is of a meter: a user's has the float model's value.
    Raises BadData for inputs that a model cannot run on.
    """
    options, names = work.setup.options(), list(work.model.outputs)
    samples, labels = work.data.held_out.samples, work.data.held_out.labels
    original = work.model.proto
    reference = open_session(original, options, label=work.model.name)
    tallies = {name: Tally(names, metric) for name in (FLOAT_RUN, *models)}
    hits = {name: _Hits(labels) for name in tallies}
    with scratch() as folder:
        sessions: dict[str, Session] = {}
        elsewhere = {FLOAT_RUN: lambda: original} if options.runtime != NAME else {}
        for index, (name, build) in enumerate({**elsewhere, **models}.items()):
            path = folder / f"{index}.onnx"
            artifact.write_bytes(path, build().SerializeToString())
            sessions[name] = opener(options.runtime)(path, options)
        for index, sample in enumerate(samples):
            wanted = run_session(reference, names, sample, work.setup.data)
            for name, tally in tallies.items():
                found = _run(sessions[name], names, sample, name) if name in sessions else wanted
                tally.add(wanted, found)
                hits[name].add(index, found)
    return {name: Answers(tally.value(labels), hits[name].share()) for name, tally in tallies.items()}


def _run(session: Session, names: list[str], sample: Mapping[str, np.ndarray], label: str) -> list[np.ndarray]:
    try:
        return session.run(names, dict(sample))
    except Exception as error:  # the runtimes' exceptions share no useful base class
        raise BadData(f"{label}: cannot run the held-out inputs: {' '.join(str(error).split())[:300]}") from None


class _Hits:
    """Counts samples whose first output is largest at the label."""

    def __init__(self, labels: np.ndarray | None) -> None:
        self._labels = labels if labels is not None and labels.ndim == 1 else None
        self._hits = 0

    def add(self, index: int, outputs: Outputs) -> None:
        scores = np.asarray(outputs[0])
        if self._labels is None or scores.ndim != 2 or scores.shape[0] != 1:
            self._labels = None
            return
        self._hits += int(scores[0].argmax()) == int(self._labels[index])

    def share(self) -> float | None:
        return None if self._labels is None else self._hits / len(self._labels)
