"""The tasks by name, with their parameters. Decodes nothing itself."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from taglio.error.tasks.detection import detection
from taglio.error.tasks.outputs import Trial
from taglio.error.tasks.text import character_accuracy
from taglio.error.tasks.vectors import (
    mean_iou,
    neighbour_recall,
    perplexity,
    r_squared,
    similarity_rank_correlation,
    top1_share,
)
from taglio.errors import BadData, BadOption


@dataclass(frozen=True, slots=True)
class Task:
    """A task with its parameters set."""

    name: str
    what: str
    score: Callable[[Trial], float]
    parameters: Mapping[str, float] = field(default_factory=dict)
    needs_labels: bool = False
    larger_is_better: bool = True

    def value(self, trial: Trial) -> float:
        """How well the changed model does the task. Raises BadData for outputs or labels that are not of this task."""
        if self.needs_labels and trial.labels is None:
            raise BadData(f"metric {self.name} needs labels: save them in the .npz under the key labels")
        if trial.labels is not None and len(trial.labels) != len(trial.changed):
            have = f"{len(trial.labels)} labels for {len(trial.changed)} samples"
            raise BadData(f"metric {self.name}: {have}: save one per sample")
        return self.score(replace(trial, parameters=self.parameters))


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task("detection", "boxes that both find, F1 (with labels: mAP)", detection, {"iou": 0.5, "score": 0.25}),
        Task("segmentation", "mean intersection over union of the classes of all pixels", mean_iou),
        Task("ctc", "text read alike (with labels: rightly), 1 - edits / characters", character_accuracy, {"blank": 0}),
        Task("similarity", "embeddings: rank correlation of all pairs' similarities", similarity_rank_correlation),
        Task(
            "recall", "embeddings: share of each sample's k nearest neighbours that stay", neighbour_recall, {"k": 10}
        ),
        Task("tokens", "share of positions whose likeliest class stays (with labels: is right)", top1_share),
        Task(
            "perplexity",
            "exp of the mean negative log likelihood of the labels",
            perplexity,
            needs_labels=True,
            larger_is_better=False,
        ),
        Task("r2", "regression: coefficient of determination", r_squared),
    )
}


def parse_task(text: str) -> Task:
    """The task that "detection" or "detection,iou=0.6,score=0.3" names. Raises BadOption for an unknown name or
    parameter, or a value that is not a number."""
    name, *settings = (part.strip() for part in text.split(","))
    if name not in TASKS:
        raise BadOption(f'metric "{name}" is none of {", ".join(TASKS)}')
    task = TASKS[name]
    chosen = dict(task.parameters)
    for setting in settings:
        match = re.fullmatch(r"(\w+)=(.+)", setting)
        if match is None or match[1] not in chosen:
            known = ", ".join(f"{key}={value:g}" for key, value in task.parameters.items()) or "no parameters"
            raise BadOption(f'metric {name}: "{setting}" is not a setting: it has {known}')
        try:
            chosen[match[1]] = float(match[2])
        except ValueError:
            raise BadOption(f"metric {name}: {match[1]} must be a number, not {match[2]!r}") from None
    return replace(task, parameters=chosen)
