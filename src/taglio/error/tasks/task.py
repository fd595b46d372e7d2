"""The table of tasks by name, with their parameters. Decodes nothing itself."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from taglio.error.tasks import detection, vectors
from taglio.error.tasks.outputs import Outputs, Setting, whole_numbers
from taglio.error.tasks.text import another_blank, character_accuracy, edits, read_text, text_label
from taglio.errors import BadOption
from taglio.notes import Note

TOP1 = "top1"


@dataclass(frozen=True, slots=True)
class Task:
    """A task with its parameters set.

    `read` decodes one sample's outputs, `label` its label; `match` compares the two and gives evidence, and `score`
    makes one number of the evidence of all samples. At least `fewest` samples are needed. `of_pairs` means that pairs
    of samples are scored; `one_by_one` that the inputs of a batch are read and scored one at a time, as samples of
    their own; `by_input` that the score of all samples is a mean of theirs.
    `size` counts what was read, if that may be nothing; `doubt` is a note on all that was read, or None.
    """

    name: str
    read: Callable[[Outputs, Setting], Any]
    match: Callable[[Any, Any, Setting], Any]
    score: Callable[[Sequence[Any], Setting], float]
    label: Callable[[np.ndarray], Any] | None = None
    parameters: Mapping[str, float] = field(default_factory=dict)
    needs_labels: bool = False
    larger_is_better: bool = True
    of_pairs: bool = False
    one_by_one: bool = False
    by_input: bool = False
    size: Callable[[Any], int] | None = None
    doubt: Callable[[Sequence[Any], Setting], Note | None] | None = None

    @property
    def fewest(self) -> int:
        """The least number of samples for which the metric is defined."""
        return int(self.parameters.get("k", 2)) + 1 if self.of_pairs else 1


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task(
            TOP1,
            vectors.read_top1,
            vectors.right,
            vectors.share,
            doubt=vectors.one_class,
            by_input=True,
        ),
        Task(
            "tokens",
            vectors.read_tokens,
            vectors.right,
            vectors.share,
            whole_numbers,
            doubt=vectors.one_class,
            by_input=True,
        ),
        Task(
            "detection",
            detection.read_boxes,
            detection.matched,
            detection.box_agreement,
            detection.box_label,
            {"iou": 0.5, "score": 0.25},
            one_by_one=True,
            size=len,
        ),
        Task(
            "segmentation",
            vectors.read_map,
            vectors.overlaps,
            vectors.mean_iou,
            vectors.map_label,
            doubt=vectors.one_class,
        ),
        Task(
            "ctc",
            read_text,
            edits,
            character_accuracy,
            text_label,
            {"blank": 0},
            one_by_one=True,
            size=len,
            doubt=another_blank,
            by_input=True,
        ),
        Task(
            "similarity",
            vectors.read_vector,
            vectors.pair,
            vectors.similarity_rank_correlation,
            of_pairs=True,
            one_by_one=True,
        ),
        Task(
            "recall",
            vectors.read_vector,
            vectors.pair,
            vectors.neighbour_recall,
            parameters={"k": 10},
            of_pairs=True,
            one_by_one=True,
        ),
        Task(
            "perplexity",
            vectors.read_scores,
            vectors.likelihood,
            vectors.perplexity,
            whole_numbers,
            needs_labels=True,
            larger_is_better=False,
        ),
        Task(
            "r2",
            vectors.read_numbers,
            vectors.residuals,
            vectors.r_squared,
            vectors.number_label,
        ),
    )
}
# Parameters that must be whole numbers of at least this, and shares.
_WHOLE, _SHARES = {"blank": 0, "k": 1}, ("iou", "score")


def parse_task(text: str) -> Task:
    """Parse text such as "detection" or "detection:iou=0.6,score=0.3". Raises BadOption for an unknown name or
    parameter, or an invalid value."""
    name, _, settings = text.partition(":")
    if name.strip() not in TASKS:
        raise BadOption(f'metric "{name}" is not one of {", ".join(TASKS)}')
    task = TASKS[name.strip()]
    chosen = dict(task.parameters)
    for setting in settings.split(",") if settings.strip() else []:
        key, _, number = (part.strip() for part in setting.partition("="))
        if key not in chosen:
            parameters = ", ".join(f"{key}={value:g}" for key, value in task.parameters.items())
            choice = f"its parameters are {parameters}" if parameters else "it has no parameters"
            raise BadOption(f'metric {task.name}: "{setting.strip()}" is not a parameter: {choice}')
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
    """The task as text, with the parameters that differ from their defaults."""
    own = [f"{key}={value:g}" for key, value in task.parameters.items() if TASKS[task.name].parameters[key] != value]
    return f"{task.name}:{','.join(own)}" if own else task.name


def names_task(text: str) -> bool:
    """Whether `text` names a task rather than a function in a module of the same name."""
    name, _, rest = text.partition(":")
    task = TASKS.get(name.strip())
    return task is not None and (not rest.strip() or "=" in rest or rest.strip() in task.parameters)
