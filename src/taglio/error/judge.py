"""Metrics that need more than sums per sample: a task (tasks/), or a user's function. Runs no model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, Protocol

import numpy as np

from taglio.data.dataset import one_array
from taglio.error.compared import as_array
from taglio.error.loss import Metric, call_user
from taglio.error.tasks.outputs import Setting, image_size, inputs_in, one_by_one
from taglio.error.tasks.task import Task
from taglio.errors import BadData
from taglio.notes import Note


class Judge(Protocol):
    """Scores the outputs of all samples."""

    def evidence(self, index: int, reference: Sequence[Any], changed: Sequence[Any], /) -> Any:
        """What `value` needs to keep of one sample."""

    def value(self, evidence: Sequence[Any], /) -> float:
        """The score, in the metric's unit."""


class TaskJudge:
    """Scores a task against the labels if there are any, else against the float model's own answers."""

    def __init__(
        self,
        task: Task,
        names: Sequence[str],
        samples: Sequence[Mapping[str, np.ndarray]] = (),
        labels: np.ndarray | None = None,
        metadata: Mapping[str, str] | None = None,
        where: Sequence[str] = (),
    ) -> None:
        """`names` are the names of the outputs, `where` those of the samples. Raises BadData for labels that the task
        cannot use, or if it needs labels and there are none."""
        if task.needs_labels and labels is None:
            raise BadData(f"metric {task.name} needs labels: save them under the key label, or give `labels`")
        self._task, self._names, self._where = task, tuple(names), dict(enumerate(where))
        self.labelled = labels is not None and task.label is not None
        self._plain = Setting(task.parameters, self.labelled, None, metadata or {})
        self._settings = {i: replace(self._plain, image=image_size(sample)) for i, sample in enumerate(samples)}
        tensors = [
            value for value in (samples[0] if samples else {}).values() if value.dtype.kind == "f" and value.size
        ]
        low = min((tensor.min() for tensor in tensors), default=0.0)
        high = max((tensor.max() for tensor in tensors), default=0.0)
        self._range = f" (the first input's values go from {low:.3g} to {high:.3g})" if tensors else ""
        # How many inputs a sample holds that are read one by one, if not 1.
        self._inputs = {i: inputs_in(sample) for i, sample in enumerate(samples) if task.one_by_one}
        self._truths: dict[int, Sequence[Any]] = {}
        if labels is not None and task.label is not None:
            for index, label in enumerate(labels):
                try:
                    self._truths[index] = self._read_label(index, np.asarray(label), task.label)
                except BadData as error:
                    raise BadData(
                        f"metric {task.name}: the label of sample {self._where.get(index, index)} {error}"
                    ) from None

    def evidence(self, index: int, reference: Sequence[Any], changed: Sequence[Any]) -> Any:
        """What the task keeps of each input of one sample. Raises BadData for outputs that the task cannot read."""
        setting, count = self._settings.get(index, self._plain), self._inputs.get(index, 1)

        def read(outputs: Sequence[Any]) -> list[Any]:
            named = {name: as_array(value) for name, value in zip(self._names, outputs, strict=True)}
            return [self._task.read(of_input, setting) for of_input in one_by_one(named, count)]

        try:
            if index not in self._truths:
                self._truths[index] = read(reference)
            pairs = zip(read(changed), self._truths[index], strict=True)
            return [self._task.match(answer, truth, setting) for answer, truth in pairs]
        except BadData as error:
            raise BadData(f"sample {self._where.get(index, index)}: {error}") from None

    def value(self, evidence: Sequence[Any]) -> float:
        """The task's score. Raises BadData for too few inputs."""
        inputs = [*chain.from_iterable(evidence)]
        if len(inputs) < self._task.fewest:
            raise BadData(f"metric {self._task.name} needs at least {self._task.fewest} samples, got {len(inputs)}")
        return self._task.score(inputs, self._plain)

    def doubt(self) -> Note | None:
        """The task's note on the labels, or else on the float model's answers read so far, if it has one."""
        if self._task.doubt is None:
            return None
        return self._task.doubt([*chain.from_iterable(self._truths.values())], self._plain)

    def refuse_useless(self, value: float) -> None:
        """Raises BadData if the labels, or else the float model's answers read so far, hold nothing; or if the float
        model's own score, `value`, leaves nothing to lose."""
        size, truths = self._task.size, [*chain.from_iterable(self._truths.values())]
        where = f"{len(truths)} held-out inputs"
        name = f"metric {self._task.name}"
        if size is not None and truths and not any(map(size, truths)):
            whose = "the labels hold" if self.labelled else "the float model finds"
            parameters = ", ".join(f"{key}={setting:g}" for key, setting in self._task.parameters.items())
            raise BadData(
                f"{name}: {whose} nothing in any of {where}, so any model would agree: check the data, their "
                f"preprocessing{self._range}, and the metric's parameters ({parameters})"
            )
        if self.labelled and self._task.larger_is_better and value == 0.0:
            raise BadData(
                f"{name}: by the labels of {where} the float model scores 0, so no model would be worse: check that "
                "the labels are those of these inputs"
            )
        if not self.labelled and value < 1.0 - 1e-6:  # by more than rounding
            raise BadData(
                f"{name}: by its own answers to {where} the float model scores {value:.3g}, not 1: they are all alike, "
                "or none can be compared; check the data and their preprocessing, or choose another metric"
            )

    def _read_label(self, index: int, label: np.ndarray, read: Callable[[np.ndarray], Any]) -> list[Any]:
        count = self._inputs.get(index, 1)
        if count == 1:
            return [read(label)]
        if label.ndim == 0 or len(label) != count:
            raise BadData(f"has the shape {list(label.shape)} for a batch of {count}: give one label per input")
        return [read(np.asarray(of_input)) for of_input in label]


class UserJudge:
    """Scores with a user's function, which gets the outputs of all samples at once."""

    def __init__(self, function: str, names: Sequence[str], labels: np.ndarray | None = None) -> None:
        self._function, self._names, self._labels = function, tuple(names), labels

    def evidence(self, index: int, _reference: Sequence[Any], changed: Sequence[Any]) -> Any:
        """The index of the sample, for its label, and the changed outputs as arrays."""
        return index, [np.atleast_1d(as_array(output)) for output in changed]

    def value(self, evidence: Sequence[Any]) -> float:
        """The function's result for outputs stacked along the first axis; outputs whose shapes differ are an array of
        arrays."""
        columns = zip(self._names, zip(*(arrays for _, arrays in evidence), strict=True), strict=True)
        outputs = {name: _joined(column) for name, column in columns}
        labels = None if self._labels is None else self._labels[[index for index, _ in evidence]]
        return call_user(self._function, outputs, labels)


def judge_of(
    metric: Metric,
    names: Sequence[str],
    samples: Sequence[Mapping[str, np.ndarray]] = (),
    labels: np.ndarray | None = None,
    metadata: Mapping[str, str] | None = None,
    where: Sequence[str] = (),
) -> Judge | None:
    """The judge of `metric`; None if sums of squares are enough. Raises as TaskJudge does."""
    if metric.own:
        return UserJudge(metric.name, names, labels)
    if metric.smooth:
        return None
    return TaskJudge(metric.task, names, samples, labels, metadata, where)


def fewest_samples(metric: Metric) -> int:
    """The least number of samples that `metric` needs."""
    return 1 if metric.smooth or metric.own else metric.task.fewest


def _joined(values: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(values) if len({value.shape[1:] for value in values}) == 1 else one_array(values)
