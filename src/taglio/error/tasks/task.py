"""The tasks by name, with their parameters. Decodes nothing itself."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from taglio.error.tasks.detection import box_agreement, box_label, matched, read_boxes
from taglio.error.tasks.outputs import Outputs, Setting
from taglio.error.tasks.text import character_accuracy, edits, read_text, text_label
from taglio.error.tasks.vectors import (
    class_label,
    likelihood,
    map_label,
    mean_iou,
    neighbour_recall,
    number_label,
    overlaps,
    pair,
    perplexity,
    r_squared,
    read_map,
    read_numbers,
    read_scores,
    read_tokens,
    read_top1,
    read_vector,
    residuals,
    right,
    share,
    similarity_rank_correlation,
)
from taglio.errors import BadOption

TOP1 = "top1"


@dataclass(frozen=True, slots=True)
class Task:
    """A task with its parameters set.

    `read` makes of one sample's outputs what they say, `label` of its label what they should say; `match` holds one
    against the other, and `score` makes one number of all that `match` gave and of how often each sample counts.
    `fewest` samples give a number; where `of_pairs`, a sample has none of its own, so that none can count twice.
    """

    name: str
    what: str
    read: Callable[[Outputs, Setting], Any]
    match: Callable[[Any, Any, Setting], Any]
    score: Callable[[Sequence[Any], np.ndarray, Setting], float]
    label: Callable[[np.ndarray], Any] | None = None
    parameters: Mapping[str, float] = field(default_factory=dict)
    needs_labels: bool = False
    larger_is_better: bool = True
    of_pairs: bool = False

    @property
    def fewest(self) -> int:
        """Fewest samples for which the metric is defined."""
        return int(self.parameters.get("k", 2)) + 1 if self.of_pairs else 1


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task(TOP1, "share of inputs whose largest score stays", read_top1, right, share),
        Task(
            "tokens",
            "share of positions whose likeliest class stays (with labels: is right)",
            read_tokens,
            right,
            share,
            class_label,
        ),
        Task(
            "detection",
            "boxes that both find, F1 (with labels: mAP)",
            read_boxes,
            matched,
            box_agreement,
            box_label,
            {"iou": 0.5, "score": 0.25},
        ),
        Task(
            "segmentation",
            "mean intersection over union of the classes of all pixels",
            read_map,
            overlaps,
            mean_iou,
            map_label,
        ),
        Task(
            "ctc",
            "text read alike (with labels: rightly), 1 - edits / characters",
            read_text,
            edits,
            character_accuracy,
            text_label,
            {"blank": 0},
        ),
        Task(
            "similarity",
            "embeddings: rank correlation of all pairs' similarities",
            read_vector,
            pair,
            similarity_rank_correlation,
            of_pairs=True,
        ),
        Task(
            "recall",
            "embeddings: share of each sample's k nearest neighbours that stay",
            read_vector,
            pair,
            neighbour_recall,
            parameters={"k": 10},
            of_pairs=True,
        ),
        Task(
            "perplexity",
            "exp of the mean negative log likelihood of the labels",
            read_scores,
            likelihood,
            perplexity,
            class_label,
            needs_labels=True,
            larger_is_better=False,
        ),
        Task("r2", "regression: coefficient of determination", read_numbers, residuals, r_squared, number_label),
    )
}
# Whole numbers, and shares; the others are any number.
_WHOLE, _SHARES = {"blank": 0, "k": 1}, ("iou", "score")


def parse_task(text: str) -> Task:
    """The task that "detection" or "detection:iou=0.6,score=0.3" names. Raises BadOption for an unknown name or
    parameter, or a value that it cannot have."""
    name, _, settings = text.partition(":")
    if name.strip() not in TASKS:
        raise BadOption(f'metric "{name}" is none of {", ".join(TASKS)}')
    task = TASKS[name.strip()]
    chosen = dict(task.parameters)
    for setting in settings.split(",") if settings.strip() else []:
        key, _, number = (part.strip() for part in setting.partition("="))
        if key not in chosen:
            known = ", ".join(f"{key}={value:g}" for key, value in task.parameters.items())
            has = f"its parameters are {known}" if known else "it has no parameters"
            raise BadOption(f'metric {task.name}: "{setting.strip()}" is no parameter: {has}')
        try:
            chosen[key] = float(number)
        except ValueError:
            raise BadOption(f"metric {task.name}: {key} must be a number, such as {key}={chosen[key]:g}") from None
        if key in _SHARES and not 0.0 < chosen[key] < 1.0:
            raise BadOption(f"metric {task.name}: {key}={number} must lie between 0 and 1")
        if key in _WHOLE and not (chosen[key] >= _WHOLE[key] and chosen[key].is_integer()):
            raise BadOption(f"metric {task.name}: {key}={number} must be a whole number of at least {_WHOLE[key]}")
    return replace(task, parameters=chosen)


def task_text(task: Task) -> str:
    """How a task is written: with the parameters that are not as they come."""
    own = [f"{key}={value:g}" for key, value in task.parameters.items() if TASKS[task.name].parameters[key] != value]
    return f"{task.name}:{','.join(own)}" if own else task.name


def names_task(text: str) -> bool:
    """Whether `text` names a task, and not a function in a module that is called like one."""
    name, _, rest = text.partition(":")
    known = TASKS.get(name.strip())
    return known is not None and (not rest.strip() or "=" in rest or rest.strip() in known.parameters)
